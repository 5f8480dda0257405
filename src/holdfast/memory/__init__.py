"""Long-term memory (`store.memory`): remember, find duplicates, index, search and recall texts."""

import typing as _typing

from .arguments import NewMemory
from .quote import quoted
from .weights import Weights

if _typing.TYPE_CHECKING:
    from . import embedders

__all__ = ["NewMemory", "Weights", "embedders", "quoted"]


def __getattr__(name: str) -> _typing.Any:
    """Import `embedders` on first use."""
    if name != "embedders":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(".embedders", __name__)
