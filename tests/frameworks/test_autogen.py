"""Agents and teams of AutoGen in a store: what is restored, what is asked again, and what happens when something fails."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, Response, TaskResult, Team
from autogen_agentchat.conditions import (
    FunctionalTermination,
    MaxMessageTermination,
    SourceMatchTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import (
    BaseChatMessage,
    HandoffMessage,
    ModelClientStreamingChunkEvent,
    MultiModalMessage,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_agentchat.ui import Console
from autogen_core import CancellationToken, Image
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from PIL import Image as Picture
from pydantic import BaseModel

import holdfast
from holdfast import AsyncStore
from holdfast.errors import Conflict, IdReused, UnsupportedVersion
from holdfast.integrations._autogen_states import manager_of
from holdfast.integrations.autogen import LayoutChanged, persisted

from .autogen_program import CHOOSE
from .model_server import ModelServer
from .test_autogen_crashes import as_seen, seen_by

MODEL = ModelInfo(vision=True, function_calling=True, json_output=True, family="gpt-4o", structured_output=True)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """AutoGen reports each run that is cut off as an error."""
    caplog.set_level(logging.CRITICAL, "autogen_core")


class World:
    """A model, a store, and teams that are always made the same way, as a restarted program would."""

    def __init__(self, server: ModelServer, store: AsyncStore, client: OpenAIChatCompletionClient) -> None:
        self.server, self.store, self.client = server, store, client
        self.tallied: list[int] = []
        self.work: Callable[[int], Awaitable[str]] = self._work

    async def tally(self, n: int) -> str:
        """Count something."""
        self.tallied.append(n)
        return await self.work(n)

    async def _work(self, n: int) -> str:
        return f"tallied {n}"

    def agent(self, name: str, **options: Any) -> AssistantAgent:
        options = {"tools": [self.tally], "reflect_on_tool_use": True, **options}
        return AssistantAgent(name, self.client, system_message=f"You are {name}.", **options)

    def team(self, *names: str, stop: Any = None, **options: Any) -> RoundRobinGroupChat:
        members: list[ChatAgent | Team] = [self.agent(name) for name in names or ("writer", "critic")]
        return RoundRobinGroupChat(members, termination_condition=stop or MaxMessageTermination(4), **options)

    def said(self, at: int = -1) -> list[tuple[str, Any]]:
        """What a request showed, without the system message."""
        return as_seen(self.server.shown()[at])[1:]

    async def document(self, id: str = "team") -> Any:
        return await self.store.state(id).load()


@asynccontextmanager
async def world(*replies: str) -> AsyncIterator[World]:
    with ModelServer(*replies) as server:
        async with holdfast.aopen("memory://") as store:
            client = OpenAIChatCompletionClient(
                model="any", model_info=MODEL, base_url=server.base_url, api_key="none", max_retries=0
            )
            try:
                yield World(server, store, client)
            finally:
                await client.close()


def lived(life: Callable[[World], Awaitable[None]], *replies: str) -> None:
    async def run() -> None:
        async with world(*replies) as made:
            await life(made)

    asyncio.run(run())


def texts(result: TaskResult) -> list[str]:
    return [message.to_text() for message in result.messages]


# -- the same task again ----------------------------------------------------------------------------------------------


def test_a_run_that_is_cut_off_goes_on_in_another_team_with_the_same_task() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            assert not run.resumed
            assert run.pending is None
            async for item in run.run_stream(task="begin"):
                if isinstance(item, BaseChatMessage) and item.content == "two":  # type: ignore[attr-defined]
                    break
        requests = len(w.server.requests)
        async with persisted(w.store, "team", w.team()) as run:
            assert run.resumed
            assert [message.to_text() for message in run.pending or ()] == ["begin"]
            stream = [item async for item in run.run_stream(task="begin")]
        assert [type(item) for item in stream] == [TextMessage] * 4 + [TaskResult]
        assert isinstance(stream[-1], TaskResult)
        assert texts(stream[-1])[:3] == ["begin", "one", "two"]
        assert stream[-1].messages == stream[:-1]
        assert "current message count: 4" in str(stream[-1].stop_reason)
        assert w.said(requests) == [("user", "begin"), ("assistant", "one"), ("user", "two")]

    lived(life, "one", "two", "three", "four")


def test_without_a_task_it_goes_on_and_says_only_what_is_new() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            async for item in run.run_stream(task="begin"):
                if isinstance(item, BaseChatMessage) and item.source == "writer":
                    break
        async with persisted(w.store, "team", w.team()) as run:
            result = await run.run()
            assert run.pending is None
        assert len(result.messages) == 2
        assert w.said() == [("user", "begin"), ("assistant", "one"), ("user", result.messages[0].to_text())]

    lived(life, "one")


def test_another_task_begins_anew_with_all_its_turns_and_what_was_said_is_known() -> None:
    async def life(w: World) -> None:
        for stop in ({"max_turns": 3}, {}):
            async with persisted(w.store, f"team {stop}", w.team(**stop)) as run:
                async for item in run.run_stream(task="begin"):
                    if isinstance(item, BaseChatMessage) and item.source == "critic":
                        break
                result = await run.run(task="something else")
            assert [message.source for message in result.messages] == ["user", "writer", "critic", "writer"]
            assert w.said()[0] == ("user", "begin")
            assert ("user", "something else") in w.said()

    lived(life)


def test_a_result_that_the_program_could_not_have_comes_again_without_asking_anybody() -> None:
    async def life(w: World) -> None:
        with pytest.raises(ZeroDivisionError):
            async with persisted(w.store, "team", w.team()) as run:
                first = await run.run(task="begin")
                raise ZeroDivisionError
        asked = len(w.server.requests)
        async with persisted(w.store, "team", w.team()) as run:
            assert run.pending is None
            again = await run.run(task="begin")
            assert again == first
            assert len(w.server.requests) == asked
            new = await run.run(task="begin")  # now it was had
            assert len(w.server.requests) == asked + 3
            assert new.messages[0] != again.messages[0]

    lived(life)


def test_a_text_that_was_answered_is_a_new_task_after_the_block() -> None:
    async def life(w: World) -> None:
        for count in (3, 6):
            async with persisted(w.store, "team", w.team()) as run:
                await run.run(task="yes")
            assert len(w.server.requests) == count

    lived(life)


def test_a_message_with_an_id_is_given_once_whatever_comes_after_it() -> None:
    async def life(w: World) -> None:
        tasks = [TextMessage(id=f"request {n}", content="yes", source="user") for n in range(3)]
        for runner in (w.team, lambda: w.agent("writer")):
            for _ in range(3):
                async with persisted(w.store, f"{runner}", runner()) as run:
                    results = [await run.run(task=task) for task in tasks]
            assert [result.messages[0].id for result in results] == [task.id for task in tasks]
            assert len({result.messages[-1].id for result in results}) == 3
            document = await w.document(f"{runner}")
            assert len(document["holdfast"]["runs"]) == 3
        assert len(w.server.requests) == 3 * 3 + 3

    lived(life)


def test_the_task_itself_can_be_left_out_of_the_output() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                stream = [item async for item in run.run_stream(task="begin", output_task_messages=False)]
                result = stream[-1]
                assert isinstance(result, TaskResult)
                assert result.messages == stream[:-1]
                again = await run.run(task=TextMessage(id="x", content="y", source="user"), output_task_messages=False)
                third = await run.run(task=TextMessage(id="x", content="y", source="user"), output_task_messages=False)
            assert "begin" not in texts(result)
            assert again == third
            assert {message.source for message in again.messages} <= {"writer", "critic"}

    lived(life)


def test_an_id_that_comes_again_with_other_words_is_refused() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                first = await run.run(task=TextMessage(id="x", content="one", source="user"))
                await run.run(task="other")
                requests = len(w.server.requests)
                with pytest.raises(IdReused, match="'x'") as caught:
                    await run.run(task=TextMessage(id="x", content="two", source="user"))
                assert caught.value.id == "x"
                again = await run.run(task=TextMessage(id="x", content="one", source="user", metadata={"try": "2"}))
                assert again == first
                assert len(w.server.requests) == requests

    lived(life)


def test_what_would_not_be_stored_is_refused_in_the_block() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="what the block gives you"):
                        await runner.run(task="past it")
                    with pytest.raises(RuntimeError, match="what the block gives you"):
                        runner.run_stream(task="past it")
                    await run.run(task="begin")
            assert not {"run", "run_stream"} & vars(runner).keys()
            assert texts(await runner.run(task="after it"))[0] == "after it"

    lived(life)


# -- what is stored, and when -----------------------------------------------------------------------------------------


def teams(w: World) -> dict[str, Callable[[], Any]]:
    stop = MaxMessageTermination
    return {
        "round robin": lambda: w.team(stop=stop(5)),
        "alone": lambda: w.team("writer", stop=stop(4)),
        "three": lambda: w.team("writer", "critic", "editor", stop=stop(5)),
        "selector": lambda: SelectorGroupChat(
            [w.agent("writer"), w.agent("critic")],
            w.client,
            termination_condition=stop(5),
            selector_prompt="Choose one of {participants} after {history}",
        ),
        "swarm": lambda: Swarm(
            [w.agent("writer", handoffs=["critic"]), w.agent("critic", handoffs=["writer"])],
            termination_condition=stop(5),
        ),
        "nested": lambda: RoundRobinGroupChat([w.team(max_turns=2, stop=stop(9)), w.agent("editor")], max_turns=3),
        "graph": lambda: _graph(w),
    }


def _graph(w: World) -> GraphFlow:
    builder = DiGraphBuilder()
    writer, critic, editor = (w.agent(name) for name in ("writer", "critic", "editor"))
    for agent in (writer, critic, editor):
        builder.add_node(agent)
    builder.add_edge(writer, critic).add_edge(critic, editor)
    return GraphFlow([writer, critic, editor], builder.build(), termination_condition=MaxMessageTermination(20))


KINDS = ["round robin", "alone", "three", "selector", "swarm", "nested", "graph"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_that_is_stored_is_whole(kind: str) -> None:
    async def life(w: World) -> None:
        task = 'call tally {"n": 3}' if kind != "swarm" else "call transfer_to_critic {}"
        async with persisted(w.store, "team", teams(w)[kind]()) as run:
            result = await run.run(task=task)
        history = await w.store.state("team").history()
        assert len(history) >= 3
        states = [await w.store.state("team").at(version.version) for version in history]
        # The last is what the team itself says when it is idle, and each is taken on as it is.
        final = states[-1]["state"]
        for number, document in enumerate(states):
            copy = f"copy {number}"
            await w.store.state(copy).save(document)
            team = teams(w)[kind]()
            async with persisted(w.store, copy, team) as run:
                assert dict(await team.save_state()) == document["state"]
                if not document["holdfast"].get("finished", True):
                    before = len(w.server.requests)
                    await run.run(task=task)
                    assert len(w.server.requests) > before
                idle = dict(await team.save_state())
            assert kinds_of(idle) == kinds_of(final)
        assert len(result.messages) > 2

    lived(life)


def kinds_of(state: dict[str, Any]) -> Any:
    """A state without what is new in each run: ids, times and call ids."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            hidden = ("id", "created_at", "call_id", "models_usage")
            return {key: plain(item) for key, item in value.items() if key not in hidden}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(state)


