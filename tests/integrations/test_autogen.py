"""Agents and teams of AutoGen in a store: what is restored, what is asked again, and what is stored
when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.base import Response, TaskResult
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import (
    BaseChatMessage,
    ModelClientStreamingChunkEvent,
    StructuredMessage,
    TextMessage,
)
from autogen_agentchat.teams import DiGraphBuilder, GraphFlow, MagenticOneGroupChat
from autogen_core import CancellationToken
from pydantic import BaseModel

import holdfast
from helpers.model_server import ModelServer
from helpers.paths import ROOT
from holdfast.errors import IdReused
from holdfast.integrations.autogen import persisted
from holdfast.integrations.autogen.states import find_manager

from .autogen_world import World, as_seen, run_scenario, teams, texts

# -- the same task again ---------------------------------------------------------------------------


def test_a_run_that_is_cut_off_goes_on_in_another_team_with_the_same_task() -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario, "one", "two", "three", "four")


@pytest.mark.parametrize("kind", ["team", "agent"])
def test_what_is_stored_can_be_read_without_a_run(kind: str) -> None:
    async def scenario(w: World) -> None:
        runner = w.team if kind == "team" else lambda: w.agent("writer")
        async with persisted(w.store, "chat", runner()) as run:
            assert run.messages == []
            result = await run.run(task="begin")
            assert run.messages == list(result.messages)
        requests = len(w.server.requests)
        async with persisted(w.store, "chat", runner()) as run:
            assert run.messages == list(result.messages)
            assert run.messages[-1].to_text() == texts(result)[-1]
            assert len(w.server.requests) == requests
            more = await run.run(task="continue")
            assert run.messages == [*result.messages, *more.messages]

    run_scenario(scenario, "one", "two", "three", "four", "five", "six")


def test_without_a_task_it_goes_on_and_says_only_what_is_new() -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            async for item in run.run_stream(task="begin"):
                if isinstance(item, BaseChatMessage) and item.source == "writer":
                    break
        async with persisted(w.store, "team", w.team()) as run:
            result = await run.run()
            assert run.pending is None
        assert len(result.messages) == 2
        assert w.said() == [
            ("user", "begin"),
            ("assistant", "one"),
            ("user", result.messages[0].to_text()),
        ]

    run_scenario(scenario, "one")


def test_another_task_begins_anew_with_all_its_turns_and_what_was_said_is_known() -> None:
    async def scenario(w: World) -> None:
        for stop in ({"max_turns": 3}, {}):
            async with persisted(w.store, f"team {stop}", w.team(**stop)) as run:
                async for item in run.run_stream(task="begin"):
                    if isinstance(item, BaseChatMessage) and item.source == "critic":
                        break
                result = await run.run(task="something else")
            assert [message.source for message in result.messages] == [
                "user",
                "writer",
                "critic",
                "writer",
            ]
            assert w.said()[0] == ("user", "begin")
            assert ("user", "something else") in w.said()

    run_scenario(scenario)


def test_a_result_that_the_program_could_not_have_comes_again_without_asking_anybody() -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_a_text_that_was_answered_is_a_new_task_after_the_block() -> None:
    async def scenario(w: World) -> None:
        for count in (3, 6):
            async with persisted(w.store, "team", w.team()) as run:
                await run.run(task="yes")
            assert len(w.server.requests) == count

    run_scenario(scenario)


def test_a_message_with_an_id_is_given_once_whatever_comes_after_it() -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_the_task_itself_can_be_left_out_of_the_output() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                stream = [
                    item async for item in run.run_stream(task="begin", output_task_messages=False)
                ]
                result = stream[-1]
                assert isinstance(result, TaskResult)
                assert result.messages == stream[:-1]
                again = await run.run(
                    task=TextMessage(id="x", content="y", source="user"), output_task_messages=False
                )
                third = await run.run(
                    task=TextMessage(id="x", content="y", source="user"), output_task_messages=False
                )
            assert "begin" not in texts(result)
            assert again == third
            assert {message.source for message in again.messages} <= {"writer", "critic"}

    run_scenario(scenario)


def test_an_id_that_comes_again_with_other_words_is_refused() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                first = await run.run(task=TextMessage(id="x", content="one", source="user"))
                await run.run(task="other")
                requests = len(w.server.requests)
                with pytest.raises(IdReused, match="'x'") as caught:
                    await run.run(task=TextMessage(id="x", content="two", source="user"))
                assert caught.value.id == "x"
                again = await run.run(
                    task=TextMessage(id="x", content="one", source="user", metadata={"try": "2"})
                )
                assert again == first
                assert len(w.server.requests) == requests

    run_scenario(scenario)


def test_what_would_not_be_stored_is_refused_in_the_block() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, f"{runner}", runner) as run:
                for _ in range(2):
                    with pytest.raises(RuntimeError, match="the object that the block returns"):
                        await runner.run(task="past it")
                    with pytest.raises(RuntimeError, match="the object that the block returns"):
                        runner.run_stream(task="past it")
                    await run.run(task="begin")
            assert not {"run", "run_stream"} & vars(runner).keys()
            assert texts(await runner.run(task="after it"))[0] == "after it"

    run_scenario(scenario)


# -- what is stored, and when ----------------------------------------------------------------------


KINDS = ["round robin", "alone", "three", "selector", "swarm", "nested", "graph"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_that_is_stored_is_whole(kind: str) -> None:
    async def scenario(w: World) -> None:
        task = 'call tally {"n": 3}' if kind != "swarm" else "call transfer_to_critic {}"
        async with persisted(w.store, "team", teams(w)[kind]()) as run:
            result = await run.run(task=task)
        history = await w.store.state("team").history()
        assert len(history) >= 3
        states = [await w.store.state("team").load(version=version.version) for version in history]
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

    run_scenario(scenario)


def kinds_of(state: dict[str, Any]) -> Any:
    """A state without what is new in each run: ids, times and call ids."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            hidden = ("id", "created_at", "call_id", "models_usage")
            return {key: plain(item) for key, item in value.items() if key not in hidden}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return plain(state)


