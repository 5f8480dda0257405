"""Interrupts at every instant of a turn: of taking it, of the appends in it, and of ending it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from helpers.chat_messages import user
from helpers.example_counts import LONG
from helpers.interrupts import Interrupts, Place, count_phases, list_places
from holdfast import Store

pytestmark = pytest.mark.usefixtures("ignore_lost_interrupts")

LEASE = 3600.0


def work(store: Store, id: str, at: Interrupts) -> None:
    at.phase = "taking"
    with store.conversation(id).turn(lease=LEASE, wait=0) as turn:
        at.phase = "appending"
        turn.append(user("hello"), id="hello")
        at.phase = "ending"


async def work_async(store: Store, id: str, at: Interrupts) -> None:
    at.phase = "taking"
    async with store.aio.conversation(id).turn(lease=LEASE, wait=0) as turn:
        at.phase = "appending"
        await turn.append(user("hello"), id="hello")
        at.phase = "ending"


WAYS: dict[str, Callable[[Store, str, Interrupts], Any]] = {
    "plain": work,
    "async": lambda store, name, at: asyncio.run(work_async(store, name, at)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_turn_interrupted_at_any_instant_can_be_taken_at_once(url: str, way: str) -> None:
    url = f"memory://{secrets.token_hex(8)}" if url == "memory://" else url
    hits: list[Place | None] = []
    with holdfast.open(url) as store, holdfast.open(url) as other:
        take = WAYS[way]
        take(store, "warm", Interrupts())
        # On disk an async turn works in threads, which no signal interrupts.
        within = (
            "committer" if way == "async" and not url.startswith("memory:") and not LONG else ""
        )
        for number, place in enumerate(list_places(lambda at: take(store, "listed", at))):
            if within not in str(place):
                continue
            at, name = Interrupts(place), f"interrupted-{number}"
            at.run(lambda at: take(store, name, at))  # noqa: B023  it is called at once
            hits.append(at.hit)
            if number % 2:
                with other.conversation(name).turn(wait=30):
                    pass
            take(store, name, Interrupts())
            with other.conversation(name).turn(wait=0) as chat:
                assert chat.messages() == [user("hello")], at.hit
    assert set(count_phases(hits)) == {"taking", "appending", "ending"}


def test_a_turn_can_be_entered_again_with_the_same_object(store: Store) -> None:
    turn = store.conversation("c").turn(wait=0)
    for text in ("a", "b"):
        with turn as chat, turn as same:
            chat.append(user(text))
            assert same.count() == chat.count()
        assert store.health().oldest_lease is None
    assert store.conversation("c").count() == 2
