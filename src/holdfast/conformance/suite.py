"""The two test classes that the author of a backend subclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..backends import Backend
from .append import AppendTests
from .batches import BatchTests
from .bodies import BodyTests
from .check import CheckTests
from .deletion import DeletionTests
from .durable import DurableTests
from .ids import IdTests
from .lifecycle import LifecycleTests
from .listing import ListingTests
from .names import NameTests
from .racing import RacingTests
from .reading import ReadingTests


class BackendConformance(
    AppendTests,
    BatchTests,
    IdTests,
    ReadingTests,
    ListingTests,
    NameTests,
    BodyTests,
    DeletionTests,
    RacingTests,
    LifecycleTests,
    CheckTests,
):
    """The tests that every backend must pass. Override `open_backend`."""

    model_examples = 60
    model_steps = 30
    many_streams = 1200
    writes_beside_readers = 1500
    """How much work the larger tests do. Lower these numbers for a slow server."""
    _durable = False

    def open_backend(self, place: Path) -> Backend:
        """Return a backend for the data at `place`, a directory that is empty the first time."""
        raise NotImplementedError("override open_backend(self, place) and return your backend")

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    @pytest.fixture
    def backend(self, place: Path) -> Iterator[Backend]:
        backend = self.open_backend(place)
        yield backend
        backend.close()

    def test_any_sequence_of_calls_answers_like_plain_lists(self) -> None:
        from .model import check_against_model

        check_against_model(
            self.open_backend,
            durable=self._durable,
            examples=self.model_examples,
            steps=self.model_steps,
        )


class DurableBackendConformance(BackendConformance, DurableTests):
    """The tests for a backend with persistent data, including two backends on the same data."""

    _durable = True

    @pytest.fixture
    def open_again(self, place: Path, backend: Backend) -> Iterator[Callable[[], Backend]]:
        """Return a function that opens one more backend with the same data."""
        opened: list[Backend] = []

        def open_again() -> Backend:
            opened.append(self.open_backend(place))
            return opened[-1]

        yield open_again
        for one in opened:
            one.close()
