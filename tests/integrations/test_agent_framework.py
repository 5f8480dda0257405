"""The Agent Framework on a store: histories, sessions, and workflows that resume without pickle."""

from __future__ import annotations

import asyncio
import collections
import datetime
import decimal
import enum
import json
import os
import subprocess
import sys
import typing
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import PIL.Image
import pydantic
import pytest
from agent_framework import (
    Agent,
    AgentSession,
    Content,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    WorkflowMessage,
    handler,
    response_handler,
)
from agent_framework.exceptions import WorkflowCheckpointException
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    MultiModalMessage,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)
from autogen_core import FunctionCall, Image
from autogen_core.models import FunctionExecutionResult

import holdfast
from helpers.model_server import ModelServer
from helpers.paths import ROOT
from helpers.programs import program
from helpers.stored.notes import read_notes
from holdfast.integrations.agent_framework import (
    HoldfastAgentSessionStore,
    HoldfastCheckpointStorage,
    HoldfastHistoryProvider,
)

from .agent_framework_program import AGENTS, NAME, make_client, make_workflow

pytest_plugins = ["integrations.openai_fixtures"]


@pytest.fixture
def memory() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@asynccontextmanager
async def chat_client(server: ModelServer) -> AsyncIterator[Any]:
    client, sdk = make_client(server.base_url, "any")
    try:
        yield client
    finally:
        await sdk.close()


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages]


# -- histories -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_in_another_process_knows_what_was_said(
    memory: holdfast.Store, server: ModelServer, streamed: bool
) -> None:
    async def ask(text: str) -> str:
        async with chat_client(server) as client:
            agent = Agent(client, context_providers=[HoldfastHistoryProvider(memory)])
            session = agent.create_session(session_id="user-42")
            if not streamed:
                return str((await agent.run(text, session=session)).text)
            return "".join(
                [update.text async for update in agent.run(text, session=session, stream=True)]
            )

    assert asyncio.run(ask("My name is Ann.")) == "seen 1 messages; last: My name is Ann."
    assert asyncio.run(ask("My name?")) == "seen 3 messages; last: My name?"
    assert memory.conversation("user-42").count() == 4