def test_those_who_speak_at_once_are_stored_when_all_have_spoken() -> None:
    async def life(w: World) -> None:
        def flow() -> GraphFlow:
            builder = DiGraphBuilder()
            writer, critic, editor = (w.agent(name) for name in ("writer", "critic", "editor"))
            for agent in (writer, critic, editor):
                builder.add_node(agent)
            builder.add_edge(writer, critic).add_edge(writer, editor)
            return GraphFlow([writer, critic, editor], builder.build())

        async with persisted(w.store, "flow", flow()) as run:
            await run.run(task="begin")
        states = [await w.store.state("flow").at(version.version) for version in await w.store.state("flow").history()]
        said = [[message["source"] for message in manager_of(state["state"])["message_thread"]] for state in states]
        assert [sorted(sources) for sources in said[:3]] == [
            ["user"],
            ["user", "writer"],
            ["critic", "editor", "user", "writer"],
        ]
        await w.store.state("cut").save(states[1])
        async with persisted(w.store, "cut", flow()) as run:
            result = await run.run(task="begin")
        assert sorted(message.source for message in result.messages)[:3] == ["critic", "editor", "user"]

    lived(life)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_team_that_cannot_go_on_from_the_middle_begins_its_task_anew() -> None:
    def ledger(satisfied: bool) -> str:
        entry = {"reason": "so", "answer": False}
        answers = {"is_request_satisfied": satisfied, "is_in_loop": False, "is_progress_being_made": True}
        words = {"next_speaker": "writer", "instruction_or_question": "go on"}
        return json.dumps({name: {**entry, "answer": answer} for name, answer in {**answers, **words}.items()})

    async def life(w: World) -> None:
        def team() -> MagenticOneGroupChat:
            return MagenticOneGroupChat([w.agent("writer", tools=[])], w.client)

        w.server.say("facts", "plan", 500)
        with pytest.raises(Exception, match="500"):
            async with persisted(w.store, "team", team()) as run:
                await run.run(task="begin")
        w.server.say("facts", "plan", ledger(False), "words", ledger(True), "all done")
        async with persisted(w.store, "team", team()) as run:
            assert [message.to_text() for message in run.pending or ()] == ["begin"]
            result = await run.run(task="begin")
        assert (texts(result)[0], texts(result)[-1]) == ("begin", "all done")
        assert texts(result).count("begin") == 1
        async with persisted(w.store, "team", team()) as run:
            assert run.pending is None

    lived(life)


