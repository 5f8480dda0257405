"""The index of memories belongs to its stream: of another one, also of the same one at an earlier
time, it shows nothing."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.memory.memory_facts import FACTS, STORES, answers, fill, indexed, right_answers
from helpers.run_cli import run
from helpers.stores import url_of
from holdfast.backends import clock as _clock
from holdfast.memory.embedders import Embedder
from holdfast.memory.resources import MAX_FOLLOWERS, get_follower, get_resources
from holdfast.memory.search.catch_up import EXPIRY_CHECK_SECONDS


def texts(store: holdfast.Store, namespace: str = "m") -> list[str]:
    return [known.text for known in store.memory(namespace).all()]


def remember(url: str, *facts: str, index: Path | None = None) -> None:
    with holdfast.open(url, index=index) as store:
        for fact in facts:
            store.memory("m").remember(fact)
        assert texts(store)[-len(facts) :] == list(facts)


# -- a stream that is another one ------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_store_that_was_restored_from_a_backup_shows_what_is_in_it_and_what_is_new(
    tmp_path: Path, lost: int
) -> None:
    """The index is ahead of the stream, as far as it, or behind it; and then the stream goes on."""
    url, folder, backup = url_of("files", tmp_path), tmp_path / "agents", tmp_path / "backup"
    remember(url, "Ann likes tea", "Bob likes coffee")
    shutil.copytree(folder, backup)
    remember(url, *["Eve plays chess", "Kim plays poker", "Joe plays darts"][:lost])
    for name in ("memory.db", "memory.db-wal", "memory.db-shm"):
        if (folder / name).exists():
            shutil.copy(folder / name, backup / name)
    shutil.rmtree(folder)
    backup.rename(folder)
    with holdfast.open(url) as store:
        store.memory("m").remember("Zoe likes milk")
        store.memory("m").remember("Max likes water")
        new = store.memory("m").remember("Ida likes juice")
        assert texts(store) == [
            "Ann likes tea",
            "Bob likes coffee",
            "Zoe likes milk",
            "Max likes water",
            "Ida likes juice",
        ]
        assert [hit.text for hit in store.memory("m").recall("Ida", k=1)] == ["Ida likes juice"]
        assert (
            store.memory("m").get(new) is not None and store.memory("m").recall("who plays?") == []
        )
        assert store.memory("m").stats().version == 5


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_copy_with_the_index_of_the_original_recalls_nothing_of_it(
    tmp_path: Path, more: int
) -> None:
    """Both are the same incarnation, at the same version or not: only the records differ."""
    first, second, index = f"{tmp_path}/a.db", f"{tmp_path}/b.db", tmp_path / "index.db"
    remember(first, "Ann likes tea", index=index)
    assert run("copy", first, second).exit_code == 0
    remember(first, "Bob likes coffee", index=index)
    with holdfast.open(second, index="memory") as store:
        for number in range(more + 1):
            store.memory("m").remember(f"Eve plays chess against {number}")
    for _ in range(2):
        with holdfast.open(second, index=index) as store:
            assert [hit.text for hit in store.memory("m").recall("who likes coffee?")] == [
                "Ann likes tea"
            ]
            assert len(texts(store)) == more + 2
        with holdfast.open(first, index=index) as store:
            assert texts(store) == ["Ann likes tea", "Bob likes coffee"]


@pytest.mark.slow
def test_the_position_in_an_index_says_which_record_is_there(tmp_path: Path) -> None:
    for name in STORES:
        with holdfast.open(url_of(name, tmp_path)) as store:
            memory = store.memory("m")
            memory.remember("Ann likes tea")
            memory.recall("tea")
            head = store._log.backend.head(memory._key)
            position = get_follower(store._log, memory._key).index.position(memory._key)
            assert head is not None and position == (head.incarnation, head.version, head.hash)


def test_an_event_of_a_kind_that_only_a_newer_release_knows_is_passed_over(tmp_path: Path) -> None:
    from holdfast.log import operations as ops
    from holdfast.log.events import NewEvent, new_append_context
    from holdfast.log.operations.stream_ops import append_events

    with holdfast.open(url_of("sqlite", tmp_path)) as store:
        memory = store.memory("m")
        memory.remember("Ann likes tea")
        ops.run(
            store._log,
            append_events(memory._key, [NewEvent("memory.painted", b"{}")], new_append_context()),
        )
        memory.remember("Bob likes coffee")
        assert texts(store) == ["Ann likes tea", "Bob likes coffee"]


# -- made anew while others ask --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ("memory", *STORES))
def test_while_the_index_is_made_anew_everybody_is_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.memory.search.catch_up.BATCH_EVENTS", 3)
    url = url_of(name, tmp_path)
    with holdfast.open(url) as store:
        memory = store.memory("m")
        for fact in FACTS:
            memory.remember(fact, source="orders")
        expected, index = answers(store), inside(store)
        asked: list[Any] = []

        def then_ask(method: str) -> None:
            original = getattr(type(index), method)

            def asking(self: Any, *args: Any) -> Any:
                done = original(self, *args)
                if len(asked) < 30:
                    asked.append(None)
                    asked[-1] = answers(store), memory.stats().memories
                return done

            monkeypatch.setattr(type(index), method, asking)

        for method in ("write", "clear", "replace"):
            then_ask(method)
        memory.remember("Customer Zoe ordered 99 boats")
        memory.rebuild()
        assert len(asked) > 7 and all(answer == (expected, len(FACTS) + 1) for answer in asked)
        assert (
            answers(store) == expected
            and memory.recall("boats", k=1)[0].text == "Customer Zoe ordered 99 boats"
        )


def inside(store: holdfast.Store) -> Any:
    index: Any = get_follower(store._log, store.memory("m")._key).index
    return getattr(index, "_index", index)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("then", ["rebuild", "delete"])
def test_what_a_rebuild_that_was_cut_off_has_left_is_taken_away(
    name: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(name, tmp_path)
    fill(url)
    with holdfast.open(url) as store:
        memory, expected = store.memory("m"), answers(store)
        follower, kind = get_follower(store._log, memory._key), type(inside(store))
        with monkeypatch.context() as patched:
            patched.setattr("holdfast.memory.search.catch_up.BATCH_EVENTS", 3)
            patched.setattr(kind, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                memory.rebuild()
        assert answers(store) == expected and follower.index.position(follower._beside) is not None
        getattr(memory, then)()
        assert follower.index.position(follower._beside) is None
        assert answers(store) == (expected if then == "rebuild" else [[], [], [], []])


def test_a_rebuild_mends_what_is_wrong_in_the_index(tmp_path: Path) -> None:
    url = url_of("files", tmp_path)
    fill(url)
    expected = indexed(url)
    with sqlite3.connect(tmp_path / "agents" / "memory.db") as connection:
        connection.execute("DELETE FROM memory_docs WHERE number > 5")
    connection.close()
    with holdfast.open(url) as store:
        assert answers(store) != expected
        store.memory("m").rebuild()
        assert answers(store) == expected == right_answers(url)


# -- what has expired ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_what_has_expired_leaves_the_index(
    name: str, tmp_path: Path, clock: Callable[[float], None]
) -> None:
    with holdfast.open(url_of(name, tmp_path)) as store:
        memory = store.memory("m")
        memory.remember("The key of the shed is blue")
        memory.remember_many([{"text": f"The token is {number}", "ttl": 10} for number in range(5)])
        memory.recall("token")
        index = get_follower(store._log, memory._key).index
        clock(11)
        assert memory.stats().memories == 1 and index.list_expired(memory._key, _clock.time(), 9), (
            "it was just now"
        )
        clock(EXPIRY_CHECK_SECONDS)
        assert (
            memory.recall("token") == [] and index.list_expired(memory._key, _clock.time(), 9) == []
        )
        again = memory.remember("The token is 3", ttl=10)
        assert [known.id for known in memory.all(author="model")][1:] == [again]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on only when it is told to."""
    now = [_clock.time()]
    monkeypatch.setattr(_clock, "time", lambda: now[0])

    def go_on(seconds: float) -> None:
        now[0] += seconds

    return go_on


