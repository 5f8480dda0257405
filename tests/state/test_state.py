"""State documents: exact values, every version, time to live, declared types; plain and async."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import msgspec
import pydantic
import pytest

import holdfast
from helpers.stored.state_documents import KEY, message, stored_types
from holdfast import AsyncState, State
from holdfast.backends import StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.log import operations as ops
from holdfast.log.codec import encode
from holdfast.log.log import Log
from holdfast.state.state import EXPIRES


class Watched:
    """A log that remembers what it was asked for."""

    def __init__(self, log: Log) -> None:
        self.log, self.asked, self.redaction = log, list[str](), log.redaction
        self.timeout = log.timeout

    def handle(self, request: ops.Request) -> Any:
        self.asked.append(type(request).__name__)
        return self.log.handle(request)


def watched(store: holdfast.Store) -> tuple[State, list[str]]:
    log = Watched(store._log)
    return State(cast(Log, log), KEY, Any), log.asked


# -- saving and loading ----------------------------------------------------------------------------


@pytest.mark.every_engine
def test_what_is_saved_is_loaded_with_its_types_and_the_order_of_its_keys(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    saved: list[Any] = [
        {"b": 1, "a": [1.0, True, None, "é😀"], "": {}},
        {"b": True, "a": [1, True, None, "é😀"], "": {}},
        {"": {}, "a": [1, True, None, "é😀"], "b": True},
        {"": {}, "a": [1, True, -0.0, "é😀"], "b": True, "new": [[]]},
        None,
        [],
        "text",
    ]
    for number, value in enumerate(saved, 1):
        assert doc.save(value) == number
        for reader in (doc, store.state("doc")):
            assert encode(reader.load("nothing")) == encode(value)
    assert [encode(doc.load(version=number)) for number in range(1, 8)] == [
        encode(value) for value in saved
    ]
    assert doc.version() == 7 and doc.id == "doc" and repr(doc) == "<State 'doc'>"


def test_a_document_that_was_never_saved_is_its_default(store: holdfast.Store) -> None:
    doc = store.state("doc")
    assert (doc.load(None), doc.load([]), doc.version(), doc.history(), doc.delete()) == (
        None,
        [],
        0,
        [],
        False,
    )
    doc.clear()
    assert doc.version() == 0 and store.health().streams == {}
    for call in (
        doc.load,
        lambda: doc.load(version=1),
        lambda: doc.rollback(1),
        lambda: doc.expire(5),
    ):
        with pytest.raises(holdfast.NotFound):
            call()


def test_what_is_done_to_a_value_after_saving_or_loading_it_does_not_matter(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    value = {"messages": [{"content": "x" * 200}]}
    doc.save(value)
    value["messages"].append({"content": "not saved"})
    loaded = doc.load()
    loaded["messages"][0]["content"] = "changed"
    assert doc.load() == {"messages": [{"content": "x" * 200}]}
    doc.save(loaded)
    assert store.state("doc").load() == {"messages": [{"content": "changed"}]}


def test_an_equal_value_writes_nothing(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"a": 1})
    doc.save({"a": 1, "b": 2})
    for same in (doc, store.state("doc")):
        assert same.save({"a": 1, "b": 2}) == 2
        assert same.save({"a": 1, "b": 2}, if_version=2) == 2
    assert doc.version() == 2
    assert doc.save({"a": 1.0, "b": 2}) == 3, "1.0 is another value than 1"


def test_an_equal_value_is_written_if_somebody_else_saved_meanwhile(store: holdfast.Store) -> None:
    doc, other = store.state("doc"), store.state("doc")
    doc.save("mine")
    other.save("theirs")
    assert doc.save("mine") == 3
    assert other.load() == "mine"


def test_a_value_that_cannot_be_stored_leaves_nothing_behind(store: holdfast.Store) -> None:
    doc = store.state("doc")
    with pytest.raises(holdfast.errors.NotSerializable, match=r"\$\.when"):
        doc.save({"when": object()})
    with pytest.raises(holdfast.errors.TooLarge):
        doc.save("x" * 17_000_000)
    with pytest.raises(ValueError, match="must be an integer"):
        doc.save(1, if_version=-1)
    assert doc.version() == 0 and store.health().streams == {}
    doc.save([1])
    with pytest.raises(holdfast.errors.NotSerializable):
        doc.save([1, {2}])
    assert doc.load() == [1]


def test_a_save_on_what_is_known_is_one_append_and_nothing_else(store: holdfast.Store) -> None:
    doc, asked = watched(store)
    doc.save({"n": 0, "pad": "x" * 500})
    asked.clear()
    for number in range(1, 4):
        doc.save({"n": number, "pad": "x" * 500})
    assert asked == ["AppendRecords"] * 3
    asked.clear()
    assert doc.load()["n"] == 3 and asked == ["GetHead"]
    store.state("doc").save({"n": 4, "pad": "x" * 500})
    asked.clear()
    assert doc.load()["n"] == 4 and asked == ["GetHead", "Read", "GetHead"], (
        "only what is new is read"
    )


def test_creating_a_document_does_nothing_until_it_is_used(store: holdfast.Store) -> None:
    doc, asked = watched(store)
    assert asked == [] and doc.id == "doc"
    with pytest.raises(holdfast.errors.InvalidId):
        store.state("")
    with pytest.raises(TypeError, match="cannot be stored"):
        store.state("doc", type=object.__new__)


def test_documents_are_listed_and_tenants_have_their_own(store: holdfast.Store) -> None:
    for name in ("b", "a"):
        store.state(name).save(name)
    store.for_tenant("acme").state("a").save("of acme")
    store.stream("c").append(("n", 1))
    assert list(store.states()) == [holdfast.StateInfo("a", 1), holdfast.StateInfo("b", 1)]
    assert store.state("a").load() == "a"

    async def listed() -> list[str]:
        return [info.id async for info in store.aio.states()]

    assert asyncio.run(listed()) == ["a", "b"]


# -- versions --------------------------------------------------------------------------------------


def test_history_tells_when_who_and_how_large(store: holdfast.Store) -> None:
    doc = store.state("doc")
    with holdfast.correlate("req-1", actor="planner"):
        doc.save({"a": "x" * 1000})
    doc.save({"a": "x" * 1000, "b": 1})
    doc.expire(3600)
    doc.clear()
    doc.save({"a": "x" * 1000})
    doc.save({"a": "x" * 200_000})
    first, *_ = history = doc.history()
    assert (first.version, first.by, first.correlation) == (1, "planner", "req-1")
    assert first.at.tzinfo is not None
    assert [(entry.version, entry.size) for entry in history] == [
        (1, 1008),
        (2, 1014),
        (4, 0),
        (5, 1008),
        (6, 200_008),
    ]
    assert history[1].by is None and [entry.at for entry in history] == sorted(
        entry.at for entry in history
    )


def test_history_does_not_load_large_values(store: holdfast.Store) -> None:
    store.state("doc").save({"big": "x" * 100_000})
    doc, asked = watched(store)
    assert [entry.size for entry in doc.history()] == [100_010]
    assert "ReadRecords" not in asked


def test_rolling_back_is_a_new_version_with_the_old_value(store: holdfast.Store) -> None:
    doc = store.state("doc")
    values = [
        {"n": number, "messages": [message(n, 100) for n in range(number)]}
        for number in range(1, 6)
    ]
    for value in values:
        doc.save(value)
    assert doc.rollback(2) == 6
    assert doc.load() == values[1] == store.state("doc").load()
    assert [doc.load(version=number) for number in range(1, 7)] == [*values, values[1]]
    assert doc.rollback(2) == 6, "it has that value already"
    assert doc.save(values[4]) == 7
    for nothing in (0, 8, 100):
        with pytest.raises(holdfast.NotFound, match="history"):
            doc.rollback(nothing)
        with pytest.raises(holdfast.NotFound):
            doc.load(version=nothing)
    with pytest.raises(ValueError, match="must be an integer"):
        doc.load(version=-1)


def test_a_cleared_document_has_no_value_and_keeps_its_versions(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"a": 1})
    doc.clear()
    doc.clear()
    assert (doc.load("nothing"), doc.version()) == ("nothing", 2)
    for call in (lambda version: doc.load(version=version), doc.rollback):
        with pytest.raises(holdfast.NotFound, match="cleared"):
            call(2)
    with pytest.raises(holdfast.Conflict):
        doc.save(1, if_version=0)
    assert doc.save({"a": 2}, if_version=2) == 3
    assert doc.rollback(1) == 4 and store.state("doc").load() == {"a": 1}


@pytest.mark.every_engine
def test_a_deleted_document_is_gone_with_its_versions_and_its_large_values(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    doc.save({"big": "x" * 100_000})
    doc.save({"big": "x" * 100_000, "more": "y" * 100_000})
    assert store.health().streams == {"state": 1, "blob": 2}
    assert doc.delete(reason="test") is True
    assert store.health().streams == {"audit": 1}
    assert (doc.load("nothing"), doc.history(), doc.version()) == ("nothing", [], 0)
    assert doc.save({"new": 1}, if_version=0) == 1
    assert store.state("doc").load() == {"new": 1}


# -- time to live ----------------------------------------------------------------------------------


def test_an_expired_document_can_be_revived_or_deleted_and_nothing_else(
    store: holdfast.Store,
) -> None:
    doc, other = store.state("doc"), store.state("doc")
    doc.save({"a": 1})
    other.load()
    doc.expire(0)
    refused: list[Callable[[State], object]] = [
        lambda stale: stale.load(),
        lambda stale: stale.save({"a": 2}),
        lambda stale: stale.save({"a": 1}),
        lambda stale: stale.save({"a": 2}, if_version=2),
        lambda stale: stale.load(version=1),
        lambda stale: stale.rollback(1),
        lambda stale: stale.history(),
        lambda stale: stale.clear(),
    ]
    for call in refused:
        for stale in (doc, other, store.state("doc")):
            with pytest.raises(holdfast.errors.Expired, match="expire"):
                call(stale)
    assert doc.version() == 2
    doc.expire(None)
    assert other.load() == {"a": 1} and other.save({"a": 2}) == 4
    assert stored_types(store)[1:3] == [EXPIRES, EXPIRES]
    doc.expire(timedelta(0))
    assert doc.delete() is True
    assert doc.load("nothing") == "nothing"


def test_until_it_expires_a_document_is_as_before(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save([1])
    doc.expire(timedelta(hours=1))
    assert (doc.load(), doc.save([1, 2]), doc.save([1, 2, 3]), store.state("doc").load()) == (
        [1],
        3,
        4,
        [1, 2, 3],
    )
    assert doc.load(version=2) == [1] and [entry.version for entry in doc.history()] == [1, 3, 4]
    head = store._log.backend.head(KEY)
    assert head is not None and head.fields.expires_at is not None
    assert 3500 < head.fields.expires_at - head.now <= 3600, "a save does not prolong it"


def test_a_document_that_expires_while_it_is_known_is_noticed_by_the_next_save() -> None:
    """By the engine's clock, not by ours: this engine is years ahead."""

    class Ahead(MemoryBackend):
        years = 0

        def head(self, stream: StreamKey) -> Any:
            head = super().head(stream)
            return head and msgspec.structs.replace(head, now=head.now + self.years * 365 * 86_400)

    backend = Ahead()
    with holdfast.open(backend) as store:
        doc = store.state("doc")
        doc.save(1)
        doc.expire(3600)
        doc.save(2)
        backend.years = 2
        with pytest.raises(holdfast.errors.Expired):
            doc.save(3)
        with pytest.raises(holdfast.errors.Expired):
            doc.load()


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), True, "5", timedelta(-1)])
def test_a_time_to_live_that_makes_no_sense_is_refused(store: holdfast.Store, ttl: Any) -> None:
    store.state("doc").save(1)
    with pytest.raises(ValueError, match="ttl"):
        store.state("doc").expire(ttl)
    assert store.state("doc").version() == 1


