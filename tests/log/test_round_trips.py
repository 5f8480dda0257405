"""How many requests the common calls send: to the backend, and on DynamoDB and S3 to the service.

A request to a server takes a round trip, and on DynamoDB and S3 each one is billed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers import servers
from helpers.engines.counted_calls import CountedCalls
from holdfast import Store
from holdfast._open import open_backend
from holdfast.backends import Backend
from holdfast.backends.objects.request_pool import RequestPool
from holdfast.errors import Conflict

STEPS = 20
HELLO = {"role": "user", "content": "hello"}

pytestmark = [pytest.mark.every_engine, pytest.mark.unencrypted]


class Broken(Exception):
    pass


@pytest.fixture
def inner(url: str) -> Iterator[Backend]:
    """A backend with a task, a stream and a conversation."""
    backend = open_backend(url)
    with holdfast.open(CountedCalls(backend)) as store:
        fill(store, STEPS)
    yield backend
    backend.close()


@pytest.fixture
def calls(inner: Backend) -> CountedCalls:
    """What a process that has just opened the store asks of its backend."""
    return CountedCalls(inner)


@pytest.fixture
def cold(calls: CountedCalls) -> Iterator[Store]:
    with holdfast.open(calls) as store:
        calls.take()
        yield store


def fill(store: Store, steps: int) -> None:
    with pytest.raises(Broken), store.task("job", goal="to be resumed") as task:
        for number in range(steps):
            task.step(f"step {number}", lambda: "done")
        raise Broken
    store.stream("events").append(("noted", 1))
    store.conversation("chat").append(HELLO)


def test_a_cold_resume_sends_three_requests(cold: Store, calls: CountedCalls) -> None:
    with cold.task("job") as task:
        assert task.step("step 0", fail) == "done"
        assert calls.take() == ["first_head", "read", "append"]
        task.step("one more", lambda: "done")
        assert calls.take() == ["append"]
    assert calls.take() == ["append"]


def test_a_cold_resume_sends_three_requests_async(calls: CountedCalls) -> None:
    async def resume() -> None:
        async with holdfast.aopen(calls) as store:
            calls.take()
            async with store.task("job") as task:
                assert await task.step("step 0", fail) == "done"
                assert calls.take() == ["first_head", "read", "append"]

    asyncio.run(resume())


def test_a_cold_append_sends_two_requests_and_a_warm_one_sends_one(
    cold: Store, calls: CountedCalls
) -> None:
    cold.stream("events").append(("noted", 2))
    assert calls.take() == ["head", "append"]
    cold.stream("events").append(("noted", 3))
    assert calls.take() == ["append"]


def test_a_cold_append_to_a_conversation_sends_three_requests_and_a_warm_one_sends_one(
    cold: Store, calls: CountedCalls
) -> None:
    chat = cold.conversation("chat")
    chat.append(HELLO)
    assert calls.take() == ["head", "read", "append"]
    chat.append(HELLO)
    assert calls.take() == ["append"]


def test_a_read_leaves_only_the_append_to_do(cold: Store, calls: CountedCalls) -> None:
    assert len(list(cold.stream("events").read())) == 1
    calls.take()
    cold.stream("events").append(("noted", 2))
    assert calls.take() == ["append"]


def test_a_view_of_a_task_sends_two_requests(cold: Store, calls: CountedCalls) -> None:
    view = cold.get_task("job")
    assert view is not None
    assert len(view.steps) == STEPS
    assert calls.take() == ["head", "read"]


def test_submitting_a_new_task_sends_two_requests(cold: Store, calls: CountedCalls) -> None:
    cold.submit("writer", "first", input={"topic": "foxes"})
    # Once in each process, the tenant is looked up.
    assert calls.take() == ["first_head", "head", "append"]
    for name in ("second", "third"):
        assert cold.submit("writer", name, input={"topic": "foxes"})
        # Whether the task exists, or a sweep has retired its id.
        assert calls.take() == ["first_head", "append"]


def test_submitting_a_new_task_sends_two_requests_async(calls: CountedCalls) -> None:
    async def submit() -> None:
        async with holdfast.aopen(calls) as store:
            await store.submit("writer", "first")
            calls.take()
            assert await store.submit("writer", "second", input={"topic": "foxes"})
            assert calls.take() == ["first_head", "append"]

    asyncio.run(submit())


def test_entering_a_new_task_sends_two_requests(cold: Store, calls: CountedCalls) -> None:
    with cold.task("first"):
        calls.take()
    calls.take()
    with cold.task("second"):
        assert calls.take() == ["first_head", "append"]


def test_a_task_that_exists_is_submitted_again_as_before(cold: Store, inner: Backend) -> None:
    assert cold.submit("writer", "job-2", input=1)
    with holdfast.open(CountedCalls(inner)) as other:
        assert not other.submit("writer", "job-2", input=1)
        other.submit("writer", "job-3", input=1)
    assert not cold.submit("writer", "job-3", input=1)
    view = cold.get_task("job-3")
    assert view is not None
    assert view.input == 1


def test_a_position_learned_by_reading_may_be_out_of_date(cold: Store, inner: Backend) -> None:
    stream = cold.stream("events")
    version = stream.version()
    list(stream.read())
    with holdfast.open(CountedCalls(inner)) as other:
        other.stream("events").append(("noted", "elsewhere"))
    with pytest.raises(Conflict):
        stream.append(("noted", "too late"), if_version=version)
    stream.append(("noted", "here"))
    assert [event.data for event in stream.read()] == [1, "elsewhere", "here"]


def test_a_position_learned_by_reading_may_be_of_a_deleted_life(
    cold: Store, inner: Backend
) -> None:
    chat = cold.conversation("chat")
    assert len(chat.messages()) == 1
    with holdfast.open(CountedCalls(inner)) as other:
        other.conversation("chat").delete()
        other.conversation("chat").append(HELLO, HELLO)
    again = cold.conversation("chat")
    assert len(again.messages()) == 2
    again.append(HELLO)
    assert len(again.messages()) == 3


def fail() -> Any:
    raise AssertionError("a recorded step ran again")


# -- requests to the service -----------------------------------------------------------------------


class SentRequests:
    """Counts what the client of AWS sends while a caller waits. Nothing is tidied meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from botocore.httpsession import URLLib3Session

        self._sent = 0
        send = URLLib3Session.send

        def count(session: Any, request: Any) -> Any:
            self._sent += 1
            return send(session, request)

        monkeypatch.setattr(URLLib3Session, "send", count)
        monkeypatch.setattr(RequestPool, "run_later", lambda pool, work: None)

    def take(self) -> int:
        sent, self._sent = self._sent, 0
        return sent


@pytest.mark.server
@pytest.mark.parametrize(
    # On S3 each append is an object to get; DynamoDB returns a page of them.
    ("engine", "most"),
    [("dynamodb", 14), ("s3", 14 + STEPS + 3)],
)
def test_requests_to_the_service(
    engine: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = servers.url_on(engine, tmp_path)
    with holdfast.open(url) as store:
        fill(store, STEPS)
    sent = SentRequests(monkeypatch)
    with holdfast.open(url) as store:
        sent.take()
        store.stream("events").append(("noted", 2))
        assert sent.take() <= 6
        store.stream("events").append(("noted", 3))
        assert sent.take() == 2
        store.submit("writer", "first")
        sent.take()
        store.submit("writer", "second")
        # Two roots (the task's, and that of its retired id), three index entries, the new root.
        assert sent.take() == 6
    with holdfast.open(url) as store:
        sent.take()
        with store.task("job") as task:
            task.step("step 0", fail)
            assert sent.take() <= most
