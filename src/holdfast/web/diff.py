"""Differences between two JSON values, as a list of changed places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec


class Change(msgspec.Struct, frozen=True):
    """One changed place. `path` is like `steps.pay.status` or `plan[2]`.

    Of what was added or removed, empty fields are left out.
    """

    path: str
    what: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


def diff_values(before: Any, after: Any) -> list[Change]:
    """Return the places in which two JSON values differ, in order."""
    return list(_walk(before, after, ""))


def _walk(before: Any, after: Any, path: str) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            place = f"{path}.{name}" if path else str(name)
            yield from _compare(before, after, name in before, name in after, name, place)
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            place = f"{path}[{index}]"
            yield from _compare(
                before, after, index < len(before), index < len(after), index, place
            )
    elif before != after or type(before) is not type(after):
        yield Change(path, "changed", before, after)


def _compare(
    before: Any, after: Any, was: bool, is_now: bool, place: Any, path: str
) -> Iterator[Change]:
    if not was:
        yield Change(path, "added", None, _without_empty(after[place]))
    elif not is_now:
        yield Change(path, "removed", _without_empty(before[place]))
    else:
        yield from _walk(before[place], after[place], path)


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: each for name, each in value.items() if each not in (None, [], {}, "", False)}
