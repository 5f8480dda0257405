"""Deltas: what changed between two JSON values, exactly, and nothing but; and that no delta can do
worse than be refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.log.codec import MAX_DEPTH, Undecodable, decode, encode
from holdfast.state import delta as _delta
from holdfast.state.delta import BadDelta, diff, patch

WORDS = ["", "a", "put", "in", "drop", "order", "is", "list", "text", "é😀"]
texts = st.one_of(
    st.sampled_from(WORDS), st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 0.0, -0.0, 1.0, 2**63, -(2**63)]),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


@st.composite
def later(draw: st.DrawFn, value: Any) -> Any:
    """Something that `value` might have become: most of it stays, here and there something is done
    to it."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    if isinstance(value, list):
        parts: list[Any] = []
        for part in value:
            match draw(
                st.sampled_from(["keep", "keep", "keep", "change", "drop", "insert", "swap"])
            ):
                case "keep":
                    parts.append(part)
                case "change":
                    parts.append(draw(later(part)))
                case "insert":
                    parts += [draw(values), part]
                case "swap":
                    parts.insert(0, part)
        return parts + draw(st.lists(values, max_size=2))
    if isinstance(value, dict):
        changed: dict[str, Any] = {}
        for key in draw(st.permutations(list(value))) if draw(st.booleans()) else value:
            if draw(st.integers(0, 5)):
                changed[key] = (
                    draw(later(value[key])) if draw(st.integers(0, 3)) == 0 else value[key]
                )
        return {**changed, **draw(st.dictionaries(texts, values, max_size=2))}
    if isinstance(value, str):
        cut = draw(st.integers(0, len(value)))
        return value[:cut] + draw(texts) + value[draw(st.integers(cut, len(value))) :]
    return value


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """A value and what became of it."""
    made = [draw(values)]
    for _ in range(draw(st.integers(1, 5))):
        made.append(draw(later(made[-1])))
    return made


def message(number: int, size: int = 60) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number} ".ljust(size, ".")}


def delta(old: Any, new: Any) -> Any:
    """The delta between two values, after making sure that it leads from one to the other."""
    before, after = encode(old), encode(new)
    made = diff(before, after)
    assert patch(before, [made]) == after
    return decode(made)


# -- exactness -------------------------------------------------------------------------------------


@pytest.mark.slow
@given(histories())
@example([{"a": 1}, {"a": True}, {"a": 1.0}, {"a": None}])
@example([[0.0], [-0.0], [0], [False]])
@example([{"a": 1, "b": 2, "c": 3}, {"c": 3, "a": 1, "b": 2}, {"b": 2, "x": 0, "c": 3}])
def test_patching_leads_through_the_whole_history_byte_for_byte(history: list[Any]) -> None:
    """Bytes, so 1, 1.0 and true are told apart, and the keys are in the order in which they were
    saved."""
    raws = [encode(value) for value in history]
    deltas = [diff(old, new) for old, new in pairwise(raws)]
    for upto, raw in enumerate(raws):
        assert patch(raws[0], deltas[:upto]) == raw


@pytest.mark.slow
@given(values, values)
def test_any_value_can_become_any_other(old: Any, new: Any) -> None:
    before, after = encode(old), encode(new)
    made = diff(before, after)
    assert patch(before, [made]) == after
    assert len(made) <= len(after) + len(b'{"is":}')


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (1.0, True), (None, 0), ("", None)],
)
@pytest.mark.parametrize(
    "place", [lambda v: v, lambda v: {"k": v}, lambda v: ["x", v, "y"], lambda v: {"k": [{"k": v}]}]
)
def test_values_that_python_takes_for_equal_are_told_apart(old: Any, new: Any, place: Any) -> None:
    for one, other in ((old, new), (new, old)):
        before, after = encode(place(one)), encode(place(other))
        assert before != after
        assert patch(before, [diff(before, after)]) == after


@pytest.mark.parametrize(
    "value", [{"a": [1, {"b": "text"}], "c": {}}, {}, [], [[]], "", "text", 1, None]
)
def test_a_value_can_become_what_it_is(value: Any) -> None:
    delta(value, value)


@pytest.mark.parametrize("word", WORDS)
def test_keys_of_users_may_be_called_what_our_own_are(word: str) -> None:
    rest = {"padding": "x" * 200}
    for old, new in [
        ({**rest}, {**rest, word: {word: 1}}),
        ({**rest, word: {word: [word]}}, {**rest, word: {word: [word, {word: word}]}}),
        ({**rest, word: 1}, {**rest}),
        ([rest, {word: [word], **rest}], [rest, {word: {word: word}, **rest}]),
    ]:
        assert "is" not in delta(old, new) or word == "is"


# -- what is stored --------------------------------------------------------------------------------


