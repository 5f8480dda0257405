"""The registry of workers: who runs tasks, where, with what code, and what each is doing.

Each worker has its own stream, of kind `worker`. The head has everything that a listing shows, so a
listing reads no records. A heartbeat appends one small record. The stream is deleted when the
worker stops, and recreated after `MAX_BEATS` records, so that it stays short. These streams aren't
part of the data: they are neither copied nor anchored, and their kind isn't in `log.ids.KINDS`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast

import msgspec

from ..backends import BillsRequests, HeadFields, HeadSummary, StreamKey, clock
from ..backends.clock import to_datetime
from ..errors import HoldfastError
from ..log import operations as ops
from ..log.events import NewEvent, new_append_context
from ..log.head_fields import is_expired
from ..log.leases import is_dead, new_owner
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import append_events
from ..log.reprs import ShortRepr

KIND: Final = "worker"
BEAT: Final = "worker.seen"
BEAT_SECONDS: Final = 15.0
"""How often a worker writes that it is alive."""
BILLED_BEAT_SECONDS: Final = 60.0
"""The same, where each request costs money."""
BEATS_UNTIL_LOST: Final = 3
KEEP_SECONDS: Final = 86_400.0
"""How long a worker that no longer writes is shown as lost."""
MAX_BEATS: Final = 100
"""A worker's stream is recreated after this many records."""
MAX_SHOWN_TASKS: Final = 50
MAX_SHOWN_AGENTS: Final = 100

logger = logging.getLogger("holdfast")


class WorkerTask(ShortRepr, msgspec.Struct, frozen=True):
    """A task that a worker is running."""

    id: str
    agent: str
    started_at: datetime


class WorkerInfo(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as of its last heartbeat.

    `status` is "draining" if it takes no more tasks and waits for the running ones, and "lost" if
    its process is known to be dead or its heartbeats have stopped.
    """

    id: str
    status: Literal["working", "draining", "lost"]
    host: str
    pid: int
    agents: list[str]
    slots: int
    """How many tasks it runs at once."""
    running: list[WorkerTask]
    """The tasks that it runs, the oldest first; at most 50."""
    started_at: datetime
    heartbeat_at: datetime
    version: str
    """The version of Holdfast that it runs."""
    code_version: str | None
    """The version of the application, as it was given to the worker."""


class _RunLabel(msgspec.Struct, frozen=True):
    id: str
    agent: str
    since: float


class _WorkerLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the head of a worker's stream says about it. Times are those of the database."""

    host: str
    pid: int
    version: str
    slots: int
    started_at: float
    beat_at: float
    every: float
    agents: list[str] = []
    running: list[_RunLabel] = []
    code: str | None = None


_decode_label = msgspec.json.Decoder(_WorkerLabel).decode


class Activity(msgspec.Struct, frozen=True):
    """What a worker is doing: its tasks, with agent and start, and whether it drains."""

    running: Sequence[tuple[str, str, float]]
    draining: bool


class WorkerRegistration:
    """Keeps a worker's entry up to date, from a thread, inside a `with` block."""

    def __init__(
        self,
        log: Log,
        tenant: str,
        *,
        agents: Sequence[str],
        slots: int,
        code_version: str | None,
        look: Callable[[], Activity],
    ) -> None:
        from .. import __version__

        self._log, self._tenant, self._look = log, tenant, look
        self.id = new_owner()
        self._key = StreamKey(tenant, KIND, self.id)
        billed = isinstance(log.backend, BillsRequests)
        self._every = BILLED_BEAT_SECONDS if billed else BEAT_SECONDS
        self._label = _WorkerLabel(
            host=self.id.split("/")[0],
            pid=os.getpid(),
            version=__version__,
            slots=slots,
            started_at=clock.time(),
            beat_at=0.0,
            every=self._every,
            agents=sorted(agents)[:MAX_SHOWN_AGENTS],
            code=code_version,
        )
        self._clock_offset = 0.0
        self._beats = 0
        self._closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="holdfast-worker-registry", daemon=True
        )

    def __enter__(self) -> WorkerRegistration:
        self._attempt(lambda: ops.run(self._log, delete_expired(self._tenant)))
        self._attempt(self._beat)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._attempt(lambda: ops.run(self._log, _delete(self._key)))

    def beat_soon(self) -> None:
        """Write a heartbeat now, because something has changed. Not for signal handlers."""
        self._wake.set()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._every)
            self._wake.clear()
            if not self._closing:
                self._attempt(self._beat)

    def _attempt(self, do: Callable[[], Any]) -> None:
        """Call it, and only log its errors: a worker also works without being registered."""
        try:
            do()
        except HoldfastError as error:
            logger.info("could not update the entry of this worker (%s)", type(error).__name__)

    def _beat(self) -> None:
        activity, now = self._look(), clock.time() + self._clock_offset
        running = sorted(activity.running, key=lambda run: run[2])[:MAX_SHOWN_TASKS]
        label = msgspec.structs.replace(
            self._label,
            started_at=self._label.started_at + self._clock_offset,
            beat_at=now,
            running=[_RunLabel(*run) for run in running],
        )
        fields = HeadFields(
            "draining" if activity.draining else "working",
            msgspec.json.encode(label),
            None,
            None,
            now + KEEP_SECONDS,
        )
        stamp = new_append_context()
        if self._beats >= MAX_BEATS:
            ops.run(self._log, _delete(self._key))
            self._beats = 0
        answer = ops.run(
            self._log, append_events(self._key, [NewEvent(BEAT, b"{}")], stamp, fields=fields)
        )
        self._beats += 1
        if answer.now:
            self._clock_offset = answer.now - clock.time()


def _delete(key: StreamKey) -> Operation[None]:
    """Delete a worker's stream. Unlike the deletion of data, this is not audited."""
    head = yield from ops.head(key, damaged=True)
    if head is not None:
        yield from ops.delete(key, expected=head)


def delete_expired(tenant: str) -> Operation[None]:
    """Delete the entries of workers that were lost long ago."""
    after = ""
    while page := (yield from ops.heads(tenant, KIND, after=after, damaged=True)):
        for head in page:
            if is_expired(head):
                yield from _delete(head.stream)
        after = page[-1].stream.id


def list_workers(tenant: str, after: str) -> Operation[tuple[list[WorkerInfo], str]]:
    """Return a page of the registered workers, and the id to continue after."""
    page = yield from ops.heads(tenant, KIND, after=after)
    found = [
        info for head in page if not is_expired(head) and (info := _read_worker(head)) is not None
    ]
    return found, page[-1].stream.id if page else ""


def _read_worker(head: HeadSummary) -> WorkerInfo | None:
    try:
        label = _decode_label(head.fields.label or b"")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # a newer version of Holdfast wrote it, or it is damaged
    late = head.now - label.beat_at > BEATS_UNTIL_LOST * label.every
    status = "lost" if late or is_dead(head.stream.id) else head.fields.status
    return WorkerInfo(
        id=head.stream.id,
        status=cast("Any", status),
        host=label.host,
        pid=label.pid,
        agents=label.agents,
        slots=label.slots,
        running=[WorkerTask(run.id, run.agent, to_datetime(run.since)) for run in label.running],
        started_at=to_datetime(label.started_at),
        heartbeat_at=to_datetime(label.beat_at),
        version=label.version,
        code_version=label.code,
    )