def test_a_message_is_handed_over_only_when_it_is_stored() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, "x", runner) as run:
                async for item in run.run_stream(task='call tally {"n": 1}'):
                    if isinstance(item, BaseChatMessage):
                        assert item.id in json.dumps(await w.document("x"))
            await w.store.state("x").delete()

    lived(life)


def test_pieces_of_a_streamed_answer_are_handed_over_and_not_stored() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer", model_client_stream=True)) as run:
            items = [item async for item in run.run_stream(task="begin")]
        assert sum(isinstance(item, ModelClientStreamingChunkEvent) for item in items) > 2
        assert "ModelClientStreamingChunkEvent" not in json.dumps(await w.document("agent"))

    lived(life)


def test_what_is_stored_grows_by_what_is_new(tmp_path: Path) -> None:
    async def life(w: World) -> None:
        sizes = {}
        for turns in (10, 40):
            place = tmp_path / f"{turns}.db"
            async with holdfast.aopen(str(place)) as store:
                team = w.team(stop=MaxMessageTermination(turns + 1))
                async with persisted(store, "team", team) as run:
                    await run.run(task="begin")
                document = await store.state("team").load()
            sizes[turns] = place.stat().st_size, len(json.dumps(document))
        assert sizes[40][0] < 3 * sizes[40][1] + 100_000
        assert sizes[40][0] - sizes[10][0] < 3 * (sizes[40][1] - sizes[10][1])

    lived(life, *["x" * 2000] * 50)


