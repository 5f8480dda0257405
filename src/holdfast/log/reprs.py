"""Short reprs of results, for notebooks and debuggers.

They contain content, so log lines and error messages never use them.
"""

from __future__ import annotations

import reprlib
from datetime import datetime
from itertools import islice
from typing import Any, ClassVar


class ShortRepr:
    """Gives a struct a repr of its non-empty fields, shortened. `_shown` limits and orders them."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={shorten(value)}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        found = [(name, getattr(self, name)) for name in self._shown or self.__struct_fields__]
        return [
            (name, value)
            for name, value in found
            if value is not None and value not in ((), [], {})
        ]


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlevel = 3

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """Keep the order of the dict, so that a message starts with its role."""
        if level <= 0:
            return "{...}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(x[key], level - 1)}"
            for key in islice(x, self.maxdict)
        ]
        return "{" + ", ".join(pairs + ["..."] * (len(x) > self.maxdict)) + "}"

    def repr_datetime(self, x: datetime, level: int) -> str:
        return x.isoformat(sep=" ", timespec="seconds")


shorten = _Short().repr
