"""Long-term memory: `store.memory(namespace)`. Here is what tunes it; the rest is in `holdfast` itself."""

import typing as _typing

from .arguments import NewMemory
from .quote import quoted
from .weights import Weights

if _typing.TYPE_CHECKING:
    from . import embedders

__all__ = ["NewMemory", "Weights", "embedders", "quoted"]


def __getattr__(name: str) -> _typing.Any:
    """Embedders are imported when they are asked for."""
    if name != "embedders":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(".embedders", __name__)
