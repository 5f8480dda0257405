"""What tests of workers share: a worker that runs beside the test, and a backend that counts what
is asked of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast import Store, Worker
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Description,
    Head,
    Record,
    StreamKey,
    VersionMismatch,
)
from holdfast.errors import CorruptRecord, Unavailable
from holdfast.types import RunResult

PATIENCE_SECONDS = 30.0


class Reports:
    """What a worker says, to be waited for."""

    def __init__(self) -> None:
        self.all: list[RunResult] = []
        self._changed = threading.Condition()

    def __call__(self, ran: RunResult) -> None:
        with self._changed:
            self.all.append(ran)
            self._changed.notify_all()

    def wait_until(self, known: Callable[[list[RunResult]], Any]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: known(self.all), PATIENCE_SECONDS), self.all

    def wait_for(self, id: str, status: str, times: int = 1) -> RunResult:
        """The report that this task has come to this status; if it begins, that it was begun."""
        self.wait_until(
            lambda said: sum((ran.id, ran.status) == (id, status) for ran in said) >= times
        )
        return next(ran for ran in reversed(self.all) if (ran.id, ran.status) == (id, status))


class Beside:
    """A worker in a thread of its own."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.reports = Reports()
        self.worker = Worker(store, **{"poll": 0.01, "report": self.reports, **options})
        self.left: list[str] | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.left = self.worker.run()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> list[str]:
        """Stop it, and what it left in long steps."""
        self.worker.stop()
        return self.ended()

    def ended(self) -> list[str]:
        self._thread.join(PATIENCE_SECONDS)
        assert self.left is not None, "the worker did not end"
        return self.left


@contextmanager
def working(store: Store, **options: Any) -> Iterator[Beside]:
    """A worker on a store, stopped at the end of the block."""
    beside = Beside(store, **options)
    beside.start()
    try:
        yield beside
    finally:
        beside.end()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Until something is so that nobody tells of."""
    never = threading.Event()
    for _ in range(int(PATIENCE_SECONDS * 200)):
        if is_so():
            return
        never.wait(0.005)
    raise AssertionError("it never came to that")


class Watched:
    """A backend that counts calls, and heads and records that it gave; it may be away, or have a
    damaged stream."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.counts: Counter[str] = Counter()
        self.away = False
        self.damaged = ""
        """The id of a task that cannot be read."""
        self.hidden: set[str] = set()
        """The ids of tasks whose appends are not visible yet."""
        self.strange = ""
        """The id of a task whose label is none."""

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._call("append")
        return self.inner.append(batch)

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        self._call("find_append")
        return self.inner.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        self._call("read")
        if stream.id == self.damaged:
            raise CorruptRecord(str(stream), version=1, what="it is damaged")
        found = self.inner.read(stream, after=after, limit=limit, reverse=reverse)
        self.counts["records"] += len(found)
        return found

    def head(self, stream: StreamKey) -> Head | None:
        self._call("head")
        return self.inner.head(stream)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        self._call("heads")
        return self._given(
            self.inner.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit)
        )

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        self._call("due")
        return self._given(
            self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit)
        )

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._call("delete")
        return self.inner.delete(stream, expected=expected)

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()

    def _call(self, name: str) -> None:
        self.counts[name] += 1
        if self.away:
            self.counts["refused"] += 1
            raise Unavailable("the engine is away")

    def _given(self, heads: Sequence[Head]) -> Sequence[Head]:
        heads = [head for head in heads if head.stream.id not in self.hidden]
        self.counts["listed"] += len(heads)
        return [self._strange(head) if head.stream.id == self.strange else head for head in heads]

    @staticmethod
    def _strange(head: Head) -> Head:
        from msgspec.structs import replace

        return replace(head, fields=replace(head.fields, label=b"\xff not a label"))