def test_what_has_expired_is_not_sent_to_the_embedder(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    sent: list[str] = []

    def embed(given: Sequence[str]) -> list[list[float]]:
        sent.extend(given)
        return [[1.0, 2.0] for _ in given]

    with holdfast.open(url_of("sqlite", tmp_path)) as store:
        memory = store.memory("m", embed=Embedder(embed, name="one"))
        memory.remember_many([{"text": f"The token is {number}", "ttl": 1} for number in range(5)])
        memory.remember("The key of the shed is blue")
        clock(2)
        memory.recall("shed")
        assert sorted(sent) == ["The key of the shed is blue", "shed"]


@pytest.mark.slow
def test_a_process_keeps_only_some_namespaces_in_mind(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        first = store.memory("0").remember("Ann likes tea")
        for number in range(1, MAX_FOLLOWERS + 5):
            store.memory(str(number)).remember("Bob likes coffee")
        followers = get_resources(store._log)
        assert len(followers._followers) == MAX_FOLLOWERS
        assert store.memory("0").remember("ann likes tea") == first, "it is found again"


# -- two at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_of_two_who_supersede_the_same_memory_at_once_the_second_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(name, tmp_path)
    with holdfast.open(url) as store, holdfast.open(url) as other:
        mine, theirs = store.memory("m"), other.memory("m")
        prepare = type(mine)._prepare_memories
        for rival in ("supersede", "forget"):
            old = mine.remember(f"Ann signs the orders, says the {rival}r")

            def after_the_rival(self: Any, new: Any, old: str = old, rival: str = rival) -> Any:
                monkeypatch.setattr(type(mine), "_prepare_memories", prepare)
                theirs.supersede(
                    old, "Carl signs the orders"
                ) if rival == "supersede" else theirs.forget(old)
                return prepare(self, new)

            monkeypatch.setattr(type(mine), "_prepare_memories", after_the_rival)
            with pytest.raises(holdfast.NotFound, match="another process superseded"):
                mine.supersede(old, "Bob signs the orders")
            assert texts(store) == texts(other) == ["Carl signs the orders"]
            assert mine.get(old) is None
        assert indexed_anew(url) == ["Carl signs the orders"]


def indexed_anew(url: str) -> list[str]:
    with holdfast.open(url, index="memory") as store:
        return texts(store)


def test_of_many_who_supersede_at_once_one_does(tmp_path: Path) -> None:
    names = ("Bob", "Carl", "Dora", "Emil")

    async def at_once() -> None:
        async with holdfast.aopen(url_of("sqlite", tmp_path)) as store:
            memory = store.memory("m")
            old = await memory.remember("Ann signs the orders")
            new = [memory.supersede(old, f"{name} signs the orders") for name in names]
            done = dict(zip(names, await asyncio.gather(*new, return_exceptions=True), strict=True))
            [(name, new_id)] = [(name, one) for name, one in done.items() if isinstance(one, str)]
            assert sum(isinstance(one, holdfast.NotFound) for one in done.values()) == 3
            assert [known.text async for known in memory.all()] == [f"{name} signs the orders"]
            assert any(await asyncio.gather(*(memory.forget(new_id) for _ in range(4))))
            assert [known async for known in memory.all()] == [] and await memory.forget(
                new_id
            ) is False

    asyncio.run(at_once())
