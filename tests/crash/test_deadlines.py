"""A server that no longer answers: every call ends within the timeout of the store, with an error
that says whether something may have been written."""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from helpers.engines.black_hole import BlackHole
from helpers.engines.postgres_server import running
from helpers.engines.redis_server import Server as RedisServer
from helpers.servers import SERVERS, aws, free_port, start_moto
from holdfast.errors import OutcomeUnknown, Unavailable

TIMEOUT = 3.0
HELLO = {"role": "user", "content": "hello"}
SLACK = 2.5
"""For a busy machine. Without the deadline, a call takes several times the timeout."""


class Silent(NamedTuple):
    """A store that works now. `fall_silent` stops the server, or the network to it."""

    url: str
    fall_silent: Callable[[], None]
    recover: Callable[[], None]


@contextmanager
def server_of(engine: str, place: Path) -> Iterator[tuple[int, Callable[[int], str], Silent]]:
    """A server of its own: its port, the URL of a store at a port, and how it is paused."""
    if engine == "postgres":
        with running(memory=True) as server:
            port = server.port
            yield (
                port,
                lambda at: server.url().replace(str(port), str(at)) + "&schema=deadlines",
                Silent("", server.freeze, server.thaw),
            )
        return
    if engine == "redis":
        redis = RedisServer(place / "redis")
        process, port = redis.process, redis.port
        url: Callable[[int], str] = lambda at: f"redis://127.0.0.1:{at}/0"  # noqa: E731
    else:
        aws()  # sets the credentials
        port = free_port()
        process = start_moto(port)
        if engine == "s3":
            bucket = urllib.request.Request(f"http://127.0.0.1:{port}/deadlines", method="PUT")
            urllib.request.urlopen(bucket, timeout=30).close()
        name = "deadlines" if engine == "dynamodb" else "deadlines/agents"
        url = (  # noqa: E731
            lambda at: f"{engine}://{name}?region=eu-central-1&endpoint=http://127.0.0.1:{at}"
        )
    pause = lambda: process.send_signal(signal.SIGSTOP)  # noqa: E731
    resume = lambda: process.send_signal(signal.SIGCONT)  # noqa: E731
    try:
        yield port, url, Silent("", pause, resume)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["paused server", "black hole"])
def silent(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[Silent]:
    with server_of(engine, tmp_path) as (port, url, pausing):
        if request.param == "paused server":
            yield Silent(url(port), pausing.fall_silent, pausing.recover)
            return
        with BlackHole(port) as hole:

            def swallow(on: bool) -> None:
                hole.swallowing = on

            yield Silent(url(hole.port), lambda: swallow(True), lambda: swallow(False))
            assert hole.swallowed, "nothing was swallowed"


def timed(call: Callable[[], object]) -> tuple[float, BaseException | None]:
    """How long a call took, and how it ended."""
    started = time.monotonic()
    try:
        call()
    except (Unavailable, OutcomeUnknown) as error:
        return time.monotonic() - started, error
    return time.monotonic() - started, None


@pytest.mark.slow
@pytest.mark.parametrize("engine", SERVERS)
def test_every_call_ends_within_the_timeout_when_the_server_falls_silent(silent: Silent) -> None:
    async def append_async() -> None:
        await store.aio.stream("async").append(("noted", 2))

    async def read_async() -> None:
        await store.aio.stream("s").last(1)

    def run_step() -> None:
        with store.task("t") as task:
            task.step("a", silent.fall_silent)

    def enter_task() -> None:
        with store.task("other"):
            pass

    with holdfast.open(silent.url, timeout=TIMEOUT) as store:
        for name in ("s", "async"):
            store.stream(name).append(("noted", 1))
        list(store.tasks())
        with store.task("done"):
            pass
        store.conversation("c").append(HELLO)
        store.memory("m").remember("Dogs bark.")
        store.memory("m").recall("What do dogs do?")
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: store.stream("s").append(("noted", 2)),
            "append with id": lambda: store.stream("s").append(("noted", 3), id="three"),
            "append to a new stream": lambda: store.stream("new").append(("noted", 2)),
            "append async": lambda: asyncio.run(append_async()),
            "read": lambda: list(store.stream("s").read()),
            "read async": lambda: asyncio.run(read_async()),
            "list": lambda: list(store.tasks()),
            "enter a task": enter_task,
            "submit a task": lambda: store.submit("agent", "submitted"),
            "submit a task with a large input": lambda: store.submit(
                "agent", "large", input="x" * 100_000
            ),
            "view a task": lambda: store.get_task("done"),
            "cancel a task": lambda: store.task("done").cancel(),
            "run what is due": store.run_due,
            "append to a conversation": lambda: store.conversation("c").append(HELLO),
            "read a conversation": lambda: store.conversation("c").messages(),
            "load a state": lambda: store.state("s").load(),
            "remember": lambda: store.memory("m").remember("Foxes are red."),
            "recall": lambda: store.memory("m").recall("What are foxes?"),
            "delete": lambda: store.conversation("c").delete(),
            "sweep": store.sweep,
            "health": store.health,
            "verify": store.verify,
            "copy": lambda: holdfast.copy(store, "memory://"),
            "open": lambda: holdfast.open(silent.url, timeout=TIMEOUT).close(),
        }
        with ThreadPoolExecutor(len(calls) + 1) as threads:
            try:
                took, error = timed(run_step)
                assert isinstance(error, Unavailable | OutcomeUnknown), "the server answered"
                # The result of the step, and then leaving the block, which is tried once more.
                ended = {"step": (took / 2, error)}
                answers = {name: threads.submit(timed, call) for name, call in calls.items()}
                ended |= {name: answer.result(60) for name, answer in answers.items()}
            finally:
                silent.recover()
        late = {name: took for name, (took, _) in ended.items() if took > TIMEOUT + SLACK}
        assert not late, "these took longer than the timeout"
        answered = [name for name, (_, error) in ended.items() if error is None]
        assert not answered, "the server was not silent"
        # What is in doubt is settled by repeating it.
        assert store.stream("s").append(("noted", 3), id="three").last >= 2
        assert [event.data for event in store.stream("s").read()].count(3) == 1