# -- agents -----------------------------------------------------------------------------------------------------------


def test_an_agent_remembers_and_answers_on_messages() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            message = TextMessage(content='call tally {"n": 7}', source="user")
            response = await run.on_messages([message], CancellationToken())
            assert isinstance(response, Response)
            assert response.chat_message.to_text() == "tool said: tallied 7"
            assert len(response.inner_messages or ()) == 2
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            await run.run(task="and now?")
        assert [kind for kind, _ in w.said()] == ["user", "calls", "result", "assistant", "user"]

    lived(life)


class Forecast(BaseModel):
    degrees: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # from AutoGen's client
def test_an_answer_with_a_structure_comes_again_as_it_was() -> None:
    async def life(w: World) -> None:
        task = TextMessage(id="today", content="How warm is it?", source="user")
        for _ in range(2):
            async with persisted(w.store, "agent", w.agent("writer", tools=[], output_content_type=Forecast)) as run:
                result = await run.run(task=task)
            answer = result.messages[-1]
            assert isinstance(answer, StructuredMessage)
            assert answer.content == Forecast(degrees=21)
        assert len(w.server.requests) == 1

    lived(life, '{"degrees": 21}')


def test_a_tool_that_has_answered_does_not_run_again_for_an_agent() -> None:
    async def life(w: World) -> None:
        with pytest.raises(Exception, match="500"):
            async with persisted(w.store, "agent", w.agent("writer")) as run:
                async for item in run.run_stream(task='call tally {"n": 7}'):
                    if type(item).__name__ == "ToolCallExecutionEvent":
                        w.server.say(500)
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            result = await run.run(task='call tally {"n": 7}')
        assert w.tallied == [7]
        assert texts(result)[-1] == "tool said: tallied 7"

    lived(life)


