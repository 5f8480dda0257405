"""What an answer has to look like: said by the task that asks, in JSON Schema, and checked where the answer is given.

Whoever answers runs another program, which does not know the type. Only the words that types are made of are understood;
what else a schema says is left to the task, which decodes the answer by its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...log.codec import decode, encode

MAX_DEPTH: Final = 50
LONGEST: Final = 300
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def schema_of(declared: Any) -> Any:
    """A type as JSON Schema; None if it cannot be said in it."""
    if declared is Any or declared is object:
        return None
    try:
        if hasattr(declared, "model_json_schema"):
            found = declared.model_json_schema()
        else:
            found = msgspec.json.schema(declared)
        return decode(encode(found))
    except Exception:  # a type of somebody else's, which only its own decoder knows
        return None


def said(schema: Any) -> str:
    """What an answer has to look like, for an error message."""
    text = encode(schema).decode()
    return (
        f"what fits, as JSON Schema: {text if len(text) <= LONGEST else text[: LONGEST - 1] + '…'}"
    )


def misfit(value: Any, schema: Any) -> str | None:
    """What is wrong with a value, in words that do not repeat it; None if nothing is, as far as the schema tells."""
    root = schema if isinstance(schema, dict) else {}
    return _misfit(value, root, root, "the answer", 0)


def _misfit(value: Any, schema: Any, root: Mapping[str, Any], where: str, depth: int) -> str | None:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        schema = _find(root, reference)
        return _misfit(value, schema, root, where, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(word), list) and choices:
            problem = None
            for choice in choices:
                if (problem := _misfit(value, choice, root, where, depth + 1)) is None:
                    break
            if problem is not None:
                many = len(choices)
                return (
                    problem
                    if many == 1
                    else f"{where} fits none of the {many} kinds that are possible"
                )
    if isinstance(allowed := schema.get("enum"), list) and not any(
        _same(value, each) for each in allowed
    ):
        return f"{where} is none of the {len(allowed)} that are possible"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{where} is not the one that is possible"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where} has to be {' or '.join(map(str, kinds))}"
    if isinstance(value, dict):
        return _misfit_in_object(value, schema, root, where, depth)
    if isinstance(value, list):
        return _misfit_in_array(value, schema, root, where, depth)
    return None


def _misfit_in_array(
    value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str, depth: int
) -> str | None:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if type(least) is int and len(value) < least:
        return f"{where} has to have at least {least} items"
    if type(most) is int and len(value) > most:
        return f"{where} has to have at most {most} items"
    first, others = schema.get("prefixItems"), schema.get("items")
    parts = first if isinstance(first, list) else []
    for number, item in enumerate(value):
        part = parts[number] if number < len(parts) else others
        if problem := _misfit(item, part, root, f"{where}[{number}]", depth + 1):
            return problem
    return None


def _misfit_in_object(
    value: Mapping[str, Any],
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    where: str,
    depth: int,
) -> str | None:
    required, properties, others = (
        schema.get("required"),
        schema.get("properties"),
        schema.get("additionalProperties"),
    )
    for name in required if isinstance(required, list) else []:
        if name not in value:
            return f"{where} has no {str(name)!r}"
    parts = properties if isinstance(properties, dict) else {}
    for name, item in value.items():
        if name in parts:
            problem = _misfit(item, parts[name], root, f"{where}.{name}", depth + 1)
        elif others is False:
            problem = f"{where} has a part that is not known"
        else:  # its name is the answer's, and is not repeated
            problem = _misfit(item, others, root, f"a part of {where}", depth + 1)
        if problem:
            return problem
    return None


def _is(value: object, kind: object) -> bool:
    types = _KINDS.get(kind) if isinstance(kind, str) else None
    if types is None:
        return True  # a word that we do not know
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _find(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found
