"""Followers hear of appends by the engine's own way where it has one, and look politely where it
has none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from helpers.stores import url_of
from holdfast.backends import BillsRequests, SupportsWatch
from holdfast.log import polling

RINGING = ("postgres", "redis")


@pytest.fixture(params=RINGING)
def ringing_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not rung for waits longer than a test may take."""
    for name in ("MIN_POLL_SECONDS", "MAX_POLL_SECONDS", "MAX_POLL_SECONDS_WITH_NOTIFY"):
        monkeypatch.setattr(polling, name, 1000.0)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_follower_is_rung_for_what_others_append(ringing_url: str) -> None:
    with holdfast.open(ringing_url) as store, holdfast.open(ringing_url) as other:
        for number in range(3):
            other.conversation(f"c{number}").append({"role": "user", "content": "before"})
        followed = store.conversation("c1").follow()
        assert next(followed).message["content"] == "before"
        heard: list[str] = []
        done = threading.Event()

        def listen() -> None:
            for entry in followed:
                heard.append(str(entry.message["content"]))
                if len(heard) == 5:
                    break
            followed.close()
            done.set()

        thread = threading.Thread(target=listen)
        thread.start()
        for number in range(5):
            other.conversation("c0").append({"role": "user", "content": "elsewhere"})
            other.conversation("c1").append({"role": "user", "content": f"{number}"})
        assert done.wait(60)
        thread.join()
    assert heard == [f"{number}" for number in range(5)]


@pytest.mark.usefixtures("patient")
def test_many_async_followers_are_rung_for_each_their_own(ringing_url: str) -> None:
    async def main() -> None:
        async with holdfast.aopen(ringing_url) as store, holdfast.aopen(ringing_url) as other:

            async def first_two(name: str) -> list[str]:
                followed = store.conversation(name).follow()
                found = [(await anext(followed)).message["content"] for _ in range(2)]
                await followed.aclose()  # type: ignore[attr-defined]
                return found

            names = [f"c{number}" for number in range(12)]
            followers = [asyncio.ensure_future(first_two(name)) for name in names]
            for word in ("one", "two"):
                for name in reversed(names):
                    await other.conversation(name).append(
                        {"role": "user", "content": f"{name} {word}"}
                    )
            found = await asyncio.wait_for(asyncio.gather(*followers), 60)
            assert found == [[f"{name} one", f"{name} two"] for name in names]

    asyncio.run(main())


@pytest.mark.usefixtures("patient")
def test_a_follower_that_waits_for_a_conversation_hears_when_it_begins(ringing_url: str) -> None:
    with holdfast.open(ringing_url) as store, holdfast.open(ringing_url) as other:
        heard: list[holdfast.types.MessageEntry] = []
        thread = threading.Thread(
            target=lambda: heard.append(next(store.conversation("new").follow()))
        )
        thread.start()
        other.conversation("new").append({"role": "user", "content": "hello"})
        thread.join(60)
    assert [entry.message["content"] for entry in heard] == ["hello"]


@pytest.mark.every_engine
def test_followers_work_without_being_rung(url: str) -> None:
    with holdfast.open(url) as store:
        chat = store.conversation("c")
        chat.append({"role": "user", "content": "1"})
        followed: Iterator[holdfast.types.MessageEntry] = chat.follow()
        assert next(followed).version == 1
        writer = threading.Timer(0.05, chat.append, ({"role": "user", "content": "2"},))
        writer.start()
        assert next(followed).version == 2
        writer.join()


def test_a_follower_whose_time_is_over_ends(url: str) -> None:
    with holdfast.open(url) as store:
        store.conversation("c").append({"role": "user", "content": "1"})
        assert [entry.version for entry in store.conversation("c").follow(timeout=0.05)] == [1]


@pytest.mark.every_engine
def test_engines_say_how_they_want_to_be_followed(url: str) -> None:
    with holdfast.open(url) as store:
        backend = store._log.backend
        engine = store.health().engine
    assert isinstance(backend, SupportsWatch) == (engine in ("postgresql", "redis"))
    assert isinstance(backend, BillsRequests) == (engine in ("dynamodb", "s3"))