def test_a_task_that_an_agent_could_not_answer_is_not_forgotten_for_the_next_one() -> None:
    async def life(w: World) -> None:
        for _ in range(2):
            w.server.say(500)
            with pytest.raises(Exception, match="500"):
                async with persisted(w.store, "agent", w.agent("writer")) as run:
                    await run.run(task=f"question {len(w.server.requests)}")
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            await run.run(task="question 2")
        assert w.said() == [("user", "question 0"), ("user", "question 1"), ("user", "question 2")]
        document = await w.document("agent")
        assert [message["content"] for message in document["holdfast"]["said"]][:3] == [
            "question 0",
            "question 1",
            "question 2",
        ]

    lived(life)


# -- a state from any instant -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["round robin", "three", "alone", "selector", "swarm"])
def test_a_state_that_was_saved_at_any_instant_is_taken_on_so_that_each_message_is_seen_once(kind: str) -> None:
    async def life(w: World) -> None:
        make = teams(w)[kind]
        team = make()
        states: dict[str, Any] = {}
        thread_of = {}

        async def watch() -> None:
            while True:
                state = dict(await team.save_state())
                states[json.dumps(state)] = state
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        task = 'call tally {"n": 3}' if kind != "swarm" else "call transfer_to_critic {}"
        await team.run(task=task)
        watching.cancel()
        assert len(states) > 10
        for number, state in enumerate(states.values()):
            name = f"state {number}"
            await w.store.state(name).save(state)
            manager = list(state["agent_states"].values())[-1]
            thread = manager["message_thread"]
            before = len(w.server.requests)
            if not thread:
                continue
            async with persisted(w.store, name, make()) as run:
                async for _ in run.run_stream():
                    break
            shown = next(shown for shown in w.server.shown()[before:] if shown[0]["content"].startswith("You are "))
            name = shown[0]["content"].removeprefix("You are ").removesuffix(".")
            expected = seen_by(name, thread)
            assert as_seen(shown)[1:][: len(expected)] == expected, number
            assert {kind for kind, _ in as_seen(shown)[1:][len(expected) :]} <= {"calls", "result"}, number
            thread_of[len(thread)] = name
            chat = [message["source"] for message in thread if message["type"].endswith("Message")]
            if kind in ("round robin", "three"):
                order = ["writer", "critic", "editor"][: 2 if kind == "round robin" else 3]
                assert name == order[(len(chat) - 1) % len(order)], number
        assert len(thread_of) >= 3

    lived(life)


def test_a_selector_may_choose_the_one_who_was_cut_off_again() -> None:
    def team(w: World, **options: Any) -> SelectorGroupChat:
        members: list[ChatAgent | Team] = [w.agent(name) for name in ("writer", "critic", "editor")]
        stop = MaxMessageTermination(3)
        return SelectorGroupChat(members, w.client, termination_condition=stop, selector_prompt=CHOOSE, **options)

    async def life(w: World) -> None:
        first = team(w)
        choosing = w.server.hold()
        running = asyncio.create_task(first.run(task="begin"))
        await asyncio.to_thread(choosing.wait)
        speaking = w.server.hold()
        choosing.release()
        await asyncio.to_thread(speaking.wait)
        await w.store.state("team").save(await first.save_state())
        speaking.release()
        await running
        at = len(w.server.requests)
        context = UnboundedChatCompletionContext()
        again = team(w, model_context=context)
        for _ in range(2):  # and what it goes by is not there twice if the team is used twice
            async with persisted(w.store, "team", again) as run:
                await run.run()
        prompts = [shown[0]["content"] for shown in w.server.shown()[at:]]
        assert prompts[0].startswith(CHOOSE.format(participants=["writer", "critic", "editor"], history="user: begin"))
        assert all(prompt.count("user: begin") == 1 for prompt in prompts if prompt.startswith("Choose"))

    lived(life, "writer")


