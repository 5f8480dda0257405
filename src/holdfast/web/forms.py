"""Forms made from the JSON Schema of an answer or a result, and values read back from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

FieldKind = Literal["boolean", "choice", "number", "integer", "text", "json"]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a form. `name` is empty if the whole value is one input."""

    name: str
    label: str
    kind: FieldKind
    choices: list[Any] = []
    required: bool = True
    value: str = ""


class FormError(ValueError):
    """An input does not have the form it needs."""


def make_fields(schema: Any, value: Any = None, label: str = "Answer") -> list[Field]:
    """Return the inputs for a value of this schema, filled with `value` if there is one.

    `label` names the input of a value that is no object. A malformed schema allows any JSON.
    """
    try:
        return _make_fields(schema, value, label)
    except (AttributeError, TypeError):
        return [_field("", label, None, True, None)]


def _make_fields(schema: Any, value: Any, label: str) -> list[Field]:
    schema = _follow(schema, schema)
    if isinstance(schema, dict) and schema.get("type") == "object" and schema.get("properties"):
        given = value if isinstance(value, dict) else {}
        needed = schema.get("required", [])
        return [
            _field(name, name, _follow(each, schema), name in needed, given.get(name))
            for name, each in schema["properties"].items()
        ]
    return [_field("", label, schema, True, value)]


def is_fillable(schema: Any) -> bool:
    """Whether an object with the names of this schema can fill its inputs."""
    return any(field.name for field in make_fields(schema))


def read_form(schema: Any, form: Mapping[str, str], label: str = "Answer") -> Any:
    """Return the value that a form holds. Raises `FormError` if an input has the wrong form.

    `label` names the input of a value that is no object, as for `make_fields`.
    """
    fields = make_fields(schema, label=label)
    if len(fields) == 1 and not fields[0].name:
        return _read(fields[0], form.get("value", ""))
    value: dict[str, Any] = {}
    for field in fields:
        text = form.get(f"value.{field.name}", "")
        if text != "" or field.required or field.kind == "boolean":
            value[field.name] = _read(field, text)
    return value


def _field(name: str, label: str, schema: Any, required: bool, value: Any) -> Field:
    schema = schema if isinstance(schema, dict) else {}
    label = str(schema.get("title") or label)
    choices = schema.get("enum") or []
    kinds: dict[Any, FieldKind] = {
        "boolean": "boolean",
        "integer": "integer",
        "number": "number",
        "string": "text",
    }
    kind: FieldKind = "choice" if choices else kinds.get(_type_of(schema), "json")
    text = "" if value is None else value if kind == "text" else json.dumps(value)
    return Field(
        name=name, label=label, kind=kind, choices=list(choices), required=required, value=str(text)
    )


def _type_of(schema: dict[str, Any]) -> str:
    """Return the JSON type of a value. If yes or no is one of several forms, that is enough."""
    if {"type": "boolean"} in schema.get("anyOf", []):
        return "boolean"
    kind = schema.get("type", "")
    return kind if isinstance(kind, str) else ""


def _read(field: Field, text: str) -> Any:
    label = field.label
    if field.kind == "boolean":
        if text not in ("true", "false"):
            raise FormError(f"{label}: choose yes or no")
        return text == "true"
    if field.kind == "choice":
        for choice in field.choices:
            if json.dumps(choice) == text:
                return choice
        raise FormError(f"{label}: choose one of the values")
    if field.kind == "text":
        return text.replace("\r\n", "\n")  # browsers send line breaks as CRLF
    try:
        value = json.loads(text)
    except ValueError:
        form = (
            "a number" if field.kind in ("integer", "number") else 'JSON; text needs quotes: "ok"'
        )
        raise FormError(f"{label}: must be {form}") from None
    if field.kind == "integer" and type(value) is not int:
        raise FormError(f"{label}: must be a whole number")
    if field.kind == "number" and type(value) not in (int, float):
        raise FormError(f"{label}: must be a number")
    return value


def _follow(schema: Any, root: Any) -> Any:
    """Follow one reference to a definition inside the schema."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(reference, str) and reference.startswith("#/$defs/") and isinstance(root, dict):
        definitions = root.get("$defs", {})
        found = definitions.get(reference.rpartition("/")[2], {})
        return {**found, "$defs": definitions}
    return schema
