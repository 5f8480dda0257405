"""One test body for plain and for async tasks: it awaits everything, and a plain task's methods can
be awaited here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Coroutine
from contextlib import closing
from typing import Any, TypeVar

import holdfast
from holdfast import AsyncTask, Store, Task
from holdfast.tasks.steps.declare import stream_kind

T = TypeVar("T")


class AwaitedTask:
    """A plain task whose methods are awaited. Nothing ever waits, so that no event loop is
    needed."""

    def __init__(self, task: Task) -> None:
        self.plain = task

    async def __aenter__(self) -> AwaitedTask:
        self.plain.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.plain.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.plain, name)
        if not inspect.ismethod(found) or not (
            name == "step" or inspect.iscoroutinefunction(getattr(AsyncTask, name))
        ):
            return found

        async def method(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            return AwaitedTask(answer) if isinstance(answer, Task) else answer

        async def chunks(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with closing(found(*args, **kwargs)) as given:
                for chunk in given:
                    yield chunk

        return (
            method
            if name != "step"
            else lambda *args, **kwargs: (chunks if stream_kind(args[1]) else method)(
                *args, **kwargs
            )
        )


class Ways:
    """An open store, and tasks on it of one of the two kinds. `store` itself is the plain one, to
    look from outside."""

    def __init__(self, store: Store, *, asynchronous: bool) -> None:
        self.store, self.asynchronous = store, asynchronous

    def task(self, id: str = "t", *, tenant: str | None = None, **options: Any) -> Any:
        store = self.store if tenant is None else self.store.for_tenant(tenant)
        return (
            store.aio.task(id, **options)
            if self.asynchronous
            else AwaitedTask(store.task(id, **options))
        )

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        if self.asynchronous:
            return asyncio.run(program)
        try:
            program.send(None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        finally:
            program.close()
        raise AssertionError("a plain task waited for something")

    def resume(self, work: Any, id: str = "t", **options: Any) -> Any:
        """Open the task, do the work in it, leave it, and give back what the work gave."""

        async def program() -> Any:
            async with self.task(id, **options) as task:
                return await work(task)

        return self.run(program())


def view(ways: Ways, id: str = "t") -> holdfast.TaskView:
    found = ways.store.get_task(id)
    assert found is not None
    return found