def test_repairing_is_logged_and_a_whole_state_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async def life(w: World) -> None:
        team = w.team()
        hold = w.server.hold()
        running = asyncio.create_task(team.run(task="secret"))
        await asyncio.to_thread(hold.wait)
        await w.store.state("within").save(await team.save_state())
        hold.release()
        await running
        await w.store.state("whole").save(await team.save_state())
        for name in ("within", "whole"):
            async with persisted(w.store, name, w.team()):
                pass

    with caplog.at_level(logging.WARNING, "holdfast"):
        lived(life)
    [line] = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    assert "'within'" in line
    assert "writer was given its messages twice" in line
    assert "secret" not in line


# -- when to stop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_termination_condition_goes_on_counting_where_it_was(cut: int) -> None:
    def stops() -> list[Any]:
        return [
            MaxMessageTermination(5),
            MaxMessageTermination(5) | TimeoutTermination(3600),
            TokenUsageTermination(max_total_token=3 + 4 + 5 + 6),
            SourceMatchTermination(["critic"]) & MaxMessageTermination(5),
            FunctionalTermination(lambda messages: "5 messages" in messages[-1].to_text()),
        ]

    async def life(w: World) -> None:
        for number in range(len(stops())):
            whole = await w.team(stop=stops()[number]).run(task="begin")
            name = f"team {number}"
            async with persisted(w.store, name, w.team(stop=stops()[number])) as run:
                seen = 0
                async for _ in run.run_stream(task="begin"):
                    seen += 1
                    if seen > cut:
                        break
            async with persisted(w.store, name, w.team(stop=stops()[number])) as run:
                result = await run.run(task="begin")
            assert texts(result) == texts(whole)
            assert result.stop_reason == whole.stop_reason
            assert len(result.messages) == 5

    lived(life)


def test_the_number_of_turns_goes_on_being_counted() -> None:
    async def life(w: World) -> None:
        team = w.team(stop=MaxMessageTermination(100), max_turns=3)
        async with persisted(w.store, "team", team) as run:
            async for item in run.run_stream(task="begin"):
                if isinstance(item, BaseChatMessage) and item.source == "writer":
                    break
        async with persisted(w.store, "team", w.team(stop=MaxMessageTermination(100), max_turns=3)) as run:
            result = await run.run(task="begin")
            assert [message.source for message in result.messages] == ["user", "writer", "critic", "writer"]
            result = await run.run(task="more")
        assert [message.source for message in result.messages] == ["user", "critic", "writer", "critic"]

    lived(life)


# -- when something fails ---------------------------------------------------------------------------------------------


def test_after_a_failure_of_the_model_the_same_block_goes_on_and_nobody_is_left_out() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            w.server.say("one", 500)
            with pytest.raises(RuntimeError, match="500"):
                await run.run(task="begin")
            assert run.pending is not None
            result = await run.run(task="begin")
        assert [message.source for message in result.messages] == ["user", "writer", "critic", "writer"]
        assert texts(result)[1] == "one"
        assert w.said(2) == w.said(1) == [("user", "begin"), ("user", "one")]

    lived(life)