def test_tool_calls_come_back_as_they_were(memory: holdfast.Store, server: ModelServer) -> None:
    ran: list[int] = []

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        ran.append(a + b)
        return a + b

    async def main() -> None:
        async with chat_client(server) as client:
            for text in ('call add {"a": 1, "b": 2}', "thanks"):
                agent = Agent(
                    client, tools=[add], context_providers=[HoldfastHistoryProvider(memory)]
                )
                await agent.run(text, session=agent.create_session(session_id="sum"))

    asyncio.run(main())
    assert ran == [3]
    assert [message["role"] for message in server.shown()[-1]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.every_engine
def test_a_history_and_a_session_come_back_on_every_engine(store: holdfast.Store) -> None:
    async def main() -> None:
        history, sessions = HoldfastHistoryProvider(store), HoldfastAgentSessionStore(store)
        said = [
            Message("user", ["Hello"], message_id="m0"),
            Message("assistant", ["Hi"], message_id="m1"),
        ]
        await history.save_messages("s", said[:1])
        await history.save_messages("s", said)  # the whole transcript again
        await history.save_messages(None, said[:1])
        assert texts(await history.get_messages("s")) == ["Hello", "Hi"]
        assert texts(await history.get_messages(None)) == ["Hello"]
        assert await history.get_messages("other") == []

        session = AgentSession(session_id="s", service_session_id="thread-1")
        session.state["todo"] = {"items": [1, 2], "last": said[1]}
        assert await sessions.get("s") is None
        await sessions.set("s", session)
        session.state["todo"]["items"].append(3)
        found = await HoldfastAgentSessionStore(store.aio).get("s")
        assert found is not None and found.service_session_id == "thread-1"
        assert found.state["todo"]["items"] == [1, 2]
        assert found.state["todo"]["last"].text == "Hi"
        await sessions.delete("s")
        assert await sessions.get("s") is None
        await sessions.delete("s")
        with pytest.raises(ValueError, match="non-empty"):
            await sessions.get("")

    asyncio.run(main())


def test_excluded_messages_can_be_skipped(memory: holdfast.Store) -> None:
    async def main() -> None:
        old = Message("user", ["old"], additional_properties={"_excluded": True})
        await HoldfastHistoryProvider(memory).save_messages("s", [old, Message("user", ["new"])])
        skipping = HoldfastHistoryProvider(memory, skip_excluded=True)
        assert texts(await skipping.get_messages("s")) == ["new"]

    asyncio.run(main())


def test_runs_at_the_same_time_lose_no_message(store: holdfast.Store) -> None:
    async def main() -> None:
        history = HoldfastHistoryProvider(store)
        await asyncio.gather(
            *(history.save_messages("s", [Message("user", [f"m{n}"])]) for n in range(10))
        )
        assert sorted(texts(await history.get_messages("s"))) == sorted(f"m{n}" for n in range(10))

    asyncio.run(main())


def test_a_chat_of_autogen_is_moved_once_with_its_tool_calls(memory: holdfast.Store) -> None:
    call = FunctionCall(id="c1", name="add", arguments='{"a": 1}')
    cut_off = FunctionCall(id="c2", name="add", arguments="{}")
    done = FunctionExecutionResult(call_id="c1", name="add", content="3", is_error=False)
    pixel = Image.from_pil(PIL.Image.new("RGB", (1, 1)))
    said = [
        TextMessage(content="Hello", source="user"),
        ToolCallRequestEvent(content=[call], source="writer"),
        ToolCallExecutionEvent(content=[done], source="writer"),
        ModelClientStreamingChunkEvent(content="It", source="writer"),
        TextMessage(content="It is 3.", source="writer"),
        MultiModalMessage(content=["look", pixel], source="user"),
        ToolCallRequestEvent(content=[cut_off], source="writer"),
    ]

    async def main() -> None:
        history = HoldfastHistoryProvider(memory)
        assert await history.import_autogen("s", said) == 5
        await history.save_messages("s", [Message("user", ["more"])])
        assert await history.import_autogen("s", said) == 0
        assert await history.import_autogen("empty", []) == 0
        found = await history.get_messages("s")
        assert [message.role for message in found] == [
            "user",
            "assistant",
            "tool",
            "assistant",
            "user",
            "user",
        ]
        assert found[1].contents[0].arguments == '{"a": 1}'
        assert found[2].contents[0].call_id == "c1"
        assert found[3].author_name == "writer"
        assert found[4].contents[1].media_type == "image/png"
        with pytest.raises(holdfast.errors.IdReused):
            await history.import_autogen("s", said[:1])

    asyncio.run(main())


# -- checkpoints -----------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Address(pydantic.BaseModel):
    street: str
    since: datetime.date


@dataclass
class Order:
    id: int
    lines: tuple[str, ...]
    colour: Colour = Colour.RED
    address: Address | None = None
    total: decimal.Decimal = field(init=False, default=decimal.Decimal(0))


@dataclass
class Question:
    text: str


ORDER = Order(7, ("a", "b"), Colour.RED, Address(street="Elm", since=datetime.date(2020, 1, 2)))
ORDER.total = decimal.Decimal("1.10")

OWN = [Order, Colour, Address, Question]
VALUES: list[Any] = [
    {"a": [1, 2.5, None, True, "x"]},
    {1: "a", "1": "b", (1, 2): "c"},
    {"$": "not ours", "items": []},
    2**80,
    float("inf"),
    b"\x00\xff",
    {1, 2},
    frozenset({"a"}),
    collections.deque([1, 2]),
    collections.Counter("aab"),
    collections.OrderedDict(b=1, a=2),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
    datetime.time(1, 2),
    datetime.timedelta(days=-1, microseconds=5),
    uuid.UUID(int=5),
    ORDER,
    [Colour.RED],
    Address(street="Oak", since=datetime.date(2021, 1, 1)),
    str,
    list[Order],
    int | None,
    dict[str, typing.Any],
    Question,
]


@pytest.mark.every_engine
def test_checkpoints_come_back_with_every_value(store: holdfast.Store) -> None:
    async def main() -> None:
        storage = HoldfastCheckpointStorage(store, types=OWN)
        kept = [
            WorkflowCheckpoint(
                "w", "hash", state={f"v{n}": value for n, value in enumerate(VALUES)}
            ),
            WorkflowCheckpoint("w", "hash", state={"chat": [Message("user", ["hi"])]}),
            WorkflowCheckpoint("other/w", "hash"),
        ]
        for checkpoint in kept:
            assert await storage.save(checkpoint) == checkpoint.checkpoint_id
        again = HoldfastCheckpointStorage(store.aio, types=OWN)
        assert await again.load(kept[0].checkpoint_id) == kept[0]
        for value, found in zip(
            VALUES, (await again.load(kept[0].checkpoint_id)).state.values(), strict=True
        ):
            assert type(found) is type(value)
        ids = [checkpoint.checkpoint_id for checkpoint in kept[:2]]
        assert await again.list_checkpoint_ids(workflow_name="w") == ids
        assert len(await again.list_checkpoints(workflow_name="w")) == 2
        latest = await again.get_latest(workflow_name="w")
        assert latest is not None and latest.state["chat"][0].text == "hi"
        assert await again.delete(ids[1]) is True
        assert await again.delete(ids[1]) is False
        latest = await again.get_latest(workflow_name="w")
        assert latest is not None and latest.checkpoint_id == ids[0]
        assert await again.get_latest(workflow_name="none") is None
        with pytest.raises(WorkflowCheckpointException):
            await again.load(ids[1])

    asyncio.run(main())


async def follow_cases(storage: Any) -> list[Any]:
    """Do what the framework's own tests of checkpoint storages do; return everything seen."""
    seen: list[Any] = []
    kept = [
        WorkflowCheckpoint(
            name,
            "hash",
            checkpoint_id=f"c{number}",
            previous_checkpoint_id=f"c{number - 1}" if number else None,
            timestamp=f"2026-01-0{number + 1}T00:00:00+00:00",
            messages={"a": [WorkflowMessage(data={"n": number}, source_id="a")]},
            state={"list": [1, "two", None], "_executor_state": {"a": {"n": number}}},
            iteration_count=number,
            metadata={"superstep": number},
        )
        for number, name in enumerate(["one", "two", "one", "one", "Eins/2 ü"])
    ]

    async def look() -> None:
        for name in ("one", "two", "Eins/2 ü", "none", "on"):
            seen.append(await storage.list_checkpoint_ids(workflow_name=name))
            seen.append(await storage.list_checkpoints(workflow_name=name))
            seen.append(await storage.get_latest(workflow_name=name))

    await look()
    for checkpoint in kept:
        seen.append(await storage.save(checkpoint))
    await look()
    for wanted in ("c3", "c4", "c3", "none"):
        try:
            seen.append(await storage.load(wanted))
        except WorkflowCheckpointException as error:
            seen.append(str(error))
        seen.append(await storage.delete(wanted))
        await look()
    return seen


def test_the_cases_of_the_framework_end_as_with_its_own_storage(memory: holdfast.Store) -> None:
    ours = asyncio.run(follow_cases(HoldfastCheckpointStorage(memory)))
    theirs = asyncio.run(follow_cases(InMemoryCheckpointStorage()))
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, number


def test_what_is_stored_belongs_to_no_caller(memory: holdfast.Store) -> None:
    async def main() -> None:
        storage = HoldfastCheckpointStorage(memory)
        checkpoint = WorkflowCheckpoint("w", "hash", state={"deep": {"n": 1}})
        await storage.save(checkpoint)
        checkpoint.state["deep"]["n"] = 2
        loaded = await storage.load(checkpoint.checkpoint_id)
        loaded.state["deep"]["n"] = 3
        [listed] = await storage.list_checkpoints(workflow_name="w")
        listed.state["deep"]["n"] = 4
        latest = await storage.get_latest(workflow_name="w")
        assert latest is not None and latest.state == {"deep": {"n": 1}}
        checkpoint.state = {"deep": {"n": 5}}
        await storage.save(checkpoint)  # replaces it
        assert len(await storage.list_checkpoints(workflow_name="w")) == 1
        assert (await storage.load(checkpoint.checkpoint_id)).state == {"deep": {"n": 5}}
        await storage.delete(checkpoint.checkpoint_id)
        await storage.save(checkpoint)
        assert len(await storage.list_checkpoints(workflow_name="w")) == 1

    asyncio.run(main())


def test_nothing_is_pickled_and_no_stored_name_is_imported(memory: holdfast.Store) -> None:
    async def main() -> None:
        storage = HoldfastCheckpointStorage(memory, types=OWN)
        checkpoint = WorkflowCheckpoint("w", "hash", state={"order": ORDER})
        await storage.save(checkpoint)
        document = memory.state(f"workflow checkpoint {checkpoint.checkpoint_id}")
        stored = document.load()
        assert "pickle" not in json.dumps(stored)
        for name in ("os:system", "this:s", "agent_framework:os", "builtins:eval"):
            forged = json.loads(json.dumps(stored).replace("own:Order", name))
            assert forged != stored
            document.save(forged)
            with pytest.raises(holdfast.errors.NotSerializable, match="has not imported"):
                await storage.load(checkpoint.checkpoint_id)
        assert "this" not in sys.modules
        document.save(stored)
        with pytest.raises(holdfast.errors.NotSerializable, match="Order, which is not in types="):
            await HoldfastCheckpointStorage(memory).load(checkpoint.checkpoint_id)

    asyncio.run(main())


def test_a_type_that_is_not_known_is_refused_with_what_to_pass(memory: holdfast.Store) -> None:
    class Local:
        pass

    async def main() -> None:
        for value, message in ((ORDER, r"pass types=\[Order\]"), (Local(), "Local")):
            with pytest.raises(holdfast.errors.NotSerializable, match=message):
                await HoldfastCheckpointStorage(memory).save(
                    WorkflowCheckpoint("w", "hash", state={"v": value})
                )
        with pytest.raises(holdfast.errors.NotSerializable, match="is not a dataclass"):
            await HoldfastCheckpointStorage(memory, types=[Local]).save(
                WorkflowCheckpoint("w", "hash", state={"v": Local()})
            )
        assert list(memory.states()) == []

    asyncio.run(main())
    with pytest.raises(TypeError, match="must be classes"):
        HoldfastCheckpointStorage(memory, types=[ORDER])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="distinct names"):
        HoldfastCheckpointStorage(memory, types=[Question, type("Question", (), {})])
    with pytest.raises(TypeError, match="must be an open store"):
        HoldfastCheckpointStorage("agents.db")  # type: ignore[arg-type]