def test_the_forms_are_these_and_stay_readable_for_ever() -> None:
    """Stored data: a change here needs another schema version, and a reader for this one."""
    pad = "p" * 100
    cases: list[tuple[Any, Any, Any]] = [
        (1, 2, {"is": 2}),
        (
            {"a": 1, "b": 2, "p": pad},
            {"a": 1, "b": 3, "p": pad, "c": []},
            {"put": {"b": 3, "c": []}},
        ),
        ({"a": 1, "b": 2, "p": pad}, {"p": pad, "b": 2}, {"drop": ["a"], "order": ["b"]}),
        ({"m": [pad, 1]}, {"m": [pad, 1, 2]}, {"in": {"m": {"list": [2, [2]]}}}),
        ([pad, 1, 2, 3, pad], [pad, 9, 3, pad], {"list": [1, -2, [9], 2]}),
        ([{"p": pad, "n": 1}, pad], [{"p": pad, "n": 2}, pad], {"list": [{"put": {"n": 2}}, 1]}),
        (pad, pad + "é😀", {"text": [100, "é😀"]}),
        (pad + "old" + pad, pad + "n" + pad, {"text": [100, -3, "n", 100]}),
    ]
    for old, new, expected in cases:
        assert delta(old, new) == expected
        assert decode(patch(encode(old), [encode(expected)])) == new


@pytest.mark.parametrize("count", [0, 1, 10, 10_000])
def test_an_appended_message_costs_its_own_size_whatever_is_there(count: int) -> None:
    old = {
        "agent": {"messages": [message(n) for n in range(count)], "model": "m"},
        "version": "1.0",
    }
    one = message(count, size=500)
    new = {"agent": {"messages": [*old["agent"]["messages"], one], "model": "m"}, "version": "1.0"}  # type: ignore[index]
    made = diff(encode(old), encode(new))
    assert patch(encode(old), [made]) == encode(new)
    assert len(made) <= len(encode(one)) + 80


MESSAGES = [message(number) for number in range(100)]


@pytest.mark.parametrize(
    ("what", "new", "most"),
    [
        ("a window that moved on", [*MESSAGES[3:], message(100)], 150),
        (
            "one in the middle gone, one at the end new",
            MESSAGES[:50] + MESSAGES[51:] + [message(100)],
            150,
        ),
        (
            "the beginning summarised, one at the end new",
            ["summary", *MESSAGES[40:], message(100)],
            150,
        ),
        ("the last one moved to the front", [MESSAGES[-1], *MESSAGES[:-1]], 150),
        (
            "three new ones in three places",
            [*MESSAGES[:9], 1, *MESSAGES[9:50], 2, *MESSAGES[50:], 3],
            60,
        ),
        (
            "a text that grew inside, and one more",
            [*MESSAGES[:-1], message(99, 80), message(100)],
            180,
        ),
        (
            "a key inside, at both ends",
            [{**MESSAGES[0], "n": 1}, *MESSAGES[1:-1], {**MESSAGES[-1], "n": 1}],
            80,
        ),
        ("half of them gone", MESSAGES[::2], 500),
    ],
)
def test_a_list_that_changed_in_several_places_is_not_stored_again(
    what: str, new: list[Any], most: int
) -> None:
    made = delta(MESSAGES, new)
    assert len(encode(made)) <= most, what


def test_a_dict_whose_key_moved_to_the_end_is_not_stored_again() -> None:
    cache = {f"key {number}": "x" * 50 for number in range(100)}
    moved = {**{key: cache[key] for key in cache if key != "key 7"}, "key 7": cache["key 7"]}
    assert delta(cache, moved) == {"order": ["key 7"]}


def test_a_delta_that_saves_nothing_gives_way_to_the_value() -> None:
    assert delta(list(range(10)), list(range(100, 110))) == {"is": list(range(100, 110))}
    assert delta({"a": "x"}, {"a": "y"}) == {"is": {"a": "y"}}
    assert delta({"a": [1], "p": "x" * 99}, {"a": [2], "p": "x" * 99}) == {"put": {"a": [2]}}


# -- size and depth --------------------------------------------------------------------------------


def test_a_long_list_that_changed_everywhere_is_replaced() -> None:
    count = _delta.MAX_MIDDLE_ELEMENTS
    same = "x" * 100
    old, new = [same, *range(count), same], [same, *range(count, 0, -1), same]
    assert delta(old, new) == {"list": [1, -count, [*range(count, 0, -1)], 1]}


@pytest.mark.slow
def test_a_crowded_list_is_stored_whole_and_a_text_full_of_commas_is_not() -> None:
    """Taken apart, millions of small numbers would need a hundred times their memory."""
    crowded = [1, 2] * 300_000
    assert len(encode(crowded)) > _delta.LONG_LIST_BYTES
    assert delta(crowded, [*crowded, 3]).keys() == {"is"}
    table = ["1,2,3,4,5,6,7,8\n" * 1_000] * 80
    assert len(encode(table)) > _delta.LONG_LIST_BYTES
    assert delta(table, [*table, "9"]) == {"list": [80, ["9"]]}


