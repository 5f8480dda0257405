"""Find the tasks that have notifications, and deliver them. Each worker with hooks has a notifier.

A task is found in four ways: this process has just changed it; its queue is due; the process that
last claimed it or delivered for it has died; or a scan, once a minute, finds that it needs
attention although no process with hooks ran it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from ..backends import BillsRequests, Head, HeadSummary, StreamKey, clock
from ..errors import Conflict, DataProblem, Erased, HoldfastError, StoreClosed
from ..log import operations as ops
from ..log import telemetry
from ..log.events import new_append_context
from ..log.leases import is_dead, new_owner
from ..log.operations import Operation
from ..log.operations.stream_ops import delete_stream
from ..log.repeated_warning import RepeatedWarning
from ..tasks.state.events import KIND as TASK_KIND
from ..tasks.state.load import is_leased, task_info
from . import queue as queues
from .delivery import Delivery, HookState
from .find import Notification, find_notifications
from .hooks import Hook, check_hooks

if TYPE_CHECKING:
    from .._store import Store
    from ..log.log import Log

POLL_SECONDS: Final = 1.0
"""How often to look for queues that are due."""
DEAD_OWNER_SCAN_SECONDS: Final = 2.0
"""How often to check whether processes on this machine have died."""
SCAN_SECONDS: Final = 60.0
"""How often to look at the tasks that need attention: other processes may have no hooks."""
BILLED_SCAN_SECONDS: Final = 900.0
"""The same, if each request costs money."""
SCAN_BATCH: Final = 50
"""How many tasks of a scan to check before other notifications get their turn."""
SCANNED_STATUSES: Final = ("stuck", "failed", "suspended", "retrying", "pending")
CLOCK_SKEW_SECONDS: Final = 5.0
"""How far the clocks of two machines may differ."""
UNREADABLE_SECONDS: Final = 300.0
"""How long to leave a task alone that cannot be read."""
STOP_SECONDS: Final = 5.0
"""How long a stopping worker waits for its last delivery."""
PAGE_QUEUES: Final = 100

T = TypeVar("T")

logger = logging.getLogger("holdfast")


class Notifier:
    """Delivers the notifications of a tenant's tasks to some hooks."""

    def __init__(self, log: Log, tenant: str, hooks: Sequence[Hook]) -> None:
        self._log, self._tenant = log, tenant
        self._hooks = [HookState(hook) for hook in hooks]
        self._owner = new_owner()
        self._registered = False
        self._billed = isinstance(log.backend, BillsRequests)
        self._poll = log.backend.min_poll_seconds if self._billed else POLL_SECONDS  # type: ignore[attr-defined]  # BillsRequests
        self._seen: dict[str, tuple[bytes, int]] = {}
        """Positions of tasks that were settled, so that a scan need not look at them again."""
        self._unreadable: dict[str, float] = {}
        """Tasks that cannot be read, and until when to leave them alone."""
        self._scan: Iterator[HeadSummary] = iter(())
        self._scan_at = self._dead_owner_scan_at = 0.0
        self._clock_offset = 0.0
        self._stopping = threading.Event()
        self._changed: SimpleQueue[str | None] = SimpleQueue()
        self._failures = RepeatedWarning("the store can be searched for notifications again")
        self._thread: threading.Thread | None = None

    # -- in a worker -----------------------------------------------------------------------------

    def start(self) -> None:
        """Deliver in a thread of its own, and watch the tasks that this process claims."""
        telemetry.listeners.append(self._note_event)
        self._log.claim_hooks.append(self._mark_claimed)
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="holdfast-notify", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Deliver what this process's tasks have caused, and stop. Other workers do the rest."""
        self._stopping.set()
        self._changed.put(None)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        telemetry.listeners.remove(self._note_event)
        self._log.claim_hooks.remove(self._mark_claimed)

    def _note_event(self, event: telemetry.StoreEvent) -> None:
        """Look at a task whose status this process has just changed."""
        if not isinstance(event, telemetry.Appended) or event.request.fields is None:
            return
        stream, status = event.request.stream, event.request.fields.status
        if stream.tenant == self._tenant and stream.kind == TASK_KIND and status != "running":
            self._changed.put(stream.id)

    def _mark_claimed(self, task: StreamKey, incarnation: bytes) -> Operation[None]:
        if task.tenant == self._tenant:
            stamp = new_append_context()
            yield from queues.mark_claimed(task, incarnation, self._owner, stamp)

    def _run(self) -> None:
        changed: list[str] = []
        while True:
            stopping = self._stopping.is_set()
            try:
                self._register_hooks()
                while changed:
                    self._deliver(changed[0])
                    del changed[0]  # not before: if the store is unreachable, it is tried again
                if stopping:
                    return
                self._deliver_found(SCAN_BATCH)
                if self._failures.active:
                    self._failures.note_success()
            except StoreClosed:
                return
            except HoldfastError as error:
                if stopping:
                    return
                self._seen.clear()  # the task that could not be looked at may be among them
                self._failures.note_failure(
                    f"cannot search for notifications ({type(error).__name__}); retrying"
                )
            except Exception as error:  # a bug of ours must not end all later deliveries
                logger.exception("cannot deliver notifications (%s)", type(error).__name__)
            changed = list(dict.fromkeys([*changed, *self._wait()]))

    def _wait(self) -> list[str]:
        """Wait for tasks that have changed, at most until the next poll. Return them."""
        changed: dict[str, None] = {}
        name = clock.wait_for_message(self._changed, self._poll)
        while True:
            if name is not None:
                changed[name] = None
            if self._changed.empty():
                return list(changed)
            name = self._changed.get()

    # -- finding tasks ---------------------------------------------------------------------------

    def deliver_due(self) -> int:
        """Deliver everything that is due now. Return how many notifications were delivered."""
        self._register_hooks()
        return self._deliver_found(None)

    def _deliver_found(self, limit: int | None) -> int:
        """Deliver what is due. Look at `limit` more tasks of a scan, None for all."""
        count = 0
        now = clock.monotonic()
        if now >= self._dead_owner_scan_at:
            self._dead_owner_scan_at = now + max(DEAD_OWNER_SCAN_SECONDS, self._poll)
            for task in list(self._list_abandoned()):
                count += self._deliver(task)
        for task in list(self._list_due()):
            count += self._deliver(task)
        if now >= self._scan_at:
            self._scan_at = now + (BILLED_SCAN_SECONDS if self._billed else SCAN_SECONDS)
            self._scan = self._list_tasks()
        for head in islice(self._scan, limit):
            count += self._deliver(head.stream.id)
        return count

    def _register_hooks(self) -> None:
        """Find out when the hooks were registered: they get nothing older."""
        if not self._registered:
            names, stamp = [hook.name for hook in self._hooks], new_append_context()
            since = self._run_op(lambda: queues.register_hooks(self._tenant, names, stamp))
            for hook in self._hooks:
                hook.since = since[hook.name] - CLOCK_SKEW_SECONDS
            self._registered = True

    def _list_due(self) -> Iterator[str]:
        before, after = clock.time() + self._clock_offset + CLOCK_SKEW_SECONDS, None
        while page := ops.run(
            self._log,
            ops.due(self._tenant, queues.KIND, before=before, after=after, limit=PAGE_QUEUES),
        ):
            self._clock_offset = page[-1].now - clock.time()
            for head in page:
                after = (head.fields.due or 0.0, head.stream.id)
                if after[0] <= head.now:
                    yield head.stream.id

    def _list_abandoned(self) -> Iterator[str]:
        """Yield the tasks that a dead process of this machine ran, or delivered for."""
        for status in (queues.WATCHING, queues.DELIVERING):
            for head in self._list_heads(queues.KIND, status):
                if head.fields.owner is not None and is_dead(head.fields.owner):
                    yield head.stream.id

    def _list_tasks(self) -> Iterator[HeadSummary]:
        """Yield the tasks that may need attention and have changed since the last scan."""
        seen, self._seen = self._seen, {}
        for status in SCANNED_STATUSES:
            for head in self._list_heads(TASK_KIND, status):
                if status == "pending" and not _is_in_doubt(head):
                    continue  # nothing else needs attention in a pending task
                if isinstance(head, Head):
                    position = (head.incarnation, head.version)
                    self._seen[head.stream.id] = position
                    if seen.get(head.stream.id) == position:
                        continue
                yield head

    def _list_heads(self, kind: str, status: str) -> Iterator[HeadSummary]:
        after = ""
        while page := ops.run(self._log, ops.heads(self._tenant, kind, status=status, after=after)):
            after = page[-1].stream.id
            yield from page

    # -- one task --------------------------------------------------------------------------------

    def _deliver(self, id: str) -> int:
        """Deliver what the hooks have not received of a task. Return how many deliveries."""
        if self._unreadable and self._unreadable.get(id, -math.inf) > clock.monotonic():
            return 0
        task = StreamKey(self._tenant, TASK_KIND, id)
        try:
            try:
                return self._deliver_task(task)
            except Erased:
                self._drop_queue(task)
        except Conflict:
            pass  # another worker delivers
        except DataProblem as error:  # a damaged task must not stop the others
            if id not in self._unreadable:
                logger.warning("cannot read %s for notifications (%s)", task, type(error).__name__)
            self._unreadable[id] = clock.monotonic() + UNREADABLE_SECONDS
        return 0

    def _deliver_task(self, task: StreamKey) -> int:
        count = 0
        while True:
            head = self._run_op(lambda: ops.head(task))
            if head is None:
                self._drop_queue(task)
                return count
            incarnation = head.incarnation.hex()
            queue = self._run_op(lambda: queues.load_queue(task, incarnation))  # noqa: B023  # called now
            delivery = Delivery(self._log, self._owner, self._hooks, task, queue, head.now)
            if delivery.is_elsewhere() or delivery.is_done(head.version):
                return count
            after = delivery.first_version() - 1
            findings = self._run_op(lambda: find_notifications(task, incarnation, after))  # noqa: B023
            count += delivery.deliver(findings)
            # Before the queue is settled: a later claim marks the queue again, and the queue is
            # then at another version than the one that is settled here.
            latest = self._run_op(lambda: ops.head(task))
            still_runs = latest is not None and is_leased(latest)
            if latest is None or (latest.version > findings.version and not still_runs):
                continue
            try:
                delivery.settle(still_runs=still_runs)
                return count
            except Conflict:
                continue

    def _drop_queue(self, task: StreamKey) -> None:
        """Delete the queue of a task that was deleted or erased."""
        key, stamp = queues.queue_key(task), new_append_context()
        if self._run_op(lambda: ops.head(key)) is not None:
            self._run_op(lambda: delete_stream(key, stamp, "its task is gone"))

    def _run_op(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, make)


def _is_in_doubt(head: HeadSummary) -> bool:
    try:
        return task_info(head).in_doubt
    except DataProblem:  # a damaged head must not hide the others
        return False


def deliver_due(store: Store, hooks: Sequence[Hook | Callable[[Notification], object]]) -> int:
    """Deliver the notifications that are due now, once, without a worker.

    For programs that run tasks without a worker, such as a cron job that calls `store.run_due()`.
    What cannot be delivered stays in the queue for the next call.

    Args:
        store: The store with the tasks.
        hooks: Where to deliver.

    Returns:
        The number of notifications that were delivered.

    Raises:
        ValueError: Two hooks have the same name.

    Example:
        >>> store.run_due()
        >>> notify.deliver_due(store, [notify.Webhook("https://ops.example/hook")])
    """
    return Notifier(store._log, store.tenant, check_hooks(hooks)).deliver_due()
