"""Recorded tasks, and replays that must change nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast
from helpers.sync_and_async import AwaitedTask, Ways
from holdfast import Store, Suspended
from holdfast.backends import Head, StreamKey
from holdfast.types import ReplayResult

Body = Callable[[Any], Awaitable[Any]]

calls: list[str] = []
"""The functions that were called, of those that are marked as `live`."""


def live(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a replay must not call."""

    @functools.wraps(fn)
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(fn.__name__)
        return fn(*args, **kwargs)

    return noted


one = live(lambda: 1)


class Stop(BaseException):
    """The process is gone: what was written is there, the program did not go on."""


def agent_of(ways: Ways, body: Body) -> Callable[[Any], Any]:
    """An agent of the kind that is tested, from a body that awaits everything."""

    async def awaited(task: holdfast.AsyncTask) -> Any:
        return await body(task)

    def plain(task: holdfast.Task) -> Any:
        return ways.run(body(AwaitedTask(task)))  # type: ignore[arg-type]  # an async function gives a coroutine

    return awaited if ways.asynchronous else plain


def record(ways: Ways, body: Body, id: str = "t", **options: Any) -> Any:
    """Run a task for real."""
    agent = agent_of(ways, body)
    if ways.asynchronous:
        return asyncio.run(ways.store.aio.run(agent, id, **options))
    return ways.store.run(agent, id, **options)


def suspend(ways: Ways, body: Body, id: str = "t", **options: Any) -> None:
    with pytest.raises(Suspended):
        record(ways, body, id, **options)


def cut_off(ways: Ways, body: Body, id: str = "t") -> None:
    """Run a task until it is interrupted."""
    with contextlib.suppress(Stop):
        record(ways, body, id)


def replay(ways: Ways, body: Body, id: str = "t", *, version: int | None = None) -> ReplayResult:
    """Replay a task, and see that nothing was called, and nothing in the store has changed."""
    agent, before = agent_of(ways, body), everything(ways.store)
    calls.clear()
    if ways.asynchronous:
        found = asyncio.run(ways.store.aio.replay(agent, id, version=version))
    else:
        found = ways.store.replay(agent, id, version=version)
    assert calls == []
    assert everything(ways.store) == before
    return found


def everything(store: Store) -> dict[StreamKey, tuple[Any, ...]]:
    """Every stream of the store, and where it stands."""
    found: dict[StreamKey, tuple[Any, ...]] = {}
    for tenant, kind in [
        *(
            (store.tenant, kind)
            for kind in ("task", "conversation", "blob", "state", "stream", "audit", "closed")
        ),
        ("$system", "tenant"),
    ]:
        after = ""
        backend = store._log.backend
        while page := backend.heads(tenant=tenant, kind=kind, after=after):
            found.update((each.stream, _standing(backend.head(each.stream))) for each in page)
            after = page[-1].stream.id
    return found


def _standing(head: Head | None) -> tuple[Any, ...]:
    assert head is not None
    return head.version, head.hash, head.incarnation, head.fields


def departure(found: ReplayResult) -> tuple[str, str]:
    """In what, and where, a program departs."""
    assert not found.ok
    assert found.ended == "diverged"
    assert found.divergence is not None
    return found.divergence.what, found.divergence.step
