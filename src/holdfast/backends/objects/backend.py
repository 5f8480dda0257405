"""The backend that DynamoDB and S3 share: streams on a store of named bytes.

The commit of an append is one object, created under a free name. docs/explanation/objects.md
explains how that makes streams, and why it is safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal

import msgspec

from ...errors import HoldfastError, OutcomeUnknown, StoreClosed, Unavailable
from ..fork import Forkable, register_forkable
from ..interface import (
    Append,
    AppendResult,
    BackendProblem,
    Cursor,
    Description,
    Head,
    Record,
    StreamKey,
    VersionMismatch,
    find_first_head,
)
from .append import ObjectWriter
from .check import ObjectsCheck
from .discard import discard
from .list import ObjectLister
from .read import ObjectReader
from .request_pool import RequestPool
from .space import Space
from .streams import ObjectStreams

WIDTH: Final = 16
"""The maximum number of concurrent requests."""

Answer = AppendResult | VersionMismatch | HoldfastError


class ObjectsBackend(Forkable):
    """Streams on a `Space`."""

    min_poll_seconds = 2.0

    def __init__(self, space: Space, *, width: int = WIDTH) -> None:
        self._space = space
        self._pool = RequestPool(width)
        self._streams = ObjectStreams(space, self._pool)
        self._writer, self._reader = ObjectWriter(self._streams), ObjectReader(self._streams)
        self._lister = ObjectLister(self._streams)
        self._check = ObjectsCheck(self._streams)
        self._changed = threading.Condition()
        self._calls = 0
        self._closed = self._forking = False
        register_forkable(self)

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        with self._enter_call():
            for append in batch:
                self._writer.check_size(append)
            streams: dict[StreamKey, list[int]] = {}
            for place, append in enumerate(batch):
                streams.setdefault(append.stream, []).append(place)
            answers: dict[int, Answer] = {}
            works = [
                partial(self._append, [batch[at] for at in places]) for places in streams.values()
            ]
            for places, some in zip(streams.values(), self._pool.run_all(works), strict=True):
                answers.update(zip(places, some, strict=True))
            return _collect_answers([answers[place] for place in range(len(batch))])

    def _append(self, members: Sequence[Append]) -> list[Answer]:
        """Append to one stream, in order. Stop at the first error: later members build on it."""
        answers: list[Answer] = []
        for member in members:
            try:
                answers.append(self._writer.append(member))
            except HoldfastError as error:
                return answers + [error] * (len(members) - len(answers))
        return answers

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        with self._enter_call(), _as_read():
            return self._writer.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        with self._enter_call(), _as_read():
            return self._reader.read(stream, after, limit, reverse)

    def head(self, stream: StreamKey) -> Head | None:
        with self._enter_call(), _as_read():
            return self._streams.read_head(stream)

    def first_head(self, streams: Sequence[StreamKey]) -> Head | None:
        with self._enter_call(), _as_read():
            return find_first_head(self._streams.read_head, streams)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        with self._enter_call(), _as_read():
            return self._lister.heads(tenant, kind, status, after, limit)

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        with self._enter_call(), _as_read():
            return self._lister.due(tenant, kind, before, after, limit)

    def list_damaged(self, tenant: str, kind: str) -> Sequence[StreamKey]:
        with self._enter_call(), _as_read():
            return self._lister.list_damaged(tenant, kind)

    def list_scopes(self) -> Sequence[tuple[str, str]]:
        with self._enter_call(), _as_read():
            return self._check.list_scopes()

    def check(self) -> Iterator[BackendProblem]:
        problems = self._check.check()
        while True:
            with self._enter_call(), _as_read():  # ends before the caller gets the problem
                problem = next(problems, None)
            if problem is None:
                return
            yield problem

    def rebuild(self) -> int:
        with self._enter_call():
            return self._check.rebuild()

    def discard(self, stream: StreamKey) -> bool:
        """Delete a damaged stream; return False if it is not damaged or does not exist.

        Unlike `delete`, this compares no head, because the stream has none that can be read.
        """
        with self._enter_call():
            return discard(self._streams, stream)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        with self._enter_call():
            return self._writer.delete(stream, expected)

    def index_locations(self) -> Sequence[Literal["cache"]]:
        return ["cache"]

    def describe(self) -> Description:
        with self._enter_call():
            description = self._space.describe()
        caches = {"positions in the store": self._streams.cache_size()}
        return msgspec.structs.replace(description, caches=caches)

    def close(self) -> None:
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.wait_for(lambda: self._calls == 0)
        if first:
            self._pool.stop()
            self._space.close()

    def before_fork(self) -> None:
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: self._calls == 0)
        self._pool.stop()

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self._changed = threading.Condition()
        self._forking = False
        if not self._closed:
            self._space.reset_after_fork()

    @contextmanager
    def _enter_call(self) -> Iterator[None]:
        """Make `close` and a fork wait until this call has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._closed:
                raise StoreClosed("the store is closed")
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()


@contextmanager
def _as_read() -> Iterator[None]:
    """Raise `Unavailable` if a read tried to finish a deletion and the outcome is unknown."""
    try:
        yield
    except OutcomeUnknown as error:
        raise Unavailable("the store did not answer; retry") from error


def _collect_answers(answers: Sequence[Answer]) -> Sequence[AppendResult | VersionMismatch]:
    """Return the answers of a batch, or raise the error that describes the whole batch.

    An error other than `OutcomeUnknown` means that no member was stored.
    """
    errors = [answer for answer in answers if isinstance(answer, HoldfastError)]
    if not errors:
        return [answer for answer in answers if not isinstance(answer, HoldfastError)]
    for error in errors:
        if isinstance(error, OutcomeUnknown):
            raise error
    if any(isinstance(answer, AppendResult) and not answer.duplicate for answer in answers):
        raise OutcomeUnknown(
            "part of the batch was stored, and the store rejected the rest"
        ) from errors[0]
    raise errors[0]
