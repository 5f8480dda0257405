"""Sessions of Google's Agent Development Kit in a store; run in an environment of its own.

`make test` makes the environment; without it this file is not collected.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import holdfast
from helpers.doc_pages import run_page
from helpers.paths import ROOT
from helpers.programs import program
from helpers.stored.notes import read_notes
from holdfast.integrations.google_adk import HoldfastSessionService

from .adk_program import COUNT, WHOSE, make_event


class Echo(BaseLlm):
    """A model that says how much it was shown."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        text = f"seen {len(llm_request.contents)} messages"
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def event(id: str, at: float = 1.0, **delta: Any) -> Event:
    actions = EventActions(state_delta={key.replace("_", ":", 1): v for key, v in delta.items()})
    return Event(id=id, author="clerk", timestamp=at, actions=actions)


def ids(session: Session | None) -> list[str]:
    assert session is not None
    return [each.id for each in session.events]


def test_an_agent_in_another_process_knows_what_was_said(store: holdfast.Store) -> None:
    async def ask(text: str) -> str:
        runner = Runner(
            agent=LlmAgent(name="clerk", model=Echo(model="echo"), output_key="last"),
            app_name="shop",
            session_service=HoldfastSessionService(store),
        )
        message = types.Content(role="user", parts=[types.Part(text=text)])
        said = [
            each
            async for each in runner.run_async(user_id="ann", session_id="s1", new_message=message)
        ]
        return str(said[-1].content.parts[0].text)

    async def main() -> None:
        await HoldfastSessionService(store).create_session(**WHOSE)
        assert await ask("Hello") == "seen 1 messages"
        assert await ask("Again") == "seen 3 messages"
        session = await HoldfastSessionService(store.aio).get_session(**WHOSE)
        assert session is not None and len(session.events) == 4
        assert session.state == {"last": "seen 3 messages"}

    asyncio.run(main())


def test_events_and_state_come_back_and_are_shared_as_their_prefix_says(
    store: holdfast.Store,
) -> None:
    async def main() -> None:
        service = HoldfastSessionService(store)
        first = await service.create_session(**WHOSE, state={"own": 1, "app:a": 1, "user:u": 1})
        assert first.state == {"own": 1, "app:a": 1, "user:u": 1}
        await service.append_event(first, event("e1", own=2, app_a=2, user_u=2, temp_t=3))
        assert first.state["temp:t"] == 3
        assert ids(first) == ["e1"]
        second = await service.create_session(app_name="shop", user_id="bob")
        assert second.state == {"app:a": 2}
        third = await service.create_session(app_name="shop", user_id="ann")
        assert third.state == {"app:a": 2, "user:u": 2}
        found = await HoldfastSessionService(store).get_session(**WHOSE)
        assert found is not None
        assert found.state == {"own": 2, "app:a": 2, "user:u": 2}
        assert found.events[0].actions.state_delta == {"own": 2, "app:a": 2, "user:u": 2}
        assert await service.get_user_state(app_name="shop", user_id="ann") == {"u": 2}
        assert await service.get_user_state(app_name="shop", user_id="nobody") == {}
        listed = await service.list_sessions(app_name="shop", user_id="ann")
        assert {each.id for each in listed.sessions} == {"s1", third.id}
        assert all(each.events == [] for each in listed.sessions)
        everyone = await service.list_sessions(app_name="shop")
        assert {each.user_id for each in everyone.sessions} == {"ann", "bob"}
        assert everyone.sessions[0].id == "s1"  # the oldest: its event has a time of long ago
        assert (await service.list_sessions(app_name="sho")).sessions == []
        await service.delete_session(**WHOSE)
        assert await service.get_session(**WHOSE) is None
        await service.delete_session(**WHOSE)

    asyncio.run(main())


