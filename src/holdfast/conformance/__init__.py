"""The conformance suite: pytest tests of the backend contract, for any backend.

To test a class with the nine methods of `holdfast.backends.Backend`, put this into a file that
pytest collects, and run pytest:

    from pathlib import Path
    from holdfast.backends import Backend
    from holdfast.conformance import DurableBackendConformance
    from mybackend import MyBackend

    class TestMyBackend(DurableBackendConformance):
        def open_backend(self, place: Path) -> Backend:
            return MyBackend(place / "store")

`place` is an empty directory, one for each test. A backend for a server derives a name from it,
such as `schema=sha256(str(place).encode()).hexdigest()[:16]`. Opening a place twice must return
two backends with the same data: the suite uses this to restart a store, and to let two processes
use the same store. A backend without persistent data, like the memory backend, subclasses
`BackendConformance`, which leaves those tests out.

The last test of the suite needs hypothesis: it runs random sequences of calls and compares the
answers with a model made of plain lists (`BackendModel`). Set `model_examples` and `model_steps` on
your class to change the number of sequences and their length. A backend conforms if all tests pass.

Needs pytest and hypothesis: `pip install pytest hypothesis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "holdfast.conformance needs pytest: pip install pytest hypothesis"
    ) from error

# Before the imports below, so that failing asserts in them show what differs.
_MODULES = (
    "append",
    "batches",
    "ids",
    "reading",
    "listing",
    "names",
    "bodies",
    "deletion",
    "racing",
    "lifecycle",
    "check",
    "durable",
)
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from .suite import BackendConformance, DurableBackendConformance  # noqa: E402 - after the call above

if TYPE_CHECKING:
    from .model import BackendModel

__all__ = ["BackendConformance", "BackendModel", "DurableBackendConformance"]


def __getattr__(name: str) -> Any:
    if name != "BackendModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Late, so that the rest of the suite can be imported without hypothesis.
    from .model import BackendModel

    return BackendModel
