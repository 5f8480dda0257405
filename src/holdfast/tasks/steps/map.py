"""`task.map`: one step per item, several at a time; and `bind`, for threads of your own."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ...errors import NoTask, StepFailed, Suspended
from ...log.validation import check_int
from ..run.frames import Branch, Frame, current_frame, frame
from .declare import Step, is_async, to_key, to_step
from .failures import find_failed_steps

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.session import Session

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class MapRun:
    """The items of a `map`, each a step in a branch of its own, and their outcomes."""

    def __init__(
        self,
        task: TaskBase,
        fn: Callable[..., Any],
        items: Iterable[Any],
        key: Callable[[Any], object] | None,
        concurrency: int,
    ) -> None:
        check_int(concurrency, "concurrency", 1)
        self.session: Session = task._require_session()
        self.session.check_active()
        self.items: list[Any] = list(items)
        # A replay runs the items one by one, as they were started: after a failed item, the others
        # may not be recorded.
        self.concurrency = min(
            concurrency if self.session.replaying is None else 1, len(self.items)
        )
        inside = current_frame()
        if inside is not None and inside.session is not self.session:
            inside = None
        declared = copy.copy(to_step(fn))
        declared.mapped = self.session.steps.is_in_order("" if inside is None else inside.path)
        self.steps: Sequence[Step[Any, Any]] = (
            [declared] * len(self.items) if key is None else _add_keys(declared, key, self.items)
        )
        self._outer: Branch = self.session.suspension.branch if inside is None else inside.branch
        self._frames = [
            Frame(
                task,  # type: ignore[arg-type]  # a Task or an AsyncTask
                self.session,
                Branch(self._outer),
                "" if inside is None else inside.path,
                None if inside is None else inside.run,
                requests=None if inside is None else inside.requests,
            )
            for _ in self.items
        ]
        self._lock = threading.Lock()
        self._next = 0
        self.results: list[Any] = [None] * len(self.items)
        self.errors: dict[int, BaseException] = {}
        self.stopped = False

    def take_item(self) -> int | None:
        """Take the next item; None if no item is left, or an item has failed."""
        with self._lock:
            if self._next == len(self.items) or self.stopped:
                return None
            self._next += 1
            return self._next - 1

    def enter_item(self, number: int) -> Frame:
        """Enter the branch of an item."""
        frame.set(self._frames[number])
        return self._frames[number]

    def record_error(self, number: int, error: BaseException) -> None:
        """Record the error of an item. Stop the map, unless the item only waits."""
        self.errors[number] = error
        if not isinstance(error, Suspended):
            self.stopped = True

    def collect(self) -> list[Any]:
        """Return the results in order, raise the first error, or suspend if some items wait."""
        failed = [
            error for _, error in sorted(self.errors.items()) if not isinstance(error, Suspended)
        ]
        if failed:
            first, *others = failed
            if isinstance(
                first, StepFailed
            ):  # if this ends the run, the next run retries all failed items
                paths = [
                    path
                    for error in others
                    for path in find_failed_steps(error, str(self.session.key))
                ]
                first.causes = (*first.causes, *paths)
            raise first
        if self.errors:
            self.session.suspension.suspend(self._outer, self.session.suspension.stop_reason)
        return self.results


def _add_keys(
    declared: Step[Any, Any], key: Callable[[Any], object], items: Sequence[Any]
) -> list[Step[Any, Any]]:
    """Return the step with the key of each item."""
    keys = [to_key(key(item)) for item in items]
    if len(set(keys)) < len(keys):
        repeated = {each for each in keys if keys.count(each) > 1}
        raise ValueError(
            f"each item must have its own key, got {len(repeated)} keys that items share"
        )
    return [declared.using(key=each) for each in keys]


def map_in_threads(run: MapRun, do: Callable[[int], Any]) -> list[Any]:
    """Run all items in threads."""

    def work() -> None:
        while (number := run.take_item()) is not None:
            try:
                run.results[number] = copy_context().run(one, number)
            except BaseException as error:
                run.record_error(number, error)

    def one(number: int) -> Any:
        run.enter_item(number)
        return do(number)

    # Not a pool: its threads would outlive an interrupt of this thread, which must wait for them.
    threads = [
        threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        for _ in range(run.concurrency)
    ]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for thread in started:
            thread.join()
    except BaseException:
        run.stopped = True
        for thread in started:
            thread.join()
        raise
    return run.collect()


async def map_in_loop(run: MapRun, do: Callable[[int], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run all items in tasks of the event loop."""
    import asyncio

    async def work() -> None:
        while (number := run.take_item()) is not None:
            run.enter_item(number)
            try:
                run.results[number] = await do(number)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                run.stopped = True
                raise
            except BaseException as error:
                run.record_error(number, error)

    workers = [asyncio.ensure_future(work()) for _ in range(run.concurrency)]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return run.collect()


def bind(fn: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs in the current task wherever it is called.

    Threads of a pool do not inherit the task: use `pool.map(holdfast.bind(work), items)`. Steps
    that `fn` calls belong to the task and step in which `bind` was called.
    """
    inside = current_frame()
    if inside is None:
        raise NoTask("bind() must be called inside a task: `with store.task(id) as task:`")
    if is_async(fn):

        @functools.wraps(fn)
        async def bound_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            outer = frame.get()
            try:
                frame.set(inside)
                return await fn(*args, **kwargs)  # type: ignore[misc]  # it is async
            finally:
                frame.set(outer)

        return bound_async  # type: ignore[return-value]  # as async as fn
    context = copy_context()

    @functools.wraps(fn)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(fn, *args, **kwargs)

    return bound
