"""What changed between two JSON values, as a third one; and the way back.

Both sides are bytes of JSON. Parts are compared as bytes and parsed only where they differ: so 1, 1.0 and true are three
values, the order of keys counts, and nobody's objects can be changed by accident.

A delta is one of four forms. Keys and values of users only ever stand inside them, whatever they are called:

    {"is": value}                                       the value itself
    {"put": {key: value, …}, "in": {key: delta, …},     of a dict, each part only if needed: keys that are new or
     "drop": [key, …], "order": [key, …]}               replaced, changed inside, gone; and moved to the end, in turn
    {"list": [step, …]}                                 5: the next five elements stay; -2: the next two are gone;
                                                        [value, …]: new ones come here; delta: the next one changed inside
    {"text": [step, …]}                                 the same with code points, "…": new ones

The steps reach to the end exactly, so a delta fits nothing but what it was made for.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ..errors import DataProblem
from ..log.codec import Undecodable, decode

DEEPEST: Final = 32
"""Below so many levels a part that changed is stored whole: each level is parsed once more."""
MIDDLE: Final = 10_000
"""So many changed elements of one list are replaced in one piece: finding out more would take longer than it saves."""
SMALL_BYTES: Final = 8
LONG_BYTES: Final = 1024 * 1024
"""A list over that size, of elements that small, would take a hundred times its memory in parts."""

_dict = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_json = msgspec.json.Encoder().encode

Slices = TypeVar("Slices", str, list[msgspec.Raw])


class BadDelta(DataProblem):
    """The delta at `index` is not one, or does not fit the value. The text holds no content."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index, self.what = index, what


def diff(old: bytes, new: bytes) -> bytes:
    """The delta from one JSON value to another: `patch(old, [diff(old, new)])` is `new`."""
    return _diff(old, new, DEEPEST) or b'{"is":%b}' % new


def _diff(old: bytes, new: bytes, levels: int) -> bytes | None:
    """A delta that is shorter than the new value, or None."""
    kind = new[:1]
    if kind != old[:1] or kind not in _DIFFS or not levels:
        return None
    delta = _DIFFS[kind](old, new, levels)
    return delta if delta is not None and len(delta) < len(new) else None


# -- dicts -----------------------------------------------------------------------------------------


def _diff_dict(old: bytes, new: bytes, levels: int) -> bytes:
    before, after = _dict(old), _dict(new)
    put: dict[str, msgspec.Raw] = {}
    inside: dict[str, msgspec.Raw] = {}
    for key, value in after.items():
        if key not in before:
            put[key] = value
        elif before[key] != value:
            delta = _diff(bytes(before[key]), bytes(value), levels - 1)
            if delta is None:
                put[key] = value
            else:
                inside[key] = msgspec.Raw(delta)
    kept = [key for key in before if key in after]
    added = [key for key in after if key not in before]
    parts = {
        "put": put,
        "in": inside,
        "drop": [key for key in before if key not in after],
        "order": _moved([*kept, *added], list(after)),
    }
    return _json({name: part for name, part in parts.items() if part})


def _moved(keys: Iterable[str], wanted: Sequence[str]) -> Sequence[str]:
    """Which keys have to go to the end, one after the other, so that `keys` come into the order of `wanted`."""
    place = 0
    for key in keys:
        if place < len(wanted) and key == wanted[place]:
            place += 1
    return wanted[place:]


# -- lists and texts -------------------------------------------------------------------------------


class _DeltaBuilder:
    """Collects steps. What is dropped and what is added at one place become one step each."""

    def __init__(self) -> None:
        self._steps: list[Any] = []
        self._kept = self._dropped = 0
        self._added: list[msgspec.Raw] = []

    def keep(self, count: int) -> None:
        if count and (self._dropped or self._added):
            self._flush()
        self._kept += count

    def replace(self, dropped: int, added: Sequence[msgspec.Raw]) -> None:
        self._dropped += dropped
        self._added += added

    def change(self, delta: bytes) -> None:
        self._flush()
        self._steps.append(msgspec.Raw(delta))

    def steps(self) -> list[Any]:
        self._flush()
        return self._steps

    def _flush(self) -> None:
        self._steps += [step for step in (self._kept, -self._dropped, self._added) if step]
        self._kept, self._dropped, self._added = 0, 0, []