# -- declared types --------------------------------------------------------------------------------


@dataclass
class Plan:
    goal: str
    steps: list[tuple[str, int]]
    spent: timedelta


class Team(pydantic.BaseModel):
    name: str
    budget: float
    members: set[str]


class Purse(pydantic.BaseModel):
    """Written by Pydantic itself, which spells large numbers in another way than we do."""

    owner: str
    amount: float


class Shelf(msgspec.Struct):
    books: dict[int, str]


@pytest.mark.parametrize(
    ("declared", "before", "after"),
    [
        (
            Plan,
            Plan("g" * 100, [("a", 1)], timedelta(seconds=1)),
            Plan("g" * 100, [("a", 1), ("b", 2)], timedelta(seconds=2)),
        ),
        (
            Team,
            Team(name="n" * 100, budget=1e16, members={"x", "y"}),
            Team(name="n" * 100, budget=2e16, members={"y", "z", "x"}),
        ),
        (Purse, Purse(owner="o" * 100, amount=1e16), Purse(owner="o" * 100, amount=2e16)),
        (Shelf, Shelf({1: "b" * 100}), Shelf({1: "b" * 100, 2: "c"})),
        (list[Plan], [], [Plan("g", [], timedelta(0))]),
        (int, 2**70, 2**70 + 1),
    ],
    ids=["dataclass", "model", "struct", "keys", "list", "integer"],
)
def test_values_of_a_declared_type_come_back_as_that_type(
    store: holdfast.Store, declared: Any, before: Any, after: Any
) -> None:
    doc = store.state("doc", type=declared)
    doc.save(before)
    doc.save(after)
    again = store.state("doc", type=declared)
    assert again.load() == after and type(again.load()) is type(after)
    assert again.load(version=1) == before
    assert store.state("doc", type=declared).save(after) == 2 == doc.save(after), (
        "equal values have equal bytes"
    )


