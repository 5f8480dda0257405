"""What users are given shows no content when it is printed for debugging: reprs end up in logs, traces and error reports."""

from __future__ import annotations

from typing import Any, ClassVar


class Quiet:
    """For a struct of which some fields are content: `Entry(version=3, id='…', message=…)`. Look at the field itself to see it."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    _content: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        found = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, _HIDDEN if name in self._content and value is not None else value) for name, value in found]


class _Hidden:
    def __repr__(self) -> str:
        return "…"


_HIDDEN = _Hidden()