def test_what_could_not_be_stored_was_not_said() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            said: list[Any] = []
            other = w.agent("writer") if isinstance(runner, AssistantAgent) else w.team()
            hold = None if isinstance(runner, AssistantAgent) else w.server.hold()  # it goes on only when it is read
            async with persisted(w.store, "x", runner) as run:
                stream = run.run_stream(task="begin")
                said.append(await stream.__anext__())
                if hold is not None:
                    await asyncio.to_thread(hold.wait)
                async with persisted(w.store, "x", other) as second:
                    await second.run(task="I was faster")
                if hold is not None:
                    hold.release()
                with pytest.raises(Conflict):
                    async for item in stream:
                        said.append(item)
                assert [message.source for message in said] == ["user"]
                result = await run.run(task="begin again")  # from what the other one stored
                assert ("user", "I was faster") in w.said()
                assert texts(result)[0] == "begin again"
            await w.store.state("x").delete()

    lived(life)


@pytest.mark.parametrize("during", ["a call", "a tool"])
@pytest.mark.parametrize("how", ["token", "task", "leaving"])
def test_a_run_that_is_cancelled_goes_on_in_the_same_block(how: str, during: str) -> None:
    async def life(w: World) -> None:
        token, in_tool = CancellationToken(), asyncio.Event()

        async def stuck(n: int) -> str:
            in_tool.set()
            await asyncio.Event().wait()
            return ""

        async with persisted(w.store, "team", w.team()) as run:

            async def read() -> None:
                async for _ in run.run_stream(task='call tally {"n": 1}', cancellation_token=token):
                    if how == "leaving":
                        await waiting
                        break

            before = asyncio.all_tasks()
            works, w.work = w.work, stuck if during == "a tool" else w.work
            hold = w.server.hold() if during == "a call" else None
            waiting = asyncio.ensure_future(asyncio.to_thread(hold.wait) if hold else in_tool.wait())
            reading = asyncio.create_task(read())
            await waiting
            if how == "leaving":
                await reading
            else:
                token.cancel() if how == "token" else reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            if hold:
                hold.release()
            w.work = works
            result = await run.run(task='call tally {"n": 1}')
        assert [message.source for message in result.messages if isinstance(message, BaseChatMessage)] == [
            "user",
            "writer",
            "critic",
            "writer",
        ]
        assert w.said(-2)[0] == ("user", 'call tally {"n": 1}')
        assert asyncio.all_tasks() <= before  # nobody waits for ever

    lived(life)


def test_a_stream_that_was_left_must_not_be_read_on() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            left = run.run_stream(task="begin")
            await left.__anext__()
            await run.run(task="something else")
            with pytest.raises(RuntimeError, match="left for another run"):
                async for _ in left:
                    pass
        with pytest.raises(RuntimeError, match="inside the block"):
            await run.run(task="too late")

    lived(life)


# -- whose state it is ------------------------------------------------------------------------------------------------


def test_a_state_of_other_participants_is_refused_and_left_as_it_is() -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task="begin")
        document = await w.document()
        others: list[ChatAgent | Team] = [
            w.team("critic", "writer"),
            w.team("writer", "critic", "editor"),
            w.team("writer"),
            SelectorGroupChat([w.agent("writer"), w.agent("critic")], w.client),
            w.agent("writer"),
        ]
        for other in others:
            with pytest.raises(
                LayoutChanged, match=r"'team' was saved as TeamState 1\.0\.0; writer: AssistantAgentState"
            ):
                async with persisted(w.store, "team", other):
                    pass
        assert await w.document() == document
        async with persisted(w.store, "other", others[1]) as run:  # a refusal leaves no trace in the team either
            await run.run(task="begin")

    lived(life)


def test_another_version_is_reported_a_newer_form_and_another_document_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def life(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task="begin")
        state = w.store.state("team")
        document = await state.load()
        document["holdfast"]["autogen"] = "0.4.9"
        await state.save(document)
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task="begin")
        document["state"]["version"] = "2.0.0"
        await state.save(document)
        with pytest.raises(LayoutChanged, match=r"TeamState 2\.0\.0"):
            async with persisted(w.store, "team", w.team()):
                pass
        document["holdfast"]["v"] = 2
        await state.save(document)
        with pytest.raises(UnsupportedVersion, match="newer Holdfast"):
            async with persisted(w.store, "team", w.team()):
                pass
        await state.save({"something": "else"})
        with pytest.raises(ValueError, match="something else"):
            async with persisted(w.store, "team", w.team()):
                pass

    with caplog.at_level(logging.WARNING, "holdfast"):
        lived(life)
    assert [record.getMessage() for record in caplog.records if "0.4.9" in record.getMessage()]


