"""Lists and dicts that refuse changes. They are stored and copied as plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn


class ReadOnlyList(list[Any]):
    """A list that raises `TypeError` with a message when it is changed."""

    __slots__ = ("message",)

    def __init__(self, items: Iterable[Any], message: str) -> None:
        super().__init__(items)
        self.message = message

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(self.message)

    append = extend = insert = remove = pop = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return list, (list(self),)


class ReadOnlyDict(dict[str, Any]):
    """A dict that raises `TypeError` with a message when it is changed."""

    __slots__ = ("message",)

    def __init__(self, items: Mapping[str, Any], message: str) -> None:
        super().__init__(items)
        self.message = message

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(self.message)

    update = setdefault = pop = popitem = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return dict, (dict(self),)


def freeze(value: Any, message: str) -> Any:
    """Return a read-only copy of a JSON-native value, including everything in it."""
    if isinstance(value, dict):
        return ReadOnlyDict({key: freeze(item, message) for key, item in value.items()}, message)
    if isinstance(value, list):
        return ReadOnlyList([freeze(item, message) for item in value], message)
    return value
