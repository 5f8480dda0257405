"""JSON Schemas of answers, signals and results: derived from the type, checked by the sender.

The process that sends an answer or resolves a step doesn't know the Python type. It checks only the
keywords that describe types, and the formats of dates, times and the like; the task itself decodes
the value as its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec

from ...log.codec import decode, encode

MAX_DEPTH: Final = 50
MAX_SCHEMA_CHARACTERS: Final = 300
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_FORMATS: Final[dict[str, tuple[type, str]]] = {
    "date": (date, "a date, such as 2026-01-31"),
    "date-time": (datetime, "a date and time, such as 2026-01-31T09:30:00Z"),
    "time": (time, "a time, such as 09:30:00"),
    "partial-time": (time, "a time, such as 09:30:00"),
    "duration": (timedelta, "an ISO 8601 duration, such as P1DT2H"),
    "uuid": (UUID, "a UUID"),
    "decimal": (Decimal, "a decimal number, such as 12.50"),
}
"""The formats of texts that are checked: the type that msgspec must be able to make of the text."""


def schema_of(declared: Any) -> Any:
    """Return a type as JSON Schema; None if it can't be expressed."""
    if declared is Any or declared is object:
        return None
    try:
        if hasattr(declared, "model_json_schema"):
            found = declared.model_json_schema()
        else:
            found = msgspec.json.schema(declared)
            if declared is datetime or declared is time:  # msgspec names no format for them
                found["format"] = "date-time" if declared is datetime else "time"
        return decode(encode(found))
    except Exception:  # a type that has no JSON Schema
        return None


def describe_schema(schema: Any) -> str:
    """Describe a schema for an error message. A long schema is cut."""
    text = encode(schema).decode()
    if len(text) > MAX_SCHEMA_CHARACTERS:
        text = text[: MAX_SCHEMA_CHARACTERS - 1] + "…"
    return f"the expected JSON Schema is {text}"


def find_mismatch(value: Any, schema: Any, what: str = "the answer") -> str | None:
    """Return how a value violates a schema, without quoting the value; None if it doesn't."""
    root = schema if isinstance(schema, dict) else {}
    return _find_mismatch(value, root, root, what, 0)


def _find_mismatch(
    value: Any, schema: Any, root: Mapping[str, Any], where: str, depth: int
) -> str | None:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        schema = _resolve_reference(root, reference)
        return _find_mismatch(value, schema, root, where, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(word), list) and choices:
            problem = None
            for choice in choices:
                if (problem := _find_mismatch(value, choice, root, where, depth + 1)) is None:
                    break
            if problem is not None:
                many = len(choices)
                return problem if many == 1 else f"{where} must be one of {many} alternatives"
    if isinstance(allowed := schema.get("enum"), list) and not any(
        _same(value, each) for each in allowed
    ):
        return f"{where} must be one of {len(allowed)} values"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{where} must be one fixed value"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if kinds and not any(_has_type(value, kind) for kind in kinds):
        return f"{where} must be {' or '.join(map(str, kinds))}"
    if isinstance(value, str):
        return _find_mismatch_in_text(value, schema, where)
    if isinstance(value, dict):
        return _find_mismatch_in_object(value, schema, root, where, depth)
    if isinstance(value, list):
        return _find_mismatch_in_array(value, schema, root, where, depth)
    return None


def _find_mismatch_in_text(value: str, schema: Mapping[str, Any], where: str) -> str | None:
    known = None
    if isinstance(name := schema.get("format"), str):
        known = _FORMATS.get(name)
    elif schema.get("contentEncoding") == "base64":
        known = bytes, "bytes as base64"
    if known is None:
        return None
    type_, words = known
    try:
        msgspec.convert(value, type_)
    except (msgspec.ValidationError, ValueError):
        return None if _is_valid_in_pydantic(value, type_) else f"{where} must be {words}"
    return None


def _is_valid_in_pydantic(value: str, type_: type) -> bool:
    """Return whether a Pydantic model may accept a text that msgspec doesn't.

    Pydantic reads times without seconds, and reads and writes durations with years.
    """
    if type_ is timedelta:
        return value.lstrip("+-").startswith("P") and "Y" in value
    if type_ is not datetime and type_ is not time:
        return False
    try:
        type_.fromisoformat(value)
    except ValueError:
        return False
    return "T" in value or ":" in value  # a date alone is no time


def _find_mismatch_in_array(
    value: list[Any], schema: Mapping[str, Any], root: Mapping[str, Any], where: str, depth: int
) -> str | None:
    least, most = schema.get("minItems"), schema.get("maxItems")
    if type(least) is int and len(value) < least:
        return f"{where} must have at least {least} items, got {len(value)}"
    if type(most) is int and len(value) > most:
        return f"{where} must have at most {most} items, got {len(value)}"
    first, others = schema.get("prefixItems"), schema.get("items")
    parts = first if isinstance(first, list) else []
    for number, item in enumerate(value):
        part = parts[number] if number < len(parts) else others
        if problem := _find_mismatch(item, part, root, f"{where}[{number}]", depth + 1):
            return problem
    return None


def _find_mismatch_in_object(
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
            return f"{where} must have {str(name)!r}"
    parts = properties if isinstance(properties, dict) else {}
    for name, item in value.items():
        if name in parts:
            problem = _find_mismatch(item, parts[name], root, f"{where}.{name}", depth + 1)
        elif others is False:
            problem = f"{where} has an unknown field"
        else:  # the name comes from the answer, so it isn't quoted
            problem = _find_mismatch(item, others, root, f"a part of {where}", depth + 1)
        if problem:
            return problem
    return None


def _has_type(value: object, kind: object) -> bool:
    types = _KINDS.get(kind) if isinstance(kind, str) else None
    if types is None:
        return True  # an unknown type name
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _resolve_reference(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found
