"""Long-term memory: `store.memory(namespace)`. Here is what tunes it; the rest is in `holdfast` itself."""

from ._arguments import NewMemory
from ._weights import Weights

__all__ = ["NewMemory", "Weights"]