def test_those_who_speak_at_once_are_stored_when_all_have_spoken() -> None:
    async def scenario(w: World) -> None:
        def flow() -> GraphFlow:
            builder = DiGraphBuilder()
            writer, critic, editor = (w.agent(name) for name in ("writer", "critic", "editor"))
            for agent in (writer, critic, editor):
                builder.add_node(agent)
            builder.add_edge(writer, critic).add_edge(writer, editor)
            return GraphFlow([writer, critic, editor], builder.build())

        async with persisted(w.store, "flow", flow()) as run:
            await run.run(task="begin")
        states = [
            await w.store.state("flow").load(version=version.version)
            for version in await w.store.state("flow").history()
        ]
        said = [
            [message["source"] for message in find_manager(state["state"])["message_thread"]]
            for state in states
        ]
        assert [sorted(sources) for sources in said[:3]] == [
            ["user"],
            ["user", "writer"],
            ["critic", "editor", "user", "writer"],
        ]
        await w.store.state("cut").save(states[1])
        async with persisted(w.store, "cut", flow()) as run:
            result = await run.run(task="begin")
        assert sorted(message.source for message in result.messages)[:3] == [
            "critic",
            "editor",
            "user",
        ]

    run_scenario(scenario)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_team_that_cannot_go_on_from_the_middle_begins_its_task_anew() -> None:
    def ledger(satisfied: bool) -> str:
        entry = {"reason": "so", "answer": False}
        answers = {
            "is_request_satisfied": satisfied,
            "is_in_loop": False,
            "is_progress_being_made": True,
        }
        words = {"next_speaker": "writer", "instruction_or_question": "go on"}
        return json.dumps(
            {name: {**entry, "answer": answer} for name, answer in {**answers, **words}.items()}
        )

    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_a_message_is_handed_over_only_when_it_is_stored() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            async with persisted(w.store, "x", runner) as run:
                async for item in run.run_stream(task='call tally {"n": 1}'):
                    if isinstance(item, BaseChatMessage):
                        assert item.id in json.dumps(await w.document("x"))
            await w.store.state("x").delete()

    run_scenario(scenario)


