"""Workers: they find the tasks that are due, and run them. As many as you like on one store, without a coordinator.

A task is due when it was submitted, when what it waits for has come, when it is to be tried again, and when whoever held it is
gone. Workers look for due tasks and claim them; who claims first has it, and the others look on. All they
share is the store.
"""

from __future__ import annotations

import functools
import logging
import math
import random
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
from ..log.validation import seconds, whole_number
from ..tasks import AsyncTask, Task
from ..tasks.agents.declare import Agent, registered
from ..tasks.agents.run import run_agent, run_agent_async
from ..tasks.base import CRASHES, TaskBase
from ..tasks.run.claim import TASK_TTL, as_wanted
from ..tasks.state.events import KIND
from ..tasks.state.load import info_of, words_for
from ..tasks.state.view import Status, TaskInfo
from .due_tasks import CLOSE, FULL_LOOK, DueTaskScanner
from .loop_thread import LoopThread

if TYPE_CHECKING:
    from .._store import Store

POLL: Final = 0.5
LONGEST_PAUSE: Final = 1.2
"""Between two looks, in polls."""
GRACE: Final = 30.0
PATIENCE: Final = 60.0
"""So long a task that may kill the process waits for a time when nothing else runs."""
JOIN_SECONDS: Final = 0.2
SWITCH: Final = 60.0
"""So long nobody may take writes while a server is replaced by another."""

logger = logging.getLogger("holdfast")


class RunResult(msgspec.Struct, frozen=True):
    """A run of a task by a worker: how the task stands after it, and what it waits for, in words.

    `error` is the type of the exception that ended it, if one did.
    """

    id: str
    agent: str
    status: Status
    seconds: float
    error: str | None = None
    waits_for: tuple[str, ...] = ()


