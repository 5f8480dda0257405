"""Sessions of the Claude Agent SDK in a store: the SDK's own contracts, each entry once, retention,
and a real session that another machine resumes."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ResultMessage,
    delete_session_via_store,
    fork_session_via_store,
    get_session_messages_from_store,
    import_session_to_store,
    list_sessions_from_store,
    list_subagents_from_store,
    project_key_for_directory,
    query,
    rename_session_via_store,
    tag_session_via_store,
)
from claude_agent_sdk.testing import run_session_store_conformance

import holdfast
from helpers.model_server import ModelServer
from helpers.paths import ROOT
from helpers.programs import program
from helpers.stored.notes import read_notes
from holdfast.integrations.claude_agent import HoldfastSessionStore
from holdfast.testing import fake_clock

from .claude_program import ENTRIES, KEY, SUBAGENT

USER: Any = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "hello"}}


def entries(*names: str) -> Any:
    return [{"type": "user", "uuid": name, "text": f"entry {name}"} for name in names]


@pytest.fixture
def memory() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@pytest.mark.every_engine
def test_all_contracts_of_the_sdk_hold(store: holdfast.Store) -> None:
    made = itertools.count()
    asyncio.run(
        run_session_store_conformance(
            lambda: HoldfastSessionStore(store.for_tenant(f"contract {next(made)}"))
        )
    )
    assert next(made) == 15  # a store to look at, and one for each of the 14 contracts


def test_all_contracts_hold_for_sessions_that_expire_and_are_about_somebody(
    memory: holdfast.Store,
) -> None:
    made = itertools.count()
    asyncio.run(
        run_session_store_conformance(
            lambda: HoldfastSessionStore(
                memory.for_tenant(f"contract {next(made)}"), ttl=timedelta(days=30), subject="ann"
            )
        )
    )


# -- each entry once -------------------------------------------------------------------------------


def test_a_repeated_append_and_batches_that_overlap_store_each_entry_once(
    store: holdfast.Store,
) -> None:
    async def main() -> None:
        sessions, other = HoldfastSessionStore(store), HoldfastSessionStore(store.aio)
        await sessions.append(KEY, entries("a", "b"))
        await sessions.append(KEY, entries("a", "b"))
        await other.append(KEY, entries("b", "c", "c"))
        await sessions.append(KEY, entries("a", "d"))
        await other.append(KEY, entries("c", "b"))
        assert await sessions.load(KEY) == entries("a", "b", "c", "d")

    asyncio.run(main())


def test_an_entry_without_uuid_is_appended_as_often_as_it_comes(memory: holdfast.Store) -> None:
    title: Any = {"type": "custom-title", "customTitle": "orders"}

    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        await sessions.append(KEY, [title])
        await sessions.append(KEY, [title, *entries("a")])
        await sessions.append(KEY, [title])
        assert await sessions.load(KEY) == [title, title, *entries("a"), title]

    asyncio.run(main())


def test_an_append_whose_outcome_was_unknown_is_recognised_when_it_is_repeated(
    memory: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = holdfast.AsyncConversation.append

    async def lose_the_answer(self: Any, *messages: Any, **options: Any) -> Any:
        await plain(self, *messages, **options)
        raise holdfast.OutcomeUnknown("conversation", id="x")

    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        await sessions.append(KEY, entries("a"))
        for batch in (entries("b", "c"), [{"type": "tag", "tag": "x"}]):
            with monkeypatch.context() as patched:
                patched.setattr(holdfast.AsyncConversation, "append", lose_the_answer)
                with pytest.raises(holdfast.OutcomeUnknown):
                    await sessions.append(KEY, batch)
            await sessions.append(KEY, batch)
        assert await sessions.load(KEY) == [*entries("a", "b", "c"), {"type": "tag", "tag": "x"}]

    asyncio.run(main())


def test_writers_at_the_same_time_lose_and_double_nothing(store: holdfast.Store) -> None:
    async def write(sessions: HoldfastSessionStore, names: list[str]) -> None:
        for name in names:
            await sessions.append(KEY, entries(name, "shared"))

    async def main() -> None:
        names = [[f"{writer}-{n}" for n in range(8)] for writer in range(4)]
        shared = HoldfastSessionStore(store)
        stores = [shared, shared, HoldfastSessionStore(store), HoldfastSessionStore(store)]
        await asyncio.gather(*map(write, stores, names))
        loaded = [entry["uuid"] for entry in await shared.load(KEY) or ()]
        assert sorted(loaded) == sorted(["shared", *itertools.chain(*names)])
        for own in names:
            assert [name for name in loaded if name in own] == own

    asyncio.run(main())


def test_a_session_that_another_process_deleted_is_stored_again_as_a_whole(
    memory: holdfast.Store,
) -> None:
    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        await sessions.append(KEY, entries("a", "b"))
        await HoldfastSessionStore(memory).delete(KEY)
        await sessions.append(KEY, entries("a", "b"))
        assert await sessions.load(KEY) == entries("a", "b")
        await HoldfastSessionStore(memory).delete(KEY)
        await sessions.append(KEY, entries("c"))
        assert await sessions.load(KEY) == entries("c")

    asyncio.run(main())


def test_an_entry_that_was_removed_by_hand_can_be_appended_again(memory: holdfast.Store) -> None:
    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        await sessions.append(KEY, entries("a", "b"))
        memory.conversation("claude/-srv-app/2f3c").clear()
        await sessions.append(KEY, entries("a"))
        assert await sessions.load(KEY) == entries("a")

    asyncio.run(main())


@pytest.mark.slow
def test_killed_before_and_after_every_write_nothing_is_lost_or_doubled(
    durable_url: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    command = program("integrations.claude_program", durable_url, notes, warnings="error")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    kills = [note for note in read_notes(notes) if note["what"] == "kill"]
    assert len(kills) >= 20
    with holdfast.open(durable_url) as store:
        sessions = HoldfastSessionStore(store)
        for key in (KEY, SUBAGENT):
            assert asyncio.run(sessions.load(key)) == ENTRIES
        [summary] = asyncio.run(sessions.list_session_summaries(KEY["project_key"]))
        assert summary["data"]["first_prompt"] == "line 0"
        for info in store.conversations():
            assert info.expires_at is not None


# -- any JSON --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["half an emoji: \ud83d", 2**70, 1.5, None, [], {"": [{}, True]}, "\x00", "é" * 40_000]
)
def test_every_json_value_comes_back(memory: holdfast.Store, value: Any) -> None:
    entry: Any = {"type": "user", "uuid": "u", "lastPrompt": value, "value": value}

    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        await sessions.append(KEY, [entry, *entries("b")])
        await sessions.append(KEY, [entry, *entries("c")])
        assert await HoldfastSessionStore(memory).load(KEY) == [entry, *entries("b", "c")]
        [summary] = await sessions.list_session_summaries(KEY["project_key"])
        if isinstance(value, str):
            assert summary["data"]["last_prompt"] == value

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["holdfast-summary", "holdfast-json", "holdfast-"])
def test_an_entry_that_looks_like_one_of_ours_comes_back(memory: holdfast.Store, kind: str) -> None:
    entry: Any = {"type": kind, "data": {}, "json": "{}"}
    sessions = HoldfastSessionStore(memory)
    asyncio.run(sessions.append(KEY, [entry]))
    assert asyncio.run(sessions.load(KEY)) == [entry]


@pytest.mark.parametrize(
    "names", [("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("a", "b"), ("a", "b/"), ("ä b", "ß")]
)
def test_keys_are_not_mixed_up(memory: holdfast.Store, names: tuple[str, str]) -> None:
    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        for other in (("a", "b"), ("a/b", "c"), ("a", "b/c"), ("a%2Fb", "c"), ("b", "a")):
            if other != names:
                key: Any = {"project_key": other[0], "session_id": other[1]}
                await sessions.append(key, entries("other"))
        key = {"project_key": names[0], "session_id": names[1]}
        for subpath in ("subagents/agent-1", "x y/ä%2F"):
            await sessions.append({**key, "subpath": subpath}, entries("sub"))
        assert await sessions.load(key) is None
        await sessions.append(key, entries("own"))
        assert names[1] in [s["session_id"] for s in await sessions.list_sessions(names[0])]
        assert sorted(await sessions.list_subkeys(key)) == ["subagents/agent-1", "x y/ä%2F"]
        await sessions.delete(key)
        assert await sessions.load(key) is None
        assert await sessions.list_subkeys(key) == []

    asyncio.run(main())


# -- retention, tenants, encryption ----------------------------------------------------------------


def test_a_session_expires_after_its_last_entry_and_is_swept(store: holdfast.Store) -> None:
    async def main() -> None:
        sessions = HoldfastSessionStore(store, ttl=timedelta(days=30))
        await sessions.append(KEY, entries("a"))
        clock.advance(timedelta(days=20))
        await sessions.append(KEY, entries("b"))
        clock.advance(timedelta(days=20))
        assert await sessions.load(KEY) == entries("a", "b")
        clock.advance(timedelta(days=20))
        assert await sessions.load(KEY) is None
        assert await sessions.list_sessions(KEY["project_key"]) == []
        assert await sessions.list_session_summaries(KEY["project_key"]) == []
        with pytest.raises(holdfast.errors.Expired):
            await sessions.append(KEY, entries("c"))
        assert len((await store.aio.sweep()).deleted) == 1
        assert await sessions.load(KEY) is None
        await sessions.delete(KEY)
        await sessions.append(KEY, entries("c"))
        assert await sessions.load(KEY) == entries("c")

    with fake_clock() as clock:
        asyncio.run(main())


def test_no_entry_is_stored_before_its_expiry(
    memory: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Any, *args: Any, **options: Any) -> None:
        raise holdfast.errors.Unavailable("gone")

    async def main() -> None:
        sessions = HoldfastSessionStore(memory, ttl=60)
        with monkeypatch.context() as patched:
            patched.setattr(holdfast.AsyncConversation, "expire", fail)
            with pytest.raises(holdfast.errors.Unavailable):
                await sessions.append(KEY, entries("a"))
        assert await sessions.load(KEY) is None
        assert await sessions.list_sessions(KEY["project_key"]) == []
        await HoldfastSessionStore(memory, ttl=60).append(KEY, entries("a"))
        [info] = memory.conversations()
        assert info.expires_at is not None

    asyncio.run(main())


def test_tenants_do_not_see_each_other_and_a_subject_can_be_erased(tmp_path: Path) -> None:
    key = holdfast.keys.generate()
    with holdfast.open(tmp_path / "agents.db", key=key) as store:
        acme = HoldfastSessionStore(store.for_tenant("acme"), subject="ann")
        other = HoldfastSessionStore(store.for_tenant("other"))
        asyncio.run(acme.append(KEY, entries("secret-of-acme")))
        assert asyncio.run(other.load(KEY)) is None
        assert asyncio.run(other.list_sessions(KEY["project_key"])) == []
        store.for_tenant("acme").erase(subject="ann")
        with pytest.raises(holdfast.HoldfastError):
            asyncio.run(HoldfastSessionStore(store.for_tenant("acme")).load(KEY))
    assert all(
        b"secret-of-acme" not in file.read_bytes() for file in tmp_path.iterdir() if file.is_file()
    )


# -- with the SDK ----------------------------------------------------------------------------------


def test_the_functions_of_the_sdk_work_on_the_store(
    memory: holdfast.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = "6b6c2c38-8f4f-4d5e-9a40-6c9b9b2d3a10"
    folder = str(tmp_path)
    project = project_key_for_directory(folder)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    home = tmp_path / "config" / "projects" / project
    lines = [
        '{"type":"user","uuid":"7f4df1a2-3f69-4e36-8b5b-0b4d4f5ad101","parentUuid":null,'
        f'"sessionId":"{session}","timestamp":"2026-01-01T00:00:00.000Z",'
        '"message":{"role":"user","content":"Where is my order?"}}'
    ]
    (home / session / "subagents").mkdir(parents=True)
    (home / f"{session}.jsonl").write_text("\n".join(lines) + "\n")
    (home / session / "subagents" / "agent-x.jsonl").write_text("\n".join(lines) + "\n")

    async def main() -> None:
        sessions = HoldfastSessionStore(memory)
        for batch_size in (500, 1):
            await import_session_to_store(
                session, sessions, directory=folder, batch_size=batch_size
            )
        [message] = await get_session_messages_from_store(sessions, session, directory=folder)
        assert message.message["content"] == "Where is my order?"
        assert await list_subagents_from_store(sessions, session, directory=folder) == ["x"]
        await rename_session_via_store(sessions, session, "orders", directory=folder)
        await tag_session_via_store(sessions, session, "mail", directory=folder)
        [info] = await list_sessions_from_store(sessions, directory=folder)
        assert (info.session_id, info.custom_title, info.tag) == (session, "orders", "mail")
        assert info.first_prompt == "Where is my order?"
        fork = await fork_session_via_store(sessions, session, directory=folder)
        assert len(await list_sessions_from_store(sessions, directory=folder)) == 2
        await delete_session_via_store(sessions, session, directory=folder)
        [left] = await list_sessions_from_store(sessions, directory=folder)
        assert left.session_id == fork.session_id
        assert [info.id for info in memory.conversations()] == [
            f"claude/{project}/{fork.session_id}"
        ]

    asyncio.run(main())


@pytest.mark.slow
def test_a_real_session_is_resumed_on_another_machine(tmp_path: Path) -> None:
    """Machines share nothing but the project's path and the store, which is copied."""
    project = tmp_path / "project"
    project.mkdir()
    with ModelServer() as server:

        async def ask(machine: str, prompt: str, resume: str | None) -> ResultMessage:
            home = tmp_path / machine
            home.mkdir(exist_ok=True)
            env = cli_settings(server, home)
            with holdfast.open(tmp_path / f"{machine}.db") as store:
                options = ClaudeAgentOptions(
                    session_store=HoldfastSessionStore(store),
                    resume=resume,
                    cwd=project,
                    env=env,
                    setting_sources=[],
                    tools=[],
                )
                said = [message async for message in query(prompt=prompt, options=options)]
            assert isinstance(said[-1], ResultMessage)
            return said[-1]

        first = asyncio.run(ask("one", "My name is Ann.", None))
        holdfast.copy(tmp_path / "one.db", tmp_path / "two.db")
        shutil.rmtree(tmp_path / "one")
        second = asyncio.run(ask("two", "What is my name?", first.session_id))
        assert second.session_id == first.session_id
        shown = [
            part
            for message in server.shown()[-1]
            if message["role"] != "system"
            for part in _texts(message)
        ]
        assert shown == ["My name is Ann.", first.result, "What is my name?"]


