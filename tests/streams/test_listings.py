"""Listings leave out what has expired, for every kind of stream, also before any sweep."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import holdfast
from helpers.run_cli import run
from helpers.stored.expiring_streams import plant, user
from holdfast import Store, testing


def make_expired_ones(store: Store) -> None:
    """One of each kind that has expired, between two that have not."""
    for name in ("a", "b", "c"):
        store.conversation(name).append(user("Hello"))
        store.state(name).save({"n": 1})
        with store.task(name, goal="g", ttl=0 if name == "b" else None) as task:
            task.finish("done")
        # Neither expires so far; their listings follow the same rule.
        if name == "b":
            plant(store, "stream", name, -60)
            plant(store, "memory", name, -60)
        else:
            store.stream(name).append(("n", 1))
            store.memory(name).remember("Ann signs the orders")
    store.conversation("b").expire(0)
    store.state("b").expire(0)


@pytest.mark.every_engine
def test_listings_leave_out_what_has_expired(store: Store) -> None:
    make_expired_ones(store)
    assert [info.id for info in store.conversations()] == ["a", "c"]
    assert [info.id for info in store.states()] == ["a", "c"]
    assert [info.id for info in store.tasks()] == ["a", "c"]
    assert [info.id for info in store.streams()] == ["a", "c"]
    assert [info.namespace for info in store.memory_namespaces()] == ["a", "c"]

    async def list_all() -> list[list[str]]:
        aio = store.aio
        return [
            [info.id async for info in aio.conversations()],
            [info.id async for info in aio.states()],
            [info.id async for info in aio.tasks()],
            [info.id async for info in aio.streams()],
            [info.namespace async for info in aio.memory_namespaces()],
        ]

    assert asyncio.run(list_all()) == [["a", "c"]] * 5

    store.conversation("b").expire(None)
    store.state("b").expire(None)
    assert [info.id for info in store.conversations()] == ["a", "b", "c"]
    assert [info.id for info in store.states()] == ["a", "b", "c"], "it was brought back"


def test_the_commands_list_what_has_not_expired(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        make_expired_ones(store)
    for command in ("conversations", "tasks", "streams", "memories"):
        listed = [json.loads(line) for line in run(command, path, "--json").stdout.splitlines()]
        names = [facts.get("id") or facts.get("namespace") for facts in listed]
        assert names == ["a", "c"], f"holdfast {command} lists what has expired"


def test_a_listing_follows_the_clock(store: Store) -> None:
    with testing.fake_clock() as clock:
        store.state("soon").save(1)
        store.state("soon").expire(60)
        clock.advance(59)
        [info] = store.states()
        assert info.expires_at is not None
        clock.advance(1)
        assert list(store.states()) == []