@pytest.mark.parametrize("depth", [_delta.MAX_LEVELS, MAX_DEPTH - 1])
def test_deep_values_come_back_too(depth: int) -> None:
    old: Any = ["x" * 50, 1]
    new: Any = ["x" * 50, 2]
    for level in range(depth - 1):
        old, new = (
            ({"k": old, "p": "x" * 9}, {"k": new, "p": "x" * 9}) if level % 2 else ([old], [new])
        )
    before, after = encode(old), encode(new)
    assert decode(after)
    made = diff(before, after)
    try:
        decode(made)
    except Undecodable:
        # whoever stores deltas has to look whether they can be read
        assert depth > _delta.MAX_LEVELS
    else:
        assert patch(before, [made]) == after


# -- hostile deltas --------------------------------------------------------------------------------

VALUE: Any = {"a": [1, 2, {"b": "text"}], "c": "text", "d": 1}

HOSTILE: list[Any] = [
    None,
    1,
    "put",
    [],
    {"is": 1, "put": {}},
    {"unknown": 1},
    {"put": []},
    {"put": None},
    {"in": []},
    {"in": {"nowhere": {"is": 1}}},
    {"in": {"d": {"list": [1]}}},
    {"in": {"d": {"text": []}}},
    {"in": {"d": {"put": {"x": 1}}}},
    {"in": {"d": 1}},
    {"drop": ["nowhere"]},
    {"drop": ["a", "a"]},
    {"drop": [1]},
    {"drop": [["a"]]},
    {"drop": "a"},
    {"drop": {"a": 1}},
    {"order": ["nowhere"]},
    {"order": [{"a": 1}]},
    {"order": [True]},
    {"drop": ["a"], "order": ["a"]},
    {"list": [3]},
    {"text": [4]},
    {"in": {"a": {"list": 3}}},
    {"in": {"a": {"list": []}}},
    {"in": {"a": {"list": [2]}}},
    {"in": {"a": {"list": [4]}}},
    {"in": {"a": {"list": [-4]}}},
    {"in": {"a": {"list": [3, 1]}}},
    {"in": {"a": {"list": [3, -1]}}},
    {"in": {"a": {"list": [0, 3]}}},
    {"in": {"a": {"list": [True, 2]}}},
    {"in": {"a": {"list": [3.0]}}},
    {"in": {"a": {"list": [10**18]}}},
    {"in": {"a": {"list": [-(2**63)]}}},
    {"in": {"a": {"list": [3, {"is": 1}]}}},
    {"in": {"a": {"list": [3, "x"]}}},
    {"in": {"a": {"list": [3, None]}}},
    {"in": {"a": {"list": [{"text": []}, 2]}}},
    {"in": {"c": {"text": "text"}}},
    {"in": {"c": {"text": [3]}}},
    {"in": {"c": {"text": [5]}}},
    {"in": {"c": {"text": [-5]}}},
    {"in": {"c": {"text": [4, ["x"]]}}},
    {"in": {"c": {"text": [4, 1.5]}}},
    {"in": {"c": {"text": [True, 3]}}},
]


@pytest.mark.parametrize("bad", HOSTILE, ids=lambda bad: json.dumps(bad)[:50])
def test_a_delta_that_does_not_fit_is_refused(bad: Any) -> None:
    good = encode({"put": {"d": 2}})
    with pytest.raises(BadDelta) as caught:
        patch(encode(VALUE), [good, encode(bad), good])
    assert caught.value.index == 1
    assert "text" not in str(caught.value) and "nowhere" not in str(caught.value)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b'{"is":}', b"[" * 1000, b"[" * 200 + b"]" * 200, b'{"is":1}{"is":2}'],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BadDelta):
        patch(b"{}", [raw])
    with pytest.raises(Undecodable):
        patch(raw, [])
    with pytest.raises(Undecodable):
        patch(raw, [b'{"is":1}'])


@pytest.mark.slow
@given(values, values)
def test_any_json_taken_for_a_delta_is_refused_or_gives_a_value(value: Any, wrong: Any) -> None:
    try:
        decode(patch(encode(value), [encode(wrong)]))
    except BadDelta:
        pass


@pytest.mark.slow
@given(values, st.data())
def test_a_true_delta_on_another_value_is_refused_or_gives_a_value(
    value: Any, data: st.DataObject
) -> None:
    other = data.draw(later(value))
    made = diff(encode(value), encode(data.draw(later(value))))
    try:
        decode(patch(encode(other), [made]))
    except BadDelta:
        pass