class Clerk(Executor):
    """Asks a person before it ends."""

    @handler
    async def start(self, text: str, context: WorkflowContext[str, str]) -> None:
        context.set_state("order", ORDER)
        await context.request_info(Question(f"{text}?"), bool)

    @response_handler
    async def answer(
        self, original: Question, response: bool, context: WorkflowContext[str, str]
    ) -> None:
        order = context.get_state("order")
        await context.yield_output(f"{original.text} {response} {order.total}")


def test_a_workflow_that_waits_for_a_person_is_answered_in_another_process(
    memory: holdfast.Store,
) -> None:
    def build(storage: HoldfastCheckpointStorage) -> Any:
        return WorkflowBuilder(
            name="clerk", start_executor=Clerk(id="clerk"), checkpoint_storage=storage
        ).build()

    async def main() -> None:
        storage = HoldfastCheckpointStorage(memory, types=OWN)
        await build(storage).run("Pay")

        storage = HoldfastCheckpointStorage(memory, types=OWN)
        latest = await storage.get_latest(workflow_name="clerk")
        assert latest is not None
        workflow = build(storage)
        resumed = await workflow.run(checkpoint_id=latest.checkpoint_id)
        [request] = resumed.get_request_info_events()
        assert request.data == Question("Pay?")
        result = await workflow.run(responses={request.request_id: True})
        assert result.get_outputs() == ["Pay? True 1.10"]

    asyncio.run(main())