@pytest.mark.slow
def test_the_chat_in_the_terminal_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "claude_agent_session.py"), "ann"]
    with ModelServer() as server:
        for machine, said, answers in (
            ("one", "My name is Ann.", ["seen 1 messages; last: My name is Ann."]),
            ("two", "And?", ["(resuming)", "seen 3 messages; last: And?"]),
        ):
            home = tmp_path / machine
            home.mkdir()
            with subprocess.Popen(
                [*command, str(tmp_path / "agents.db")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env={**os.environ, **cli_settings(server, home)},
                start_new_session=True,
            ) as process:
                assert process.stdin is not None and process.stdout is not None
                try:
                    process.stdin.write(f"{said}\n")
                    process.stdin.flush()
                    assert [process.stdout.readline().strip() for _ in answers] == answers
                finally:
                    os.killpg(process.pid, signal.SIGKILL)  # Claude's program too


def cli_settings(server: ModelServer, home: Path) -> dict[str, str]:
    """A command-line program of Claude that knows this machine only."""
    return {
        "HOME": str(home),
        "TMPDIR": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "ANTHROPIC_BASE_URL": server.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _texts(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def test_an_sdk_without_session_stores_is_refused_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "claude_agent_sdk.py").write_text("query = None\n")
    done = subprocess.run(
        [sys.executable, "-c", "import holdfast.integrations.claude_agent"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        check=False,
    )
    assert "pip install -U claude-agent-sdk" in done.stderr.splitlines()[-1]


def test_something_else_than_a_store_is_refused() -> None:
    with pytest.raises(TypeError, match="must be an open store"):
        HoldfastSessionStore("agents.db")  # type: ignore[arg-type]
    with holdfast.open("memory://") as store, pytest.raises(ValueError, match="ttl must be"):
        HoldfastSessionStore(store, ttl=-1)


def test_an_entry_that_is_stored_as_text_is_redacted_by_its_fields() -> None:
    entry: Any = {
        "type": "user",
        "uuid": "u",
        "text": "half an emoji: \ud83d",
        "secret": {"of": {"a": "hunter2"}},
        "arguments": ["--password", "hunter2"],
    }
    with holdfast.open("memory://", redact=True) as store:
        sessions = HoldfastSessionStore(store)
        asyncio.run(sessions.append(KEY, [entry]))
        [found] = asyncio.run(sessions.load(KEY)) or []
        [info] = store.conversations()
        assert "hunter2" not in repr(store.conversation(info.id).messages())
    hidden = {
        "secret": {"of": {"a": "[redacted: secret]"}},
        "arguments": ["--password", "[redacted: password]"],
    }
    assert found == {**entry, **hidden}