async def follow_cases(service: BaseSessionService) -> list[Any]:
    """Do what the ADK's own tests of session services do, and return everything that is seen."""
    seen: list[Any] = []

    async def look(user: str, id: str, **config: Any) -> None:
        asked = GetSessionConfig(**config) if config else None
        got = await service.get_session(app_name="app", user_id=user, session_id=id, config=asked)
        seen.append(got and (got.app_name, got.user_id, got.id, got.state, got.events))

    async def say(session: Session, number: int, **more: Any) -> None:
        delta = more.pop("delta", {})
        said = Event(
            id=f"{session.id} {number}",
            invocation_id="call",
            author="user",
            timestamp=float(number),
            actions=EventActions(state_delta=delta),
            **more,
        )
        seen.append(await service.append_event(session, said))

    await look("u1", "none")
    first = await service.create_session(
        app_name="app", user_id="u1", session_id="s1", state={"app:k1": "v1", "own": [1]}
    )
    seen.append(first.state)
    await say(first, 1, delta={"app:k2": "v2", "user:k3": "v3", "temp:k4": "v4", "own": [1, 2]})
    seen.append(first.state)
    for user, chosen in (("u1", "s2"), ("u2", "s2"), ("u2", " s3 ")):
        made = await service.create_session(app_name="app", user_id=user, session_id=chosen)
        seen.append((made.id, made.state))
    try:
        await service.create_session(app_name="app", user_id="u1", session_id="s1")
    except AlreadyExistsError as error:
        seen.append(type(error))
    content = types.Content(role="user", parts=[types.Part(text="hi")])
    await say(first, 2, content=content, partial=True)
    await say(first, 3, content=content, turn_complete=True, custom_metadata={"a": {"b": 1}})
    await say(first, 4, error_code="E", error_message="m", branch="a.b")
    await say(first, 5, delta={"own": None, "user:k3": {"deep": [None, True, 1.5]}})
    for options in ({}, {"num_recent_events": 2}, {"after_timestamp": 4.0}):
        await look("u1", "s1", **options)
    await look("u1", "s1", num_recent_events=3, after_timestamp=5.0)
    await look("u2", "s2")
    await look("u2", "s3")
    for who in ("u1", "u2", "nobody", None):
        listed = await service.list_sessions(app_name="app", user_id=who)
        seen.append(sorted((one.user_id, one.id, str(one.state)) for one in listed.sessions))
    seen.append((await service.list_sessions(app_name="other", user_id="u1")).sessions)
    await service.delete_session(app_name="app", user_id="u1", session_id="s2")
    await look("u1", "s2")
    await look("u2", "s2")
    made = await service.create_session(app_name="app", user_id="u1", session_id="s2")
    seen.append((made.state, made.events))
    return seen


def test_the_cases_of_the_framework_end_as_with_its_own_service(store: holdfast.Store) -> None:
    ours = asyncio.run(follow_cases(HoldfastSessionService(store)))
    theirs = asyncio.run(follow_cases(InMemorySessionService()))
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, number


def test_a_session_can_be_read_in_part(store: holdfast.Store) -> None:
    async def main() -> None:
        service = HoldfastSessionService(store)
        session = await service.create_session(**WHOSE)
        for number in range(1, 6):
            await service.append_event(session, event(f"e{number}", float(number)))
        for options, expected in (
            ({"num_recent_events": 2}, ["e4", "e5"]),
            ({"num_recent_events": 0}, []),
            ({"num_recent_events": 9}, ["e1", "e2", "e3", "e4", "e5"]),
            ({"after_timestamp": 4.0}, ["e4", "e5"]),
        ):
            config = GetSessionConfig(**options)
            assert ids(await service.get_session(**WHOSE, config=config)) == expected

    asyncio.run(main())