@pytest.mark.slow
def test_a_workflow_killed_at_every_boundary_repeats_no_finished_model_call(
    server: ModelServer, tmp_path: Path
) -> None:
    place, notes = tmp_path / "agents.db", tmp_path / "notes"
    command = program(
        "integrations.agent_framework_program", server.base_url, place, notes, warnings="error"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = list(read_notes(notes))
    points = [note["point"] for note in found if note["what"] == "kill"]
    assert len(points) == len(set(points))
    assert sum(point.startswith("the call") for point in points) == len(AGENTS)
    assert sum(point.startswith("after checkpoint") for point in points) >= len(AGENTS) + 1
    # Each call was cut off once, and made once more. None was made after its checkpoint.
    calls = [note["by"] for note in found if note["what"] == "request"]
    assert calls == [f"You are the {name}." for name in AGENTS for _ in range(2)]
    assert found[-1]["what"] == "finished"

    async def check() -> None:
        with holdfast.open(place) as store:
            async with chat_client(server) as client:
                storage = HoldfastCheckpointStorage(store)
                latest = await storage.get_latest(workflow_name=NAME)
                assert latest is not None
                before = len(server.requests)
                await make_workflow(client, storage).run(checkpoint_id=latest.checkpoint_id)
                assert len(server.requests) == before

    asyncio.run(check())


@pytest.mark.slow
def test_the_chat_in_the_terminal_goes_on_where_it_was_killed(
    server: ModelServer, tmp_path: Path
) -> None:
    command = [sys.executable, str(ROOT / "examples" / "agent_framework_chat.py"), "ann"]
    for said, answers in (
        ("Hello", ["seen 1 messages; last: Hello"]),
        ("And?", ["(resuming after 2 messages)", "seen 3 messages; last: And?"]),
    ):
        with subprocess.Popen(
            [*command, str(tmp_path / "agents.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"},
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(f"{said}\n")
                process.stdin.flush()
                assert [process.stdout.readline().strip() for _ in answers] == answers
            finally:
                process.kill()


def test_a_missing_framework_is_reported_with_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "agent_framework.py").write_text("Agent = None\n")
    done = subprocess.run(
        [sys.executable, "-c", "import holdfast.integrations.agent_framework"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        check=False,
    )
    assert "pip install -U agent-framework-core" in done.stderr.splitlines()[-1]


def test_a_message_of_the_framework_keeps_its_contents(memory: holdfast.Store) -> None:
    message = Message(
        "assistant",
        [Content.from_text("hi"), Content.from_function_call("c", "f", arguments={"a": 1})],
        additional_properties={"n": 1},
    )

    async def main() -> None:
        history = HoldfastHistoryProvider(memory)
        await history.save_messages("s", [message])
        [found] = await history.get_messages("s")
        assert found.to_dict() == message.to_dict()

    asyncio.run(main())
