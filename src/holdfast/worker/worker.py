"""Workers: find due tasks and run them. Any number may share a store, without a coordinator.

A task is due when it was submitted, when the answer, signal or time it waits for has come, when its
retry is due, and when its lease owner is gone. Workers poll for due tasks and claim them; the first
claim wins, and the other workers skip the task. The store is all they share.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import BillsRequests, HeadSummary, StreamKey, SupportsWriteCheck, clock
from ..errors import (
    AccessDenied,
    HoldfastError,
    LeaseHeld,
    LeaseLost,
    ReadOnly,
    Retryable,
    StoreClosed,
    Suspended,
    TaskEnded,
)
from ..log.validation import check_int, check_seconds
from ..tasks import AsyncTask, Task
from ..tasks.agents.declare import Agent, registered_agents
from ..tasks.agents.run import run_agent, run_agent_async
from ..tasks.base import MAX_CRASHES, TaskBase
from ..tasks.run.claim import TASK_TTL, check_open_options
from ..tasks.state.events import KIND
from ..tasks.state.load import describe_waits, task_info
from ..tasks.state.view import Status, TaskInfo
from .loop_thread import LoopThread
from .polling import CLOCK_RESOLUTION_SECONDS, FULL_SCAN_SECONDS, POLL_SECONDS, DueTaskScanner

if TYPE_CHECKING:
    from .._store import Store
    from ..tasks.run.session import Session

GRACE_SECONDS: Final = 30.0
ISOLATION_DEADLINE: Final = 60.0
"""How long, in seconds, a task that may kill the process waits for a moment to run alone."""
JOIN_SECONDS: Final = 0.2
FAILOVER_SECONDS: Final = 60.0
"""How long a failover may leave the server read-only."""

logger = logging.getLogger("holdfast")


class RunResult(msgspec.Struct, frozen=True):
    """A run of a task by a worker: the task's status after it, and a description of its waits.

    `error` is the type of the exception that ended the run, if one did.
    """

    id: str
    agent: str
    status: Status
    seconds: float
    error: str | None = None
    waits_for: tuple[str, ...] = ()


class _ActiveRun:
    """A task that this worker is running."""

    def __init__(self, info: TaskInfo) -> None:
        self.info, self.agent = info, registered_agents[info.agent or ""]
        self.task: AsyncTask | Task | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may kill the process: its last runs crashed, and this one has no progress."""
        return self.info.crashes > 0 and (self.session is None or self.session.state.crashes > 0)

    @property
    def session(self) -> Session | None:
        return self.task._session if self.task is not None else None


