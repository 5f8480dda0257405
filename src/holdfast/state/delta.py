"""Deltas between two JSON values: compute one, and apply it.

Values and deltas are JSON bytes. Parts are compared as bytes and parsed only where they differ. So
1, 1.0 and true are three values, and the order of keys counts.

A delta has one of four forms. The user's keys and values appear only inside the forms, so they
can't be mistaken for one:

    {"is": value}              the new value

    {"put": {key: value, …},   a dict; each part only if needed: keys that are new or replaced,
     "in": {key: delta, …},    keys that changed inside,
     "drop": [key, …],         keys that are gone,
     "order": [key, …]}        keys to move to the end, one after the other

    {"list": [step, …]}        steps: 5 keeps the next five elements, -2 drops the next two,
                               [value, …] inserts elements, a delta changes the next element

    {"text": [step, …]}        the same with code points; "…" inserts text

The steps cover the value exactly, so a delta applies only to the value it was computed from.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ..errors import DataProblem
from ..log.codec import Undecodable, decode

MAX_LEVELS: Final = 32
"""Below this depth a changed part is stored whole, because each level is parsed once more."""
MAX_MIDDLE_ELEMENTS: Final = 10_000
"""Above this number of changed elements, the changed part of a list is replaced as one piece."""
SMALL_ELEMENT_BYTES: Final = 8
LONG_LIST_BYTES: Final = 1024 * 1024
"""A longer list whose elements average fewer than `SMALL_ELEMENT_BYTES` is stored whole: split into
elements it would take a hundred times its size in memory."""

_dict = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_json = msgspec.json.Encoder().encode

Slices = TypeVar("Slices", str, list[msgspec.Raw])


class BadDelta(DataProblem):
    """The delta at `index` is not valid, or does not fit the value. `what` quotes no content."""

    def __init__(self, index: int, what: str) -> None:
        super().__init__(what)
        self.index, self.what = index, what


def diff(old: bytes, new: bytes) -> bytes:
    """Return the delta from one JSON value to another: `patch(old, [diff(old, new)]) == new`."""
    return _diff(old, new, MAX_LEVELS) or b'{"is":%b}' % new


def _diff(old: bytes, new: bytes, levels: int) -> bytes | None:
    """Return a delta that is shorter than the new value, or None."""
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
        "order": _keys_to_move([*kept, *added], list(after)),
    }
    return _json({name: part for name, part in parts.items() if part})


def _keys_to_move(keys: Iterable[str], wanted: Sequence[str]) -> Sequence[str]:
    """Return the keys to move to the end, in turn, to bring `keys` into the order of `wanted`."""
    place = 0
    for key in keys:
        if place < len(wanted) and key == wanted[place]:
            place += 1
    return wanted[place:]


# -- lists and texts -------------------------------------------------------------------------------


class _DeltaBuilder:
    """Collects steps. Adjacent drops and adjacent insertions become one step each."""

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
    start = _count_common(before, after)
    before, after = before[start:], after[start:]
    end = _count_common(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    builder = _DeltaBuilder()
    builder.keep(start)
    if len(before) + len(after) > MAX_MIDDLE_ELEMENTS:
        builder.replace(len(before), after)
    else:
        _diff_middle(before, after, builder, levels)
    builder.keep(end)
    return _json({"list": builder.steps()})


def _is_crowded(raw: bytes) -> bool:
    """Return whether a list is long and has mostly small elements."""
    limit = len(raw) // SMALL_ELEMENT_BYTES
    # Counting commas is fast, but texts have commas too.
    return (
        len(raw) > LONG_LIST_BYTES
        and raw.count(b",") > limit
        and len(msgspec.json.decode(raw)) > limit
    )


def _diff_middle(
    before: list[msgspec.Raw], after: list[msgspec.Raw], builder: _DeltaBuilder, levels: int
) -> None:
    """Diff two lists between their common elements, pairing old and new elements by position."""
    row = column = 0
    for same_row, same_column in [*_anchors(before, after), (len(before), len(after))]:
        old, new = before[row:same_row], after[column:same_column]
        for one, other in zip(old, new, strict=False):
            if one == other:
                builder.keep(1)
            elif delta := _diff(bytes(one), bytes(other), levels - 1):
                builder.change(delta)
            else:
                builder.replace(1, [other])
        builder.replace(max(0, len(old) - len(new)), new[len(old) :])
        if same_row < len(before):
            builder.keep(1)
        row, column = same_row + 1, same_column + 1


def _anchors(before: list[msgspec.Raw], after: list[msgspec.Raw]) -> list[tuple[int, int]]:
    """Return the positions of elements that are in both lists exactly once, in the same order.

    It returns as many as possible: a longest increasing subsequence.
    """
    places = _unique_positions(before)
    pairs = [
        (places[key], column) for key, column in _unique_positions(after).items() if key in places
    ]
    # `rows[n]` is the smallest row that ends an increasing sequence of length n+1, `last[n]` the
    # pair with that row. `previous` leads from each pair to the one before it.
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


def _unique_positions(elements: list[msgspec.Raw]) -> dict[bytes, int]:
    """Return the position of each element that occurs exactly once."""
    places: dict[bytes, int] = {}
    for place, element in enumerate(map(bytes, elements)):
        places[element] = place if element not in places else -1
    return {element: place for element, place in places.items() if place >= 0}


def _diff_text(old: bytes, new: bytes, levels: int) -> bytes:
    before, after = _text(old), _text(new)
    start = _count_common(before, after)
    before, after = before[start:], after[start:]
    end = _count_common(before[::-1], after[::-1])
    steps = (start, end - len(before), after[: len(after) - end], end)
    return _json({"text": [step for step in steps if step]})


def _count_common(one: Slices, other: Slices) -> int:
    """Count the equal elements at the start. Bisection: comparing slices is faster than a loop."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_DIFFS: Final = {b"{": _diff_dict, b"[": _diff_list, b'"': _diff_text}


# -- applying deltas -------------------------------------------------------------------------------


def patch(old: bytes, deltas: Sequence[bytes]) -> bytes:
    """Apply deltas in turn. Raise `Undecodable` if `old` is not JSON, `BadDelta` if one fails."""
    value = decode(old)
    for index, delta in enumerate(deltas):
        try:
            value = _patch(value, decode(delta))
        except Undecodable as error:
            raise BadDelta(index, error.what) from None
    return _json(value) if deltas else old


def _patch(value: Any, delta: Any) -> Any:
    """Apply a delta. `value` may be modified: a long history must not copy a list at each step."""
    _require(type(delta) is dict)
    if delta.keys() == {"is"}:
        return delta["is"]
    if delta.keys() == {"list"}:
        return _patch_list(value, delta["list"])
    if delta.keys() == {"text"}:
        return _patch_text(value, delta["text"])
    _require(delta.keys() <= {"put", "in", "drop", "order"})
    return _patch_dict(
        value,
        delta.get("put", {}),
        delta.get("in", {}),
        delta.get("drop", []),
        delta.get("order", []),
    )


def _patch_dict(value: Any, put: Any, inside: Any, drop: Any, order: Any) -> Any:
    _require(type(value) is dict and type(put) is dict and type(inside) is dict)
    _require(type(drop) is list and type(order) is list)
    for key, delta in inside.items():
        _require(key in value)
        value[key] = _patch(value[key], delta)
    for key in drop:
        _require(type(key) is str and key in value)
        del value[key]
    value.update(put)
    for key in order:
        _require(type(key) is str and key in value)
        value[key] = value.pop(key)
    return value


def _patch_list(value: Any, steps: Any) -> Any:
    _require(type(value) is list and type(steps) is list)
    place = 0
    for step in steps:
        if type(step) is int:
            _require(0 < abs(step) <= len(value) - place)
            if step > 0:
                place += step
            else:
                del value[place : place - step]
        elif type(step) is list:
            value[place:place] = step
            place += len(step)
        else:
            _require(place < len(value))
            value[place] = _patch(value[place], step)
            place += 1
    _require(place == len(value))
    return value


def _patch_text(value: Any, steps: Any) -> str:
    _require(type(value) is str and type(steps) is list)
    pieces: list[str] = []
    place = 0
    for step in steps:
        if type(step) is int:
            _require(0 < abs(step) <= len(value) - place)
            pieces.append(value[place : place + max(step, 0)])
            place += abs(step)
        else:
            _require(type(step) is str)
            pieces.append(step)
    _require(place == len(value))
    return "".join(pieces)


def _require(fits: bool) -> None:
    if not fits:
        raise Undecodable("it does not fit the value that it changes")
