"""Many at once: one step for each item of a list, so many at a time; and functions that know their task in any thread."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ...errors import NoTask, StepFailed, Suspended
from ...log.validation import whole_number
from ..run.frames import Branch, Frame, current_frame, frame
from .declare import Step, as_key, as_step, is_async
from .run import failed_steps

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.session import Session

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class MapRun:
    """The items of a `map`, each a step in a line of work of its own, and what became of them."""

    def __init__(
        self,
        task: TaskBase,
        fn: Callable[..., Any],
        items: Iterable[Any],
        key: Callable[[Any], object] | None,
        wide: int,
    ) -> None:
        whole_number(wide, "concurrency", 1)
        self.session: Session = task._held()
        self.session.check_here()
        self.items: list[Any] = list(items)
        # Replayed one after the other, as they were begun: those behind one that failed may not be recorded.
        self.wide = min(wide if self.session.replaying is None else 1, len(self.items))
        declared = as_step(fn)
        self.steps: Sequence[Step[Any, Any]] = [declared] * len(self.items)
        if key is not None:
            keys = [as_key(key(item)) for item in self.items]
            twice = (
                {each for each in keys if keys.count(each) > 1}
                if len(set(keys)) < len(keys)
                else None
            )
            if twice:
                raise ValueError(
                    f"{len(twice)} keys belong to several items; each item needs a key of its own"
                )
            self.steps = [declared.using(key=each) for each in keys]
        inside = current_frame()
        here = inside is not None and inside.session is self.session
        self._outer: Branch = inside.branch if inside is not None and here else self.session.branch
        self._frames = [
            Frame(
                task,  # type: ignore[arg-type]  # a Task or an AsyncTask
                self.session,
                Branch(self._outer),
                inside.path if inside is not None and here else "",
                inside.run if inside is not None and here else None,
            )
            for _ in self.items
        ]
        self._lock = threading.Lock()
        self._next = 0
        self.results: list[Any] = [None] * len(self.items)
        self.errors: dict[int, BaseException] = {}
        self.stopped = False

    def take(self) -> int | None:
        """The next item to do; None if there is none, or one has failed."""
        with self._lock:
            if self._next == len(self.items) or self.stopped:
                return None
            self._next += 1
            return self._next - 1

    def enter(self, number: int) -> Frame:
        """The running code is in the line of work of this item."""
        frame.set(self._frames[number])
        return self._frames[number]

    def ended(self, number: int, error: BaseException) -> None:
        self.errors[number] = error
        if not isinstance(error, Suspended):
            self.stopped = True

    def outcome(self) -> list[Any]:
        """The results in order; or the first error; or, if some wait, that the task waits."""
        failed = [
            error for _, error in sorted(self.errors.items()) if not isinstance(error, Suspended)
        ]
        if failed:
            first, *others = failed
            if isinstance(
                first, StepFailed
            ):  # if it ends the run, the next one tries all of them again
                paths = [
                    path for error in others for path in failed_steps(error, str(self.session.key))
                ]
                first.causes = (*first.causes, *paths)
            raise first
        if self.errors:
            self.session.suspend(self._outer, self.session.stopping)
        return self.results


def spread(fan: MapRun, do: Callable[[int], Any]) -> list[Any]:
    """Do all items in threads."""

    def work() -> None:
        while (number := fan.take()) is not None:
            try:
                fan.results[number] = copy_context().run(one, number)
            except BaseException as error:
                fan.ended(number, error)

    def one(number: int) -> Any:
        fan.enter(number)
        return do(number)

    # Not a pool: its threads would outlive an interrupt of this one, which has to wait for what is under way.
    threads = [
        threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        for _ in range(fan.wide)
    ]
    started: list[threading.Thread] = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for thread in started:
            thread.join()
    except BaseException:
        fan.stopped = True
        for thread in started:
            thread.join()
        raise
    return fan.outcome()


async def spread_async(fan: MapRun, do: Callable[[int], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Do all items in tasks of the event loop."""
    import asyncio

    async def work() -> None:
        while (number := fan.take()) is not None:
            fan.enter(number)
            try:
                fan.results[number] = await do(number)
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                fan.stopped = True
                raise
            except BaseException as error:
                fan.ended(number, error)

    workers = [asyncio.ensure_future(work()) for _ in range(fan.wide)]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return fan.outcome()


def bind(fn: Callable[P, R]) -> Callable[P, R]:
    """The same function, that knows the task it was bound in wherever it is called: `pool.map(holdfast.bind(work), items)`.

    Threads of a pool do not inherit where they are. Steps that `fn` calls, or asks for by `current_task()`, belong to
    the task (and step) in which `bind` was called.
    """
    inside = current_frame()
    if inside is None:
        raise NoTask(
            "there is no task here to bind to; call it inside `with store.task(id) as task:`"
        )
    if is_async(fn):

        @functools.wraps(fn)
        async def bound_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            token = frame.set(inside)
            try:
                return await fn(*args, **kwargs)  # type: ignore[misc]  # it is async
            finally:
                frame.reset(token)

        return bound_async  # type: ignore[return-value]  # as async as it was
    context = copy_context()

    @functools.wraps(fn)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(fn, *args, **kwargs)

    return bound