class Worker:
    """Runs the due tasks of the registered agents, several at once. `holdfast worker` uses it.

    Synchronous agents run in threads, async ones in one event loop. `run()` returns after `stop()`,
    which a signal handler or another thread may call: the worker claims no more tasks, and running
    tasks stop at their next step and are released to other workers.

    Args:
        store: The store whose tasks to run.
        concurrency: Maximum number of tasks to run at once.
        poll: How often to poll for due tasks, in seconds or as a timedelta.
        grace: How long `run` waits for long steps after `stop`. It then returns the ids of the
            tasks that are still in one; other workers take them over when this process has ended.
        crashes: Number of crashes in a row after which a task is left as stuck.
        report: Called with a `RunResult` when a run starts (status "running") and when it ends.
            Without it, failures are logged as warnings.

    Returns:
        A worker; `run()` starts it.

    Raises:
        ValueError: An argument is out of range.

        `run` raises `AccessDenied`, or `ReadOnly` after a minute, if it cannot write to the store.

    Example:
        >>> worker = holdfast.Worker(store, concurrency=8)
        >>> signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        >>> worker.run()
    """

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = 4,
        poll: float | timedelta = POLL_SECONDS,
        grace: float | timedelta = GRACE_SECONDS,
        crashes: int = MAX_CRASHES,
        report: Callable[[RunResult], object] | None = None,
    ) -> None:
        self._log, self._tenant = store._log, store.tenant
        self._concurrency = check_int(concurrency, "concurrency", 1)
        self._crashes = check_int(crashes, "crashes", 1)
        self._grace = check_seconds(grace, "grace")
        self._report = report
        self._running: dict[str, _ActiveRun] = {}
        self._skipped_until: dict[str, float] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that has it
        # Not an Event: a signal handler may call `stop` while this thread is in a method of it.
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._write_error: HoldfastError | None = None
        """Why this worker cannot write to the store, and stops."""
        self._read_only = (-math.inf, -math.inf)
        """When the store was first and last seen to be read-only."""
        self._loop = LoopThread()
        self._scanner = DueTaskScanner(
            self._log, self._tenant, self._can_start, max(check_seconds(poll, "poll"), 0.01)
        )

    @property
    def agents(self) -> list[str]:
        """The names of the agents that are registered in this process."""
        return sorted(registered_agents)

    # -- polling -----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run due tasks until `stop()`. Return the ids of those in a long step after `grace`."""
        failing = writable = False
        while not self._stopping:
            try:
                if not writable:
                    self._check_writable()
                writable = True
                for head in self._scanner.scan(self._concurrency - len(self._running)):
                    self._start(head)
                failing = False
            except StoreClosed:
                raise
            except HoldfastError as error:
                if isinstance(error, AccessDenied | ReadOnly):
                    self._handle_write_error(error)
                if not failing and self._write_error is None:  # once per outage, not per poll
                    logger.warning("cannot poll for due tasks (%s); retrying", type(error).__name__)
                failing = True
            self._wait(self._scanner.pause())
        unfinished = self._drain()
        if self._write_error is not None:
            raise self._write_error
        return unfinished

    def _check_writable(self) -> None:
        """Raise at the start, before there is a task to run, if a privilege is missing."""
        if isinstance(self._log.backend, SupportsWriteCheck):
            self._log.backend.check_writable()

    def _handle_write_error(self, error: AccessDenied | ReadOnly, *, wait: bool = True) -> None:
        """Stop, unless a failover is likely: a standby becomes writable once it is promoted."""
        now = clock.monotonic()
        since, last = self._read_only
        # A task that cannot be claimed is skipped until the next full scan.
        if now - last > FAILOVER_SECONDS + FULL_SCAN_SECONDS:
            since = now
        self._read_only = since, now
        if isinstance(error, AccessDenied) or not wait or now - since > FAILOVER_SECONDS:
            self._write_error = self._write_error or error
            self.stop()

    def _wait(self, seconds: float) -> None:
        """Wait until a run ends or `stop` is called, at most `seconds`."""
        try:
            self._changed.get(timeout=seconds)
            while True:
                self._changed.get_nowait()
        except Empty:
            pass

    def stop(self) -> None:
        """Claim no more tasks, and stop the running ones at their next step."""
        self._stopping = True
        self._changed.put(None)

    def run_due(self, limit: int | None) -> list[RunResult]:
        """Run the tasks that are due now, one after the other, in this thread.

        If the database clock has a resolution of a second, a task that another process has just
        submitted may seem to be due in a moment. Wait for it once.
        """
        results: list[RunResult] = []
        waited = False
        try:
            while limit is None or len(results) < limit:
                result, reported = None, len(self._scanner.reported)
                for head in self._scanner.scan(1):
                    result = self._run_task(_ActiveRun(task_info(head)), in_caller=True)
                    if self._write_error is not None:
                        raise self._write_error
                    if result is not None:
                        results.append(result)
                        break
                # A parent whose child was reported is due by now, so scan again.
                if result is None and len(self._scanner.reported) == reported:
                    next_in = self._scanner.next_in
                    if (
                        next_in is None
                        or waited
                        or not isinstance(self._log.backend, BillsRequests)
                    ):
                        break
                    waited = True
                    clock.sleep(min(next_in, CLOCK_RESOLUTION_SECONDS))
        finally:
            self._loop.stop()
        return results

    def _drain(self) -> list[str]:
        with self._lock:
            runs, threads = list(self._running.values()), list(self._threads)
        for run in runs:
            if run.session is not None:
                run.session.stop("the worker is shutting down")
        deadline = clock.monotonic() + self._grace
        for thread in threads:
            remaining = deadline - clock.monotonic()
            while thread.is_alive() and remaining > 0:
                # In pieces: Python handles a signal that comes right before a wait only after it.
                thread.join(min(remaining, JOIN_SECONDS))
                remaining -= JOIN_SECONDS
        with self._lock:
            unfinished = list(self._running.values())
        for run in unfinished:
            logger.warning(
                "%r is in a long step; another worker takes it over when this process has ended",
                run.info.id,
            )
            if run.session is not None:
                try:
                    run.session.save_progress()
                except HoldfastError as error:
                    logger.warning(
                        "cannot store the progress of %r (%s)", run.info.id, type(error).__name__
                    )
        if not unfinished:
            self._loop.stop()
        return [run.info.id for run in unfinished]

    # -- runs --------------------------------------------------------------------------------------

    def _can_start(self, head: HeadSummary) -> bool:
        """Return whether a task can start now.

        A task that may kill the process runs alone until it makes progress. After
        `ISOLATION_DEADLINE` it runs beside others, but never beside another one of its kind.
        """
        info = task_info(head)
        with self._lock:
            if info.id in self._running or len(self._running) >= self._concurrency:
                return False
            if self._skipped_until.get(info.id, 0.0) > clock.monotonic():
                return False
            if any(run.is_suspect for run in self._running.values()):
                return False
            return (
                not self._running
                or not info.crashes
                or head.now - (head.fields.due or head.now) > ISOLATION_DEADLINE
            )

    def _start(self, head: HeadSummary) -> None:
        if self._stopping or not self._can_start(head):
            return
        run = _ActiveRun(task_info(head))
        thread = threading.Thread(
            target=self._run_in_thread,
            args=(run,),
            name=f"holdfast-{run.info.id[:40]}",
            daemon=True,
        )
        with self._lock:
            self._running[run.info.id] = run
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads
            self._remove(run, thread)

    def _run_in_thread(self, run: _ActiveRun) -> None:
        try:
            self._run_task(run)
        finally:
            self._remove(run, threading.current_thread())

    def _remove(self, run: _ActiveRun, thread: threading.Thread) -> None:
        with self._lock:
            self._running.pop(run.info.id, None)
            self._threads.discard(thread)
        self._changed.put(None)

    def _run_task(self, run: _ActiveRun, in_caller: bool = False) -> RunResult | None:
        """Run a task until it ends, waits or fails; None if another process has it.

        With `in_caller`, `SystemExit` and `KeyboardInterrupt` are raised to the caller.
        """
        agent, started_at = run.agent, clock.monotonic()
        options = check_open_options(None, None, None, agent.lease, 0.0, False, TASK_TTL, False)
        key = StreamKey(self._tenant, KIND, run.info.id)
        error: BaseException | None = None
        started = False

        def on_start(task: TaskBase) -> None:
            nonlocal started
            started = True
            self._send_report(RunResult(run.info.id, agent.name, "running", 0.0))
            if self._stopping:
                task._require_session().stop("the worker is shutting down")

        hooked = _call_before(agent, on_start)
        try:
            kind = AsyncTask if agent.is_async else Task
            task = run.task = kind(self._log, key, options, None, agent.is_async)
            task._max_attempts, task._max_crashes = agent.max_attempts, self._crashes
            if isinstance(task, AsyncTask):
                self._loop.run(run_agent_async(task, hooked, Any))
            else:
                run_agent(task, hooked, Any)
        except (LeaseHeld, TaskEnded) as problem:
            error = problem
            if not started:
                return None
        except (Exception, Suspended) as problem:
            error = problem
        except BaseException as problem:  # SystemExit in an agent ends its run, not the worker
            if in_caller:
                raise
            error = problem
        result = self._finish_run(run, error, clock.monotonic() - started_at)
        # Before the start it does not come from the agent: the task cannot be claimed.
        if isinstance(error, AccessDenied | ReadOnly) and not started:
            self._handle_write_error(error, wait=not in_caller)
        return result

    def _finish_run(
        self, run: _ActiveRun, error: BaseException | None, seconds: float
    ) -> RunResult:
        session = run.session
        # Skip a task that cannot even be opened, or that has ended although its head is due.
        if session.was_ended if session is not None else not isinstance(error, Retryable):
            now = clock.monotonic()
            with self._lock:
                kept = {task: end for task, end in self._skipped_until.items() if end > now}
                self._skipped_until = {**kept, run.info.id: now + FULL_SCAN_SECONDS}
        status: Status = session.state.status if session is not None else run.info.status
        if isinstance(error, LeaseLost):
            status = "running"  # in another process
        error_type = None
        # A stuck task was not even started.
        if error is not None and not isinstance(error, Suspended) and status != "stuck":
            error_type = type(error).__name__
        waits = (
            describe_waits(session.state) if session is not None and status == "suspended" else []
        )
        result = RunResult(run.info.id, run.agent.name, status, seconds, error_type, tuple(waits))
        is_problem = error_type is not None or status == "stuck"
        logger.log(
            logging.WARNING if is_problem and self._report is None else logging.INFO,
            "%s %r (%s) after %.1f s%s",
            run.agent.name,
            result.id,
            status,
            seconds,
            f": {error_type}" if error_type else "",
        )
        self._send_report(result)
        return result

    def _send_report(self, result: RunResult) -> None:
        if self._report is not None:
            try:
                self._report(result)
            except Exception as error:  # a faulty callback must not end the worker
                logger.warning("the report callback failed (%s)", type(error).__name__)


def _call_before(agent: Agent[Any, Any], hook: Callable[[TaskBase], None]) -> Agent[Any, Any]:
    """Return a copy of the agent that calls `hook` before its function."""
    fn = agent.fn

    @functools.wraps(fn)
    def hooked(task: TaskBase) -> Any:
        hook(task)
        return fn(task)

    copied = copy.copy(agent)
    copied.fn = hooked
    return copied


def run_due(store: Store, limit: int | None) -> list[RunResult]:
    """Run the tasks that are due now, one after the other."""
    return Worker(store, concurrency=1).run_due(limit)