def test_pieces_of_a_streamed_answer_are_handed_over_and_not_stored() -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer", model_client_stream=True)) as run:
            items = [item async for item in run.run_stream(task="begin")]
        assert sum(isinstance(item, ModelClientStreamingChunkEvent) for item in items) > 2
        assert "ModelClientStreamingChunkEvent" not in json.dumps(await w.document("agent"))

    run_scenario(scenario)


def test_what_is_stored_grows_by_what_is_new(tmp_path: Path) -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario, *["x" * 2000] * 50)


# -- agents ----------------------------------------------------------------------------------------


def test_an_agent_remembers_and_answers_on_messages() -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            message = TextMessage(content='call tally {"n": 7}', source="user")
            response = await run.on_messages([message], CancellationToken())
            assert isinstance(response, Response)
            assert response.chat_message.to_text() == "tool said: tallied 7"
            assert len(response.inner_messages or ()) == 2
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            await run.run(task="and now?")
        assert [kind for kind, _ in w.said()] == ["user", "calls", "result", "assistant", "user"]

    run_scenario(scenario)


class Forecast(BaseModel):
    degrees: int


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # from AutoGen's client
def test_an_answer_with_a_structure_comes_again_as_it_was() -> None:
    async def scenario(w: World) -> None:
        task = TextMessage(id="today", content="How warm is it?", source="user")
        for _ in range(2):
            async with persisted(
                w.store, "agent", w.agent("writer", tools=[], output_content_type=Forecast)
            ) as run:
                result = await run.run(task=task)
            answer = result.messages[-1]
            assert isinstance(answer, StructuredMessage)
            assert answer.content == Forecast(degrees=21)
        assert len(w.server.requests) == 1

    run_scenario(scenario, '{"degrees": 21}')


def test_a_tool_that_has_answered_does_not_run_again_for_an_agent() -> None:
    async def scenario(w: World) -> None:
        with pytest.raises(Exception, match="500"):
            async with persisted(w.store, "agent", w.agent("writer")) as run:
                async for item in run.run_stream(task='call tally {"n": 7}'):
                    if type(item).__name__ == "ToolCallExecutionEvent":
                        w.server.say(500)
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            result = await run.run(task='call tally {"n": 7}')
        assert w.tallied == [7]
        assert texts(result)[-1] == "tool said: tallied 7"

    run_scenario(scenario)


def test_a_task_that_an_agent_could_not_answer_is_not_forgotten_for_the_next_one() -> None:
    async def scenario(w: World) -> None:
        for _ in range(2):
            w.server.say(500)
            with pytest.raises(Exception, match="500"):
                async with persisted(w.store, "agent", w.agent("writer")) as run:
                    await run.run(task=f"question {len(w.server.requests)}")
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            await run.run(task="question 2")
        assert w.said() == [("user", "question 0"), ("user", "question 1"), ("user", "question 2")]
        document = await w.document("agent")
        assert [message["content"] for message in document["holdfast"]["messages"]][:3] == [
            "question 0",
            "question 1",
            "question 2",
        ]

    run_scenario(scenario)


# -- the example -----------------------------------------------------------------------------------


def test_the_example_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    example = ROOT / "examples" / "autogen_team.py"
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
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=60, check=False
        )
    assert said == ["user: kelp\n", "writer: a limerick\n", "critic: needs more salt\n"]
    assert done.returncode == 0, done.stderr
    again = done.stdout.splitlines()
    assert again[:4] == [
        "(resuming)",
        "user: kelp",
        "writer: a limerick",
        "critic: needs more salt",
    ]
    assert again[4].startswith("writer: ")
    assert [kind for kind, _ in as_seen(server.shown()[3])] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