def test_a_stored_value_that_does_not_fit_the_declared_type_is_a_mismatch(
    store: holdfast.Store,
) -> None:
    store.state("doc").save({"goal": 5})
    doc = store.state("doc", type=Plan)
    mismatched: list[Callable[[], object]] = [doc.load, lambda: doc.load(version=1)]
    for call in mismatched:
        with pytest.raises(holdfast.errors.SchemaMismatch) as caught:
            call()
        assert (caught.value.version, caught.value.stream) == (1, "state 'doc'")
    with pytest.raises(holdfast.errors.NotSerializable):
        doc.save({"goal": "a dict is not a Plan"})
    doc.save(Plan("g", [], timedelta(0)))
    assert doc.load() == Plan("g", [], timedelta(0))


# -- async -----------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_the_async_twin_has_the_same_methods_and_does_the_same(store: holdfast.Store) -> None:
    for name, method in inspect.getmembers(State, inspect.isfunction):
        if not name.startswith("_"):
            twin = getattr(AsyncState, name)
            assert inspect.getdoc(method) and inspect.getdoc(twin)
            assert inspect.signature(method).parameters == inspect.signature(twin).parameters, name

    async def use() -> None:
        doc = store.aio.state("doc")
        assert await doc.load("nothing") == "nothing"
        assert await doc.save({"a": [1]}) == 1
        assert await doc.save({"a": [1, 2]}, if_version=1) == 2
        with pytest.raises(holdfast.Conflict):
            await doc.save(0, if_version=1)
        assert await doc.load() == {"a": [1, 2]} and await doc.load(version=1) == {"a": [1]}
        assert await doc.rollback(1) == 3 and await doc.version() == 3
        await doc.clear()
        assert [entry.version for entry in await doc.history()] == [1, 2, 3, 4]
        await doc.expire(0)
        with pytest.raises(holdfast.errors.Expired):
            await doc.save(1)
        assert await doc.delete() is True
        assert await store.aio.state("typed", type=Shelf).save(Shelf({1: "a"})) == 1

    asyncio.run(use())


def test_an_async_save_takes_the_value_when_it_is_called(store: holdfast.Store) -> None:
    async def use() -> None:
        doc, value = store.aio.state("doc"), {"messages": ["first"]}
        saving = asyncio.create_task(doc.save(value))
        value["messages"].append("later")
        await saving
        assert await doc.load() == {"messages": ["first"]}
        waiting = doc.save(value)
        value["messages"].clear()
        assert await waiting == 2
        assert await doc.load() == {"messages": ["first", "later"]}

    asyncio.run(use())


def test_many_async_saves_at_once_are_a_version_each(store: holdfast.Store) -> None:
    values = [{"n": number, "pad": "x" * 300} for number in range(40)]

    async def use() -> dict[int, Any]:
        doc = store.aio.state("doc")
        versions = await asyncio.gather(*(doc.save(value) for value in values))
        return dict(zip(versions, values, strict=True))

    saved = asyncio.run(use())
    assert sorted(saved) == list(range(1, 41))
    assert {version: store.state("doc").load(version=version) for version in saved} == saved
