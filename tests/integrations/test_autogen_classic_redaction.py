"""Chats of classic AutoGen in a store that redacts: what was cut off is found again; collected
where `test_autogen_classic.py` is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.integrations.autogen_classic import persisted

from .classic_plays import Cast, Cut, actor, cut, spoken

NEW_CLASSIC = os.environ["HOLDFAST_FRAMEWORK"] != "classic-agentchat"
CARD = "4111 1111 1111 1111"
TEXT, STORED = f"pay with {CARD}", "pay with [redacted: card]"


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://", redact=True) as store:
        yield store


def couple(**options: Any) -> Cast:
    assistant, user = actor("assistant", "one", "two", "three", **options), actor("user", "go on")
    return Cast(
        (assistant, user),
        (assistant, user),
        lambda: user.initiate_chat(assistant, message=TEXT, max_turns=3, silent=True),
    )


def test_a_chat_that_was_cut_off_goes_on_with_the_same_message(store: holdfast.Store) -> None:
    first = couple()
    cut(first, 3)
    with pytest.raises(Cut), persisted(store, "chat", *first.persisted):
        first.begin()
    again = couple()
    spoken.clear()
    with persisted(store, "chat", *again.persisted) as chat:
        again.begin()
    assert spoken == ["assistant", "user", "assistant"]
    said = [message["content"] for message in chat.conversation.messages()]
    assert said == [STORED, "one", "go on", "two", "go on", "three"]


def test_it_goes_on_in_the_same_process_too(store: holdfast.Store) -> None:
    play = couple()
    cut(play, 3)
    with persisted(store, "chat", *play.persisted) as chat:
        with pytest.raises(Cut):
            play.begin()
        play.begin()
        assert chat.conversation.count() == 6


def test_what_was_stored_before_anything_was_redacted_is_known(store: holdfast.Store) -> None:
    first = couple()
    cut(first, 3)
    with holdfast.open("memory://") as keeps:
        with pytest.raises(Cut), persisted(keeps, "chat", *first.persisted):
            first.begin()
        again = couple()
        with holdfast.open(keeps._log.backend, redact=True) as redacts:
            with persisted(redacts, "chat", *again.persisted) as chat:
                again.begin()
            assert [message["content"] for message in chat.conversation.messages()][:2] == [
                TEXT,
                "one",
            ]
            assert chat.conversation.count() == 6


@pytest.mark.skipif(not NEW_CLASSIC, reason="it has no context variables")
def test_a_context_variable_that_is_redacted_stays_as_the_program_has_made_it(
    store: holdfast.Store,
) -> None:
    def made() -> Cast:
        play = couple()
        play.agents[0].context_variables.update({"api_key": "abc", "step": 0})
        return play

    first = made()
    cut(first, 3)
    with pytest.raises(Cut), persisted(store, "chat", *first.persisted):
        first.agents[0].context_variables.set("step", 1)
        first.begin()
    again = made()
    with persisted(store, "chat", *again.persisted):
        variables = again.agents[0].context_variables
        assert (variables.get("api_key"), variables.get("step")) == ("abc", 1)
