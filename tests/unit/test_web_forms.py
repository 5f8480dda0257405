"""Forms made from a JSON Schema, and the values read back from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.web.forms import FormError, is_fillable, make_fields, read_form


class Payout(msgspec.Struct):
    amount: float
    to: str
    urgent: bool
    note: str = ""


PAYOUT = msgspec.json.schema(Payout)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "integer"}, "7", 7),
        ({"type": "number"}, "7.5", 7.5),
        ({"type": "string"}, "yes <b>", "yes <b>"),
        ({"enum": ["red", "blue"]}, '"blue"', "blue"),
        ({"enum": [1, 2]}, "2", 2),
        (None, '{"a": [1]}', {"a": [1]}),
        ({"type": "array"}, "[1]", [1]),
    ],
)
def test_one_input_gives_a_value_of_the_type(schema: Any, text: str, value: Any) -> None:
    found = read_form(schema, {"value": text})
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "boolean"}, ""),
        ({"type": "boolean"}, "yes"),
        ({"type": "integer"}, "7.5"),
        ({"type": "integer"}, "true"),
        ({"type": "number"}, "many"),
        ({"enum": ["red"]}, "red"),
        (None, "no quotes"),
    ],
)
def test_an_input_of_another_form_is_refused(schema: Any, text: str) -> None:
    with pytest.raises(FormError):
        read_form(schema, {"value": text})


def test_an_object_has_an_input_for_each_field_filled_with_what_was_proposed() -> None:
    fields = make_fields(PAYOUT, {"amount": 41, "to": "Ann"})
    assert [(each.name, each.kind, each.required, each.value) for each in fields] == [
        ("amount", "number", True, "41"),
        ("to", "text", True, "Ann"),
        ("urgent", "boolean", True, ""),
        ("note", "text", False, ""),
    ]
    form = {"value.amount": "41.5", "value.to": "Ann", "value.urgent": "false", "value.note": ""}
    assert read_form(PAYOUT, form) == {"amount": 41.5, "to": "Ann", "urgent": False}


def test_an_answer_that_may_be_more_than_yes_or_no_can_be_yes_or_no() -> None:
    schema = {"anyOf": [{"type": "boolean"}, {"type": "object", "properties": {}}]}
    (field,) = make_fields(schema)
    assert field.kind == "boolean"
    assert read_form(schema, {"value": "true"}) is True


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": [1]},
        {"type": "object", "properties": {"a": {}}, "required": 5},
        {"anyOf": None},
        {"enum": 5},
        {"$ref": "#/$defs/x", "$defs": []},
        {"$ref": "#/$defs/x", "$defs": {"x": 5}},
    ],
)
def test_a_malformed_schema_allows_any_json(schema: dict[str, Any]) -> None:
    [field] = make_fields(schema, {"a": 1})
    assert (field.name, field.kind) == ("", "json")
    assert read_form(schema, {"value": "[1]"}) == [1]


@pytest.mark.parametrize(
    ("schema", "fillable"),
    [
        (PAYOUT, True),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, True),
        ({"type": "object"}, False),
        ({"type": "string"}, False),
        (None, False),
        ([], False),
    ],
)
def test_a_proposal_fills_the_inputs_of_an_object_only(schema: Any, fillable: bool) -> None:
    assert is_fillable(schema) is fillable
