"""Workers: find due tasks and run them. Any number may share a store, without a coordinator.

A task is due when it was submitted, when the answer, signal or time it waits for has come, when its
retry is due, and when its lease owner is gone. Workers poll for due tasks and claim them; the first
claim wins, and the other workers skip the task: a claim is rejected once the task is no longer due.
The store is all they share.
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..backends import BillsRequests, HeadSummary, StreamKey, SupportsWriteCheck, clock
from ..backends.clock import CLOCK_RESOLUTION_SECONDS
from ..errors import (
    AccessDenied,
    HoldfastError,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    ReadOnly,
    Retryable,
    StorageFull,
    StoreClosed,
    Suspended,
    TaskEnded,
    Unavailable,
)
from ..log.head_fields import TASK_TTL
from ..log.ids import check_id
from ..log.leases import WithStatement
from ..log.repeated_warning import RepeatedWarning
from ..log.validation import check_int, check_seconds
from ..notify.find import Notification
from ..notify.hooks import Hook, check_hooks
from ..notify.notifier import Notifier
from ..tasks import AsyncTask, Task
from ..tasks.agents.declare import Agent, registered_agents
from ..tasks.agents.run import GaveUp, run_agent, run_agent_async
from ..tasks.base import TaskBase
from ..tasks.run import sigterm
from ..tasks.run.claim import NotDue, check_open_options
from ..tasks.run.enter import MAX_CRASHES
from ..tasks.run.traceback import describe_failure
from ..tasks.state.events import KIND
from ..tasks.state.failure import Failure
from ..tasks.state.load import describe_waits, task_failure, task_info
from ..tasks.state.view import Status, TaskInfo
from .loop_thread import LoopThread
from .polling import FULL_SCAN_SECONDS, POLL_SECONDS, DueTaskScanner
from .registry import Activity, WorkerRegistration

if TYPE_CHECKING:
    from .._store import Store
    from ..tasks.run.session import Session

CONCURRENCY: Final = 16
"""Default number of tasks to run at once: agents mostly wait for models and tools."""
GRACE_SECONDS: Final = 30.0
ISOLATION_DEADLINE: Final = 60.0
"""How long, in seconds, a task that may kill the process waits for a moment to run alone."""
JOIN_SECONDS: Final = 0.2
FAILOVER_SECONDS: Final = 60.0
"""How long a failover may leave the server read-only."""

OUTAGES: Final = (Unavailable, StorageFull, OutcomeUnknown)
"""The errors of a database that is unreachable or full."""
OUTAGE_SKIP_SECONDS: Final = 5.0
"""How long to skip a task that could not start because of an outage."""

logger = logging.getLogger("holdfast")


class RunResult(msgspec.Struct, frozen=True):
    """A run of a task by a worker: the task's status after it, and a description of its waits.

    `error` is the type of the exception that ended the run, if one did: the one that the program
    raised, not the `StepFailed` around it. `failure` has its message and where it was raised.
    `in_doubt` are the steps that an operator must resolve before the task can continue.
    """

    id: str
    agent: str
    status: Status
    seconds: float
    error: str | None = None
    waits_for: tuple[str, ...] = ()
    failure: Failure | None = None
    in_doubt: tuple[str, ...] = ()


class _ActiveRun:
    """A task that this worker is running."""

    def __init__(self, info: TaskInfo) -> None:
        self.info, self.agent = info, registered_agents[info.agent or ""]
        self.task: AsyncTask | Task | None = None
        self.started_at = clock.time()

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
        concurrency: Maximum number of tasks to run at once. Agents mostly wait for models and
            tools, so it may be far larger than the number of processors.
        poll: How often to poll for due tasks, in seconds or as a timedelta.
        grace: How long `run` waits for long steps after `stop`. It then returns the ids of the
            tasks that are still in one; other workers take them over when this process has ended.
        crashes: Number of crashes in a row after which a task is marked as stuck.
        report: Called with a `RunResult` when a run starts (status "running") and when it ends.
            Without it, failures are logged as warnings.
        register: Keep an entry about this worker in the store while `run` runs, so that
            `store.workers()` and `holdfast workers` show it. It costs one small write every 15
            seconds, or every minute where each request costs money.
        code_version: The version of the application, for that entry.
        notify: Hooks that are notified when a task needs attention (see `holdfast.notify`): a
            `Webhook`, a `Command`, or a function. Give all workers of a store the same hooks.

    Returns:
        A worker; `run()` starts it.

    Raises:
        ValueError: An argument is out of range.
        AccessDenied, ReadOnly: From `run`, if it cannot write to the store (`ReadOnly`: for a
            minute).

    Example:
        >>> worker = holdfast.Worker(store, concurrency=8)
        >>> signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        >>> worker.run()
    """

    def __init__(
        self,
        store: Store,
        *,
        concurrency: int = CONCURRENCY,
        poll: float | timedelta = POLL_SECONDS,
        grace: float | timedelta = GRACE_SECONDS,
        crashes: int = MAX_CRASHES,
        report: Callable[[RunResult], object] | None = None,
        register: bool = False,
        code_version: str | None = None,
        notify: Sequence[Hook | Callable[[Notification], object]] = (),
    ) -> None:
        self._log, self._tenant = store._log, store.tenant
        self._concurrency = check_int(concurrency, "concurrency", 1)
        self._crashes = check_int(crashes, "crashes", 1)
        self._grace = check_seconds(grace, "grace")
        self._report = report
        self._code_version = (
            None if code_version is None else check_id(code_version, "code_version")
        )
        self._register = bool(register)
        self._registration: WorkerRegistration | None = None
        hooks = check_hooks(notify)
        self._notifier = Notifier(self._log, self._tenant, hooks) if hooks else None
        self._running: dict[str, _ActiveRun] = {}
        self._skipped_until: dict[str, float] = {}
        self._threads: set[threading.Thread] = set()
        self._idle_threads = 0
        self._queue: SimpleQueue[_ActiveRun | None] = SimpleQueue()
        """The runs to start, for the threads; None ends a thread."""
        self._lock = threading.RLock()  # a signal handler may interrupt the thread that has it
        # Not an Event: a signal handler may call `stop` while this thread is in a method of it.
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._write_error: HoldfastError | None = None
        """Why this worker cannot write to the store, and stops."""
        self._read_only = (-math.inf, -math.inf)
        """When the store was first and last seen to be read-only."""
        self._poll_failures = RepeatedWarning("polls for due tasks succeed again")
        self._start_failures = RepeatedWarning("tasks start again")
        self._resume_at = -math.inf
        """When to start tasks again, after the database kept one from starting."""
        self._loop = LoopThread()
        self._poll = max(check_seconds(poll, "poll"), 0.01)
        self._scanner = DueTaskScanner(self._log, self._tenant, self._can_start, self._poll)

    @property
    def agents(self) -> list[str]:
        """The names of the agents that are registered in this process."""
        return sorted(registered_agents)

    # -- polling -----------------------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run due tasks until `stop()`. Return the ids of those in a long step after `grace`."""
        if self._notifier is None:
            return self._run_registered()
        self._notifier.start()
        try:
            return self._run_registered()
        finally:
            self._notifier.stop()

    def _run_registered(self) -> list[str]:
        if not self._register:
            return self._run_until_stopped()
        with WorkerRegistration(
            self._log,
            self._tenant,
            agents=self.agents,
            slots=self._concurrency,
            code_version=self._code_version,
            look=self._describe_activity,
        ) as self._registration:
            return self._run_until_stopped()

    def _describe_activity(self) -> Activity:
        with self._lock:
            runs = list(self._running.values())
        return Activity(
            [(run.info.id, run.agent.name, run.started_at) for run in runs], self._stopping
        )

    def _run_until_stopped(self) -> list[str]:
        writable = False
        while not self._stopping:
            try:
                if not writable:
                    self._check_writable()
                writable = True
                free = self._free_slots()
                for head in self._scanner.take(free):
                    self._start(head)
                if free and self._poll_failures.active:
                    self._poll_failures.note_success()
            except StoreClosed:
                raise
            except HoldfastError as error:
                if isinstance(error, AccessDenied | ReadOnly):
                    self._handle_write_error(error)
                if self._write_error is None:
                    self._poll_failures.note_failure(
                        f"cannot poll for due tasks ({type(error).__name__}); retrying"
                    )
            self._wait(self._scanner.pause())
        unfinished = self._drain()
        if self._write_error is not None:
            raise self._write_error
        return unfinished

    def _free_slots(self) -> int:
        """Return how many more tasks may start. None may for a moment after a failed start."""
        if clock.monotonic() < self._resume_at:
            return 0
        return self._concurrency - len(self._running)

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

    def wake(self) -> None:
        """Look for due tasks now, instead of at the next poll. Any thread may call it."""
        self._changed.put(None)

    def run_due(self, limit: int | None) -> list[RunResult]:
        """Run the tasks that are due now, one after the other, in this thread.

        If the database clock has a resolution of a second, a task that another process has just
        submitted may seem to be due in a moment. Wait for it once.
        """
        results: list[RunResult] = []
        waited = False
        name, statement = f"run_due {id(self)}", WithStatement()
        sigterm.install(name, statement)  # async agents enter their blocks in another thread
        try:
            while limit is None or len(results) < limit:
                ran, reported = len(results), len(self._scanner.reported)
                for head in self._scanner.scan(1):
                    if limit is not None and len(results) >= limit:
                        break
                    if not self._can_start(head):
                        continue
                    result = self._run_task(_ActiveRun(task_info(head)), in_caller=True)
                    if self._write_error is not None:
                        raise self._write_error
                    if result is not None:
                        results.append(result)
                # A parent whose child was reported is due by now, so scan again.
                if len(results) == ran and len(self._scanner.reported) == reported:
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
            sigterm.uninstall(name)
            self._loop.stop()
        return results

    def _drain(self) -> list[str]:
        if self._registration is not None:
            self._registration.beat_soon()
        with self._lock:
            runs, threads = list(self._running.values()), list(self._threads)
        for run in runs:
            if run.session is not None:
                run.session.stop("the worker is shutting down")
        for _ in threads:
            self._queue.put(None)
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
        if self._stopping or self._free_slots() < 1 or not self._can_start(head):
            return
        run = _ActiveRun(task_info(head))
        with self._lock:
            self._running[run.info.id] = run
            idle = self._idle_threads > 0
            self._idle_threads -= idle
        if idle or self._start_thread():
            self._queue.put(run)
        else:
            self._remove(run)

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run_queue, name="holdfast-worker", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no more threads
            return False
        with self._lock:
            self._threads.add(thread)
        return True

    def _run_queue(self) -> None:
        """Run tasks in this thread, each in a context of its own."""
        while (run := self._queue.get()) is not None:
            threading.current_thread().name = f"holdfast-{run.info.id[:40]}"
            try:
                Context().run(self._run_task, run)
            except BaseException:
                self._remove(run)
                raise
            with self._lock:
                self._idle_threads += 1
            self._remove(run)
        with self._lock:
            self._idle_threads -= 1
            self._threads.discard(threading.current_thread())

    def _remove(self, run: _ActiveRun) -> None:
        with self._lock:
            self._running.pop(run.info.id, None)
        self._changed.put(None)

    def _run_task(self, run: _ActiveRun, in_caller: bool = False) -> RunResult | None:
        """Run a task until it ends, waits or fails; None if another process has it.

        With `in_caller`, `SystemExit` and `KeyboardInterrupt` are raised to the caller.
        """
        agent, started_at = run.agent, clock.monotonic()
        options = check_open_options(None, None, None, agent.lease, 0.0, False, TASK_TTL, False)
        options = msgspec.structs.replace(options, only_due=True, default_timeout=agent.timeout)
        key = StreamKey(self._tenant, KIND, run.info.id)
        error: BaseException | None = None
        started = False

        def on_start(task: TaskBase) -> None:
            nonlocal started
            started = True
            if self._start_failures.active:
                self._start_failures.note_success()
            self._send_report(RunResult(run.info.id, agent.name, "running", 0.0))
            if self._stopping:
                task._require_session().stop("the worker is shutting down")

        hooked = _call_before(agent, on_start)
        try:
            kind = AsyncTask if agent.is_async else Task
            task = run.task = kind(self._log, key, options, None, agent.is_async)
            task._max_attempts, task._max_crashes = agent.max_attempts, self._crashes
            if isinstance(task, AsyncTask):
                self._loop.run(run_agent_async(task, hooked, Any), task._note_interrupt)
            else:
                run_agent(task, hooked, Any)
        except (LeaseHeld, NotDue, TaskEnded) as problem:
            error = problem
            if not started:
                return None
        except (Exception, Suspended) as problem:
            error = problem
        except BaseException as problem:  # SystemExit in an agent ends its run, not the worker
            if in_caller:
                raise
            error = problem
        session = run.session
        if isinstance(error, OUTAGES) and session is None:
            self._postpone(run, error, math.inf if in_caller else OUTAGE_SKIP_SECONDS)
            if not in_caller:
                return None
        # Skip a task that cannot even be opened, or that has ended although its head is due.
        if session.was_ended if session is not None else not isinstance(error, Retryable):
            self._skip(run.info.id, clock.monotonic(), FULL_SCAN_SECONDS)
        if session is not None and session.was_ended:
            return None  # the worker that ended it has reported that
        result = self._finish_run(run, error, clock.monotonic() - started_at)
        # An error before the start is not the agent's: the task could not be claimed.
        if isinstance(error, AccessDenied | ReadOnly) and not started:
            self._handle_write_error(error, wait=not in_caller)
        return result

    def _postpone(self, run: _ActiveRun, error: HoldfastError, seconds: float) -> None:
        """Skip a task that the database kept from starting, and pause all starts for one poll.

        Otherwise the worker would retry on a full disk or a lost server as fast as it fails.
        """
        now = clock.monotonic()
        self._resume_at = now + self._poll
        self._skip(run.info.id, now, seconds)
        self._start_failures.note_failure(
            f"cannot start {run.agent.name} {run.info.id!r} ({type(error).__name__}); retrying"
        )

    def _skip(self, id: str, now: float, seconds: float) -> None:
        with self._lock:
            kept = {task: end for task, end in self._skipped_until.items() if end > now}
            self._skipped_until = {**kept, id: now + seconds}

    def _finish_run(
        self, run: _ActiveRun, error: BaseException | None, seconds: float
    ) -> RunResult:
        session = run.session
        status: Status = session.state.status if session is not None else run.info.status
        if isinstance(error, LeaseLost):
            status = "running"  # in another process
        failure, waits, doubts = None, list[str](), list[str]()
        # A stuck task was not even started.
        if error is not None and not isinstance(error, Suspended) and status != "stuck":
            recorded = task_failure(session.state) if session is not None else None
            gave_up = isinstance(error, GaveUp) and recorded is not None
            failure = recorded if gave_up else describe_failure(self._log, error)
        if session is not None and status == "suspended":
            waits = describe_waits(session.state)
        elif session is not None and status in ("pending", "failed"):
            doubts = session.state.steps_in_doubt()
        result = RunResult(
            run.info.id,
            run.agent.name,
            status,
            seconds,
            None if failure is None else failure.root.type,
            tuple(waits),
            failure,
            tuple(doubts),
        )
        is_problem = failure is not None or status == "stuck"
        logger.log(
            logging.WARNING if is_problem and self._report is None else logging.INFO,
            "%s %r (%s) after %.1f s%s",
            run.agent.name,
            result.id,
            status,
            seconds,
            # Without messages: they may be content.
            "" if failure is None else f": {failure.root.type}\n{failure.format(messages=False)}",
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