class _ActiveRun:
    """A task that is being run here."""

    def __init__(self, info: TaskInfo, agent: Agent[Any, Any]) -> None:
        self.info, self.agent = info, agent
        self.task: TaskBase | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what kills the process: its runs died twice in a row, and it has not got any further yet."""
        session = self.task._session if self.task is not None else None
        return self.info.crashes > 0 and (session is None or session.state.crashes > 0)


class Worker:
    """Runs the due tasks of the registered agents, several at once. `holdfast worker` is one.

    Plain agents run in threads, async ones in one event loop. `run()` returns after `stop()`, which
    a signal handler or another thread may call: no more tasks are taken, and those that run stop at
    their next step and are left to other workers.

    Args:
        store: The store whose tasks to run.
        concurrency: How many tasks to run at once.
        poll: How often to look for due tasks, in seconds or as a timedelta.
        grace: How long `run` waits for long steps after `stop`. It then returns the ids of the
            tasks that are still in one; others take them over when this process has ended.
        crashes: After how many deaths of its process in a row a task is left as stuck.
        report: Called with a `RunResult` when a run starts (status "running") and when it ends.
            Without it, what goes wrong is a warning in the log.

    Returns:
        A worker; `run()` starts it.

    Raises:
        ValueError: An argument is out of range.

        `run` raises `AccessDenied`, or `ReadOnly` after a minute, if it may not write to the store.

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
        poll: float | timedelta = POLL,
        grace: float | timedelta = GRACE,
        crashes: int = CRASHES,
        report: Callable[[RunResult], object] | None = None,
    ) -> None:
        self._log, self._tenant = store._log, store.tenant
        self._concurrency = whole_number(concurrency, "concurrency", 1)
        self._crashes = whole_number(crashes, "crashes", 1)
        self._poll, self._grace = max(seconds(poll, "poll"), 0.01), seconds(grace, "grace")
        self._report = report
        self._running: dict[str, _ActiveRun] = {}
        self._avoided: dict[str, float] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.RLock()  # a signal handler may come while it is held
        # Not an Event: a signal handler may call `stop` while this very thread is inside one of its methods.
        self._changed: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self._refused: HoldfastError | None = None
        """Why this worker cannot go on: it may not write."""
        self._read_only = (-math.inf, -math.inf)
        """Since when nothing could be written, and when that was last seen."""
        self._loop = LoopThread()
        self._look = DueTaskScanner(
            self._log, self._tenant, self.is_free, LONGEST_PAUSE * self._poll
        )

    @property
    def agents(self) -> list[str]:
        """The names of the agents that are registered in this process."""
        return sorted(registered)

    # -- the life of a worker ----------------------------------------------------------------------

    def run(self) -> list[str]:
        """Run due tasks until `stop()`; the ids of those that are still in a long step after `grace`."""
        troubled = may_write = False
        while not self._stopping:
            try:
                if not may_write:
                    self._refuse_reader()
                may_write = True
                for head in self._look.candidates(self._concurrency - len(self._running)):
                    self._start(head)
                troubled = False
            except StoreClosed:
                raise
            except HoldfastError as error:
                if isinstance(error, AccessDenied | ReadOnly):
                    self._may_not_write(error)
                if (
                    not troubled and self._refused is None
                ):  # once, not twice a second while the engine is away
                    logger.warning(
                        "due tasks could not be looked for (%s); trying on", type(error).__name__
                    )
                troubled = True
            self._wait(self._pause())
        left = self._drain()
        if self._refused is not None:
            raise self._refused
        return left

    def _refuse_reader(self) -> None:
        """At the start, where it can be known: a right that was forgotten is heard of before there is a task to run."""
        if isinstance(self._log.backend, SupportsWriteCheck):
            self._log.backend.refuse_reader()

    def _may_not_write(self, error: AccessDenied | ReadOnly, *, patient: bool = True) -> None:
        """Stop, unless it may go away by itself: a standby takes writes when it has become the primary."""
        now = clock.monotonic()
        since, last = self._read_only
        if (
            now - last > SWITCH + FULL_LOOK
        ):  # a task that cannot be claimed is left alone for the length of a full look
            since = now
        self._read_only = since, now
        if isinstance(error, AccessDenied) or not patient or now - since > SWITCH:
            self._refused = self._refused or error
            self.stop()

    def _pause(self) -> float:
        """How long until the next look: until a task is due that is known of, if that is sooner than usual. Not in step with others."""
        usual = random.uniform(0.8, LONGEST_PAUSE) * self._poll  # noqa: S311
        if self._look.next_in is None:
            return usual
        return min(usual, self._look.next_in + random.uniform(0.01, 0.05))  # noqa: S311

    def _wait(self, seconds: float) -> None:
        """Until something has changed, at most so long."""
        try:
            self._changed.get(timeout=seconds)
            while True:
                self._changed.get_nowait()
        except Empty:
            pass

    def stop(self) -> None:
        """Take no more tasks, and let those that run stop at their next step."""
        self._stopping = True
        self._changed.put(None)

    def run_due(self, limit: int | None) -> list[RunResult]:
        """Run what is due now, one after the other, in this thread.

        Where the engine tells the time to the second only, what another process has just made due may seem to be due in a
        moment: it is waited for, once.
        """
        ran: list[RunResult] = []
        waited = False
        try:
            while limit is None or len(ran) < limit:
                done, told = None, len(self._look.told)
                for head in self._look.candidates(1):
                    done = self._do(
                        _ActiveRun(info_of(head), registered[info_of(head).agent or ""]), here=True
                    )
                    if self._refused is not None:
                        raise self._refused
                    if done is not None:
                        ran.append(done)
                        break
                if (
                    done is None and len(self._look.told) == told
                ):  # a parent that was told is due by now
                    if (
                        self._look.next_in is None
                        or waited
                        or not isinstance(self._log.backend, BillsRequests)
                    ):
                        break
                    waited = True
                    clock.sleep(min(self._look.next_in, CLOSE))
        finally:
            self._loop.stop()
        return ran

    def _drain(self) -> list[str]:
        with self._lock:
            runs, threads = list(self._running.values()), list(self._threads)
        for run in runs:
            if run.task is not None and run.task._session is not None:
                run.task._session.stop("the worker is shutting down")
        deadline = clock.monotonic() + self._grace
        for thread in threads:
            remaining = deadline - clock.monotonic()
            while thread.is_alive() and remaining > 0:
                # In pieces: Python hears of a signal that comes right before a wait only when the wait is over.
                thread.join(min(remaining, JOIN_SECONDS))
                remaining -= JOIN_SECONDS
        with self._lock:
            left = list(self._running.values())
        for run in left:
            logger.warning(
                "%r is in a long step; it is taken up by another worker when this process has ended",
                run.info.id,
            )
            session = run.task._session if run.task is not None else None
            if session is not None:
                try:
                    session.save_progress()
                except HoldfastError as error:
                    logger.warning(
                        "the progress of %r could not be stored (%s)",
                        run.info.id,
                        type(error).__name__,
                    )
        if not left:
            self._loop.stop()
        return [run.info.id for run in left]

    # -- runs --------------------------------------------------------------------------------------

    def is_free(self, head: HeadSummary) -> bool:
        """Whether a task can be begun now. One that may kill the process is run alone until it has got any further.

        If there is no time for that, it is run beside others, but never beside another of its sort.
        """
        info = info_of(head)
        with self._lock:
            if info.id in self._running or len(self._running) >= self._concurrency:
                return False
            if self._avoided.get(info.id, 0.0) > clock.monotonic():
                return False
            self._avoided.pop(info.id, None)
            if any(run.is_suspect for run in self._running.values()):
                return False
            return (
                not self._running
                or not info.crashes
                or head.now - (head.fields.due or head.now) > PATIENCE
            )

    def _start(self, head: HeadSummary) -> None:
        info = info_of(head)
        if self._stopping or not self.is_free(head):
            return
        run = _ActiveRun(info, registered[info.agent or ""])
        thread = threading.Thread(
            target=self._work, args=(run,), name=f"holdfast-{info.id[:40]}", daemon=True
        )
        with self._lock:
            self._running[info.id] = run
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads on this machine
            self._gone(run, thread)

    def _work(self, run: _ActiveRun) -> None:
        try:
            self._do(run)
        finally:
            self._gone(run, threading.current_thread())

    def _gone(self, run: _ActiveRun, thread: threading.Thread) -> None:
        with self._lock:
            self._running.pop(run.info.id, None)
            self._threads.discard(thread)
        self._changed.put(None)

    def _do(self, run: _ActiveRun, here: bool = False) -> RunResult | None:
        """Run a task as far as it goes; None if somebody else has it. `here`: what ends the program ends this too."""
        agent, began = run.agent, clock.monotonic()
        wanted = as_wanted(None, None, None, agent.lease, 0.0, False, TASK_TTL, False)
        key = StreamKey(self._tenant, KIND, run.info.id)
        error: BaseException | None = None
        told = False

        def begin(task: TaskBase) -> None:
            """Called inside the block."""
            nonlocal told
            told = True
            self._tell(RunResult(run.info.id, agent.name, "running", 0.0))
            if self._stopping:
                task._held().stop("the worker is shutting down")

        try:
            if agent.is_async:
                task: TaskBase = AsyncTask(self._log, key, wanted, None, True)
                self._prepare(run, task)
                self._loop.run(run_agent_async(task, _guarded_async(agent, begin), Any))  # type: ignore[arg-type]
            else:
                task = Task(self._log, key, wanted, None, False)
                self._prepare(run, task)
                run_agent(task, _guarded(agent, begin), Any)
        except (LeaseHeld, TaskEnded) as problem:
            error = problem
            if not told:
                return None
        except (Exception, Suspended) as problem:
            error = problem
        except BaseException as problem:  # SystemExit in an agent ends its run, not the worker
            if here:
                raise
            error = problem
        ran = self._ended(run, error, clock.monotonic() - began)
        if (
            isinstance(error, AccessDenied | ReadOnly) and not told
        ):  # not from the agent: it cannot be claimed
            self._may_not_write(error, patient=not here)
        return ran

    def _prepare(self, run: _ActiveRun, task: TaskBase) -> None:
        task._attempts, task._crashes = run.agent.max_attempts, self._crashes
        run.task = task

    def _ended(self, run: _ActiveRun, error: BaseException | None, took: float) -> RunResult:
        session = run.task._session if run.task is not None else None
        broken = session is None and not isinstance(error, Retryable)  # it cannot even be opened
        if broken or (
            session is not None and session.opened_ended
        ):  # or it has ended, and its head does not say so
            self._avoided[run.info.id] = clock.monotonic() + FULL_LOOK
        status: Status = session.state.status if session is not None else run.info.status
        if isinstance(error, LeaseLost):
            status = "running"  # somebody else has it now
        why = (
            type(error).__name__
            if isinstance(error, BaseException) and not isinstance(error, Suspended)
            else None
        )
        if status == "stuck":
            why = None  # it was not even begun
        waits = words_for(session.state) if session is not None and status == "suspended" else []
        ran = RunResult(run.info.id, run.agent.name, status, took, why, tuple(waits))
        logger.log(
            logging.WARNING if (why or status == "stuck") and self._report is None else logging.INFO,
            "%s %r (%s) after %.1f s%s",
            run.agent.name, ran.id, status, took, f": {why}" if why else "",
        )  # fmt: skip
        self._tell(ran)
        return ran

    def _tell(self, ran: RunResult) -> None:
        if self._report is not None:
            try:
                self._report(ran)
            except Exception as error:  # a worker does not end because nobody can be told
                logger.warning("a report could not be made (%s)", type(error).__name__)


def _guarded(agent: Agent[Any, Any], begin: Callable[[TaskBase], None]) -> Agent[Any, Any]:
    """The same agent; `begin` is called first."""

    @functools.wraps(agent.fn)
    def fn(task: TaskBase) -> Any:
        begin(task)
        return agent.fn(task)

    return Agent(agent.name, fn, agent.max_attempts, agent.lease, agent.input, agent.remember)


def _guarded_async(agent: Agent[Any, Any], begin: Callable[[TaskBase], None]) -> Agent[Any, Any]:
    @functools.wraps(agent.fn)
    async def fn(task: TaskBase) -> Any:
        begin(task)
        return await agent.fn(task)

    return Agent(agent.name, fn, agent.max_attempts, agent.lease, agent.input, agent.remember)


def run_due(store: Store, limit: int | None) -> list[RunResult]:
    """Run what is due now, one after the other."""
    return Worker(store, concurrency=1).run_due(limit)
