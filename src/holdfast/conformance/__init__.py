"""The contract of a backend, as tests that anyone can run against their own.

You wrote a class with the eight methods of `holdfast.backends.Backend`. To prove it, put this
into a file that pytest collects, and run pytest:

    from pathlib import Path
    from holdfast.backends import Backend
    from holdfast.conformance import DurableBackendConformance
    from mybackend import MyBackend

    class TestMyBackend(DurableBackendConformance):
        def open_backend(self, place: Path) -> Backend:
            return MyBackend(place / "store")

`place` is an empty directory that belongs to one test. A backend that talks to a server derives a
name of its own from it, such as `schema=sha256(str(place).encode()).hexdigest()[:16]`. Opening the same place
twice must give two backends over the same data: that is how the suite restarts a store and
how it lets two processes meet. A backend that keeps nothing beyond its own object, like the
one in memory, subclasses `BackendConformance`, which leaves those tests out.

The last test of the suite needs hypothesis: it makes random sequences of calls and compares
the answers with those of plain lists (`BackendModel`). `model_examples` and `model_steps` on your class
say how many. The suite passes or fails as a whole: a backend is done when nothing is red.

Needs pytest and hypothesis: `pip install pytest hypothesis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "holdfast.conformance runs under pytest: pip install pytest hypothesis"
    ) from error

# Before the imports below, or their asserts would fail without saying what differs.
_THEMES = (
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
    "durable",
)
pytest.register_assert_rewrite(*(f"{__name__}.{theme}" for theme in _THEMES))

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