def test_an_event_is_stored_once_and_a_stale_session_is_refused(store: holdfast.Store) -> None:
    async def main() -> None:
        service = HoldfastSessionService(store)
        session = await service.create_session(**WHOSE)
        stale = await service.get_session(**WHOSE)
        assert stale is not None
        await service.append_event(session, event("e1"))
        await service.append_event(session, event("e1"))
        assert ids(session) == ["e1"]
        with pytest.raises(StaleSessionError):
            await service.append_event(stale, event("e2"))
        assert ids(await service.get_session(**WHOSE)) == ["e1"]
        await service.append_event(session, event("e1", 2.0))  # another event with the same id
        await service.append_event(session, Event(id="p", author="clerk", partial=True))
        assert ids(await service.get_session(**WHOSE)) == ["e1", "e1"]
        by_hand = Session(app_name="shop", user_id="ann", id="s1")
        await service.append_event(by_hand, event("e3"))
        assert len(ids(await service.get_session(**WHOSE))) == 3
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**WHOSE)
        await service.delete_session(**WHOSE)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(session, event("e4"))

    asyncio.run(main())


def test_writers_of_shared_state_at_the_same_time_lose_nothing(store: holdfast.Store) -> None:
    async def main() -> None:
        service = HoldfastSessionService(store)

        async def write(number: int) -> None:
            session = await service.create_session(app_name="shop", user_id="ann")
            await service.append_event(session, event("e", **{f"user_k{number}": number}))

        await asyncio.gather(*map(write, range(6)))
        found = await service.get_user_state(app_name="shop", user_id="ann")
        assert found == {f"k{number}": number for number in range(6)}

    asyncio.run(main())


def test_names_with_slashes_are_not_mixed_up_and_tenants_are_apart(store: holdfast.Store) -> None:
    async def main() -> None:
        service = HoldfastSessionService(store)
        await service.create_session(app_name="a/b", user_id="c", session_id="d")
        assert await service.get_session(app_name="a", user_id="b/c", session_id="d") is None
        assert (await service.list_sessions(app_name="a")).sessions == []
        [found] = (await service.list_sessions(app_name="a/b")).sessions
        assert (found.user_id, found.id) == ("c", "d")
        other = HoldfastSessionService(store.for_tenant("acme"))
        assert (await other.list_sessions(app_name="a/b")).sessions == []

    asyncio.run(main())
    with pytest.raises(TypeError, match="must be an open store"):
        HoldfastSessionService("agents.db")  # type: ignore[arg-type]


def test_killed_before_and_after_every_write_no_event_is_lost_or_doubled(tmp_path: Path) -> None:
    place, notes = tmp_path / "agents.db", tmp_path / "notes"
    command = program("integrations.adk_program", place, notes)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kills = [note for note in read_notes(notes) if note["what"] == "kill"]
    assert len(kills) >= 2 * COUNT
    with holdfast.open(place) as store:
        session = asyncio.run(HoldfastSessionService(store).get_session(**WHOSE))
    assert ids(session) == [make_event(number).id for number in range(COUNT)]
    assert session is not None
    assert session.state == {"n": 3, "user:seen": 3, "app:seen": 3}


def test_an_unsupported_version_says_what_to_install(tmp_path: Path) -> None:
    start = "import sys; sys.modules['google.adk.events'] = None; "
    done = subprocess.run(
        [sys.executable, "-c", start + "import holdfast.integrations.google_adk"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install -U google-adk" in done.stderr.splitlines()[-1]


def test_the_python_on_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    for _ in range(2):
        printed, promised = run_page("docs/howto/google-adk.md", tmp_path, warnings="default")
        assert printed == promised


def test_the_example_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "google_adk_chat.py"), "ann"]
    for said, answers in (
        ("Hello", ["1 turns so far"]),
        ("Hello", ["(resuming)", "2 turns so far"]),
    ):
        with subprocess.Popen(
            [*command, str(tmp_path / "agents.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "ADK_MODEL": "offline"},
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(f"{said}\n")
                process.stdin.flush()
                assert [process.stdout.readline().strip() for _ in answers] == answers
            finally:
                process.kill()