def _diff_list(old: bytes, new: bytes, levels: int) -> bytes | None:
    if _is_crowded(old) or _is_crowded(new):
        return None
    before, after = _list(old), _list(new)
    start = _common(before, after)
    before, after = before[start:], after[start:]
    end = _common(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    script = _DeltaBuilder()
    script.keep(start)
    if len(before) + len(after) > MIDDLE:
        script.replace(len(before), after)
    else:
        _diff_middle(before, after, script, levels)
    script.keep(end)
    return _json({"list": script.steps()})


def _is_crowded(raw: bytes) -> bool:
    # Commas are counted first because that is fast; elements if there are many, because texts have commas too.
    most = len(raw) // SMALL_BYTES
    return len(raw) > LONG_BYTES and raw.count(b",") > most and len(msgspec.json.decode(raw)) > most


def _diff_middle(
    before: list[msgspec.Raw], after: list[msgspec.Raw], script: _DeltaBuilder, levels: int
) -> None:
    """Between elements that both have, those at the same place are taken for old and new form of one."""
    row = column = 0
    for same_row, same_column in [*_anchors(before, after), (len(before), len(after))]:
        old, new = before[row:same_row], after[column:same_column]
        for one, other in zip(old, new, strict=False):
            if one == other:
                script.keep(1)
            elif delta := _diff(bytes(one), bytes(other), levels - 1):
                script.change(delta)
            else:
                script.replace(1, [other])
        script.replace(max(0, len(old) - len(new)), new[len(old) :])
        if same_row < len(before):
            script.keep(1)
        row, column = same_row + 1, same_column + 1


def _anchors(before: list[msgspec.Raw], after: list[msgspec.Raw]) -> list[tuple[int, int]]:
    """Where elements stand that are in both lists exactly once: as many as possible that are in the same order in both."""
    places = _singles(before)
    pairs = [(places[key], column) for key, column in _singles(after).items() if key in places]
    # The longest rising sequence of rows. `rows[n]` is the least row with which one of length n+1 ends, and `last[n]`
    # the pair with that row; `previous` leads from each pair to the one before it.
    rows: list[int] = []
    last: list[int] = []
    previous: list[int] = []
    for index, (row, _) in enumerate(pairs):
        length = bisect(rows, row)
        previous.append(last[length - 1] if length else -1)
        rows[length : length + 1] = [row]
        last[length : length + 1] = [index]
    found: list[tuple[int, int]] = []
    index = last[-1] if last else -1
    while index >= 0:
        found.append(pairs[index])
        index = previous[index]
    return found[::-1]


def _singles(elements: list[msgspec.Raw]) -> dict[bytes, int]:
    """The place of each element that is there once."""
    places: dict[bytes, int] = {}
    for place, element in enumerate(map(bytes, elements)):
        places[element] = place if element not in places else -1
    return {element: place for element, place in places.items() if place >= 0}


def _diff_text(old: bytes, new: bytes, levels: int) -> bytes:
    before, after = _text(old), _text(new)
    start = _common(before, after)
    before, after = before[start:], after[start:]
    end = _common(before[::-1], after[::-1])
    steps = (start, end - len(before), after[: len(after) - end], end)
    return _json({"text": [step for step in steps if step]})


def _common(one: Slices, other: Slices) -> int:
    """How many elements at the beginning are the same. By halves: comparing slices is fast, a loop is not."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_DIFFS: Final = {b"{": _diff_dict, b"[": _diff_list, b'"': _diff_text}


# -- the way back ----------------------------------------------------------------------------------


def patch(old: bytes, deltas: Sequence[bytes]) -> bytes:
    """The JSON value after these deltas, one upon the other. `Undecodable` if `old` is none, else `BadDelta`."""
    value = decode(old)
    for index, delta in enumerate(deltas):
        try:
            value = _patch(value, decode(delta))
        except Undecodable as error:
            raise BadDelta(index, error.what) from None
    return _json(value) if deltas else old


def _patch(value: Any, delta: Any) -> Any:
    """`value` after the delta. It is used up on the way: a long history must not copy a long list at each of its steps."""
    _need(type(delta) is dict)
    if delta.keys() == {"is"}:
        return delta["is"]
    if delta.keys() == {"list"}:
        return _patch_list(value, delta["list"])
    if delta.keys() == {"text"}:
        return _patch_text(value, delta["text"])
    _need(delta.keys() <= {"put", "in", "drop", "order"})
    return _patch_dict(
        value,
        delta.get("put", {}),
        delta.get("in", {}),
        delta.get("drop", []),
        delta.get("order", []),
    )


def _patch_dict(value: Any, put: Any, inside: Any, drop: Any, order: Any) -> Any:
    _need(type(value) is dict and type(put) is dict and type(inside) is dict)
    _need(type(drop) is list and type(order) is list)
    for key, delta in inside.items():
        _need(key in value)
        value[key] = _patch(value[key], delta)
    for key in drop:
        _need(type(key) is str and key in value)
        del value[key]
    value.update(put)
    for key in order:
        _need(type(key) is str and key in value)
        value[key] = value.pop(key)
    return value


def _patch_list(value: Any, steps: Any) -> Any:
    _need(type(value) is list and type(steps) is list)
    place = 0
    for step in steps:
        if type(step) is int:
            _need(0 < abs(step) <= len(value) - place)
            if step > 0:
                place += step
            else:
                del value[place : place - step]
        elif type(step) is list:
            value[place:place] = step
            place += len(step)
        else:
            _need(place < len(value))
            value[place] = _patch(value[place], step)
            place += 1
    _need(place == len(value))
    return value


def _patch_text(value: Any, steps: Any) -> str:
    _need(type(value) is str and type(steps) is list)
    pieces: list[str] = []
    place = 0
    for step in steps:
        if type(step) is int:
            _need(0 < abs(step) <= len(value) - place)
            pieces.append(value[place : place + max(step, 0)])
            place += abs(step)
        else:
            _need(type(step) is str)
            pieces.append(step)
    _need(place == len(value))
    return "".join(pieces)


def _need(fits: bool) -> None:
    if not fits:
        raise Undecodable("it does not say how to change what is there")
