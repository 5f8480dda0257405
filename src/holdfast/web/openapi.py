"""The OpenAPI description of the JSON API, made from its list of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .. import __version__
from .api import Endpoint

PREFIX = "/api/v1"


def describe_api(endpoints: Sequence[Endpoint[Any]]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    types = [each.returns for each in endpoints] + [each.params for each in endpoints]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for place, endpoint in enumerate(endpoints):
        returns, params = schemas[place], schemas[len(endpoints) + place]
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": endpoint.path.replace("/", "_").replace("-", "_"),
            "responses": {
                "200": {"description": "OK", "content": {"application/json": {"schema": returns}}},
                "default": {
                    "description": "An error",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                    },
                },
            },
        }
        if endpoint.method == "GET":
            operation["parameters"] = _query_parameters(params, components)
        else:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": params}},
            }
        paths[f"{PREFIX}/{endpoint.path}"] = {endpoint.method.lower(): operation}
    problem = {
        "type": "object",
        "required": ["error", "message"],
        "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Read and control the tasks, conversations and memories of a store.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": problem},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _query_parameters(schema: dict[str, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    body = components[schema["$ref"].rpartition("/")[2]]
    return [
        {"name": name, "in": "query", "required": name in body.get("required", ()), "schema": each}
        for name, each in body.get("properties", {}).items()
    ]
