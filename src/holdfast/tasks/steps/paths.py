"""Step paths: the name of a step within its task, unambiguous and readable.

    collect            a step called at the top level
    search#2           the second of that name in its scope, for steps without a key
    pay[order-7]       a step with a key
    collect/search#2   called from inside another step

The special characters (% / # [ ]) are percent-encoded where they are part of a name or a key.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

_ESCAPES = str.maketrans({character: f"%{ord(character):02X}" for character in "%/#[]"})


class StepPath(NamedTuple):
    """A parsed path. `number` counts the steps of a name without a key, from 1."""

    scope: str
    name: str
    key: str | None
    number: int


def keyed_path(scope: str, name: str, key: str) -> str:
    """Return the path of a step with a key."""
    return f"{_prefix(scope)}{name.translate(_ESCAPES)}[{key.translate(_ESCAPES)}]"


def numbered_path(scope: str, name: str, number: int = 1) -> str:
    """Return the path of the n-th step of a name without a key."""
    return nth_path(_prefix(scope) + name.translate(_ESCAPES), number)


def nth_path(path: str, number: int) -> str:
    """Return the path of the n-th step, given the path of the first."""
    return path if number == 1 else f"{path}#{number}"


def _prefix(scope: str) -> str:
    return scope + "/" if scope else ""


_PART = r"[^/#\[\]]+(?:#[1-9][0-9]{0,8}|\[[^/#\[\]]+\])?"
_PATH = re.compile(f"{_PART}(?:/{_PART})*", re.DOTALL)


def is_path(text: str) -> bool:
    """Whether a text is a valid path. A stored one may not be."""
    return _PATH.fullmatch(text) is not None


def parse_path(path: str) -> StepPath:
    """Parse a path."""
    scope, _, last = path.rpartition("/")
    if last.endswith("]"):
        name, _, key = last[:-1].partition("[")
        return StepPath(scope, unquote(name), unquote(key), 1)
    name, _, number = last.partition("#")
    return StepPath(scope, unquote(name), None, int(number or 1))