def test_one_team_serves_one_conversation_after_the_other_and_none_sees_the_others() -> None:
    async def life(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            for name, task in (("a", "about a"), ("b", "about b"), ("a", "more about a"), ("c", "about c")):
                async with persisted(w.store, f"{name} {runner.name}", runner) as run:
                    await run.run(task=task)
                    foreign = [text for _, text in w.said() if "about" in text and f"about {name}" not in text]
                    assert foreign == []
            async with persisted(w.store, f"a {runner.name}", runner) as run:
                with pytest.raises(RuntimeError, match="in such a block already"):
                    async with persisted(w.store, "d", runner):
                        pass

    lived(life)


def test_what_a_team_knew_before_is_what_it_begins_with() -> None:
    async def life(w: World) -> None:
        team = w.team()
        await team.run(task="before")
        async with persisted(w.store, "team", team) as run:
            await run.run(task="after")
        assert w.said()[0] == ("user", "before")
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task="again")
        assert next(text for kind, text in w.said() if kind == "user") == "before"
        await team.run(task="outside")  # and it can be used outside as before
        assert team.dump_component().config["termination_condition"]["config"] == {
            "max_messages": 4,
            "include_agent_event": False,
        }

    lived(life)


def test_pictures_and_handoffs_are_kept() -> None:
    async def life(w: World) -> None:
        picture = Image(Picture.new("RGB", (2, 2), "red"))
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task=MultiModalMessage(content=["look", picture], source="user"))
        async with persisted(w.store, "team", w.team()) as run:
            await run.run(task="and?")
        assert "data:image/png;base64" in json.dumps(w.server.requests[-1])
        swarm = teams(w)["swarm"]
        async with persisted(w.store, "swarm", swarm()) as run:
            task = HandoffMessage(content="yours", source="user", target="critic")
            result = await run.run(task=task)
        assert result.messages[1].source == "critic"

    lived(life)


def test_a_sync_store_and_the_console_do_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def life(w: World) -> None:
        with holdfast.open(str(tmp_path / "agents.db")) as store:
            async with persisted(store, "team", w.team()) as run:
                await Console(run.run_stream(task="begin"))
            assert store.state("team").version() == 5
        with pytest.raises(TypeError, match="an agent or a team of AutoGen"):
            persisted(w.store, "team", "writer")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="in this order, and the first is of the type str"):
            persisted("team", w.store, w.team())  # type: ignore[arg-type]
        async with persisted(w.store, "x", w.team()) as run:
            with pytest.raises(ValueError, match="at least one message"):
                await run.run(task=[])
            for task in ({"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]):
                with pytest.raises(TypeError, match=r"a message like TextMessage\(.*, not dict"):
                    await run.run(task=task)  # type: ignore[arg-type]

    lived(life)
    assert "begin" in capsys.readouterr().out


# -- the example ------------------------------------------------------------------------------------------------------


def test_the_example_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "autogen_team.py"
    command = [sys.executable, "-W", "error", str(example), "kelp", str(tmp_path / "team.db")]
    with ModelServer("a limerick", "needs more salt") as server:
        env = {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
        for _ in range(2):
            server.hold().release()
        third = server.hold()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as program:
            assert program.stdout is not None
            said = [program.stdout.readline() for _ in range(3)]
            third.wait()
            program.kill()
        server.say("salty", "FINE")
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert said == ["user: kelp\n", "writer: a limerick\n", "critic: needs more salt\n"]
    assert done.returncode == 0, done.stderr
    again = done.stdout.splitlines()
    assert again[:4] == ["(going on)", "user: kelp", "writer: a limerick", "critic: needs more salt"]
    assert again[4].startswith("writer: ")
    assert [kind for kind, _ in as_seen(server.shown()[3])] == ["system", "user", "assistant", "user"]
