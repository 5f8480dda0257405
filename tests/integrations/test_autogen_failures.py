"""Agents and teams of AutoGen when something fails or stops, and whose state it is."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.conditions import (
    FunctionalTermination,
    MaxMessageTermination,
    SourceMatchTermination,
    TimeoutTermination,
    TokenUsageTermination,
)
from autogen_agentchat.messages import BaseChatMessage, HandoffMessage, MultiModalMessage
from autogen_agentchat.teams import SelectorGroupChat
from autogen_agentchat.ui import Console
from autogen_core import CancellationToken, Image
from autogen_core.model_context import UnboundedChatCompletionContext
from PIL import Image as Picture

import holdfast
from holdfast.errors import Conflict, UnsupportedVersion
from holdfast.integrations.autogen import LayoutChanged, persisted

from .autogen_program import CHOOSE
from .autogen_world import World, as_seen, run_scenario, seen_by, teams, texts

# -- a state from any instant ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["round robin", "three", "alone", "selector", "swarm"])
def test_a_state_that_was_saved_at_any_instant_is_taken_on_so_that_each_message_is_seen_once(
    kind: str,
) -> None:
    async def scenario(w: World) -> None:
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
            shown = next(
                shown
                for shown in w.server.shown()[before:]
                if shown[0]["content"].startswith("You are ")
            )
            name = shown[0]["content"].removeprefix("You are ").removesuffix(".")
            expected = seen_by(name, thread)
            assert as_seen(shown)[1:][: len(expected)] == expected, number
            assert {kind for kind, _ in as_seen(shown)[1:][len(expected) :]} <= {
                "calls",
                "result",
            }, number
            thread_of[len(thread)] = name
            chat = [message["source"] for message in thread if message["type"].endswith("Message")]
            if kind in ("round robin", "three"):
                order = ["writer", "critic", "editor"][: 2 if kind == "round robin" else 3]
                assert name == order[(len(chat) - 1) % len(order)], number
        assert len(thread_of) >= 3

    run_scenario(scenario)


def test_a_selector_may_choose_the_one_who_was_cut_off_again() -> None:
    def team(w: World, **options: Any) -> SelectorGroupChat:
        members: list[ChatAgent | Team] = [w.agent(name) for name in ("writer", "critic", "editor")]
        stop = MaxMessageTermination(3)
        return SelectorGroupChat(
            members, w.client, termination_condition=stop, selector_prompt=CHOOSE, **options
        )

    async def scenario(w: World) -> None:
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
        assert prompts[0].startswith(
            CHOOSE.format(participants=["writer", "critic", "editor"], history="user: begin")
        )
        assert all(
            prompt.count("user: begin") == 1 for prompt in prompts if prompt.startswith("Choose")
        )

    run_scenario(scenario, "writer")


def test_repairing_is_logged_and_a_whole_state_is_left_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(w: World) -> None:
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
        run_scenario(scenario)
    [line] = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    assert "'within'" in line
    assert "writer was given its messages twice" in line
    assert "secret" not in line


# -- when to stop ----------------------------------------------------------------------------------


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

    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_the_number_of_turns_goes_on_being_counted() -> None:
    async def scenario(w: World) -> None:
        team = w.team(stop=MaxMessageTermination(100), max_turns=3)
        async with persisted(w.store, "team", team) as run:
            async for item in run.run_stream(task="begin"):
                if isinstance(item, BaseChatMessage) and item.source == "writer":
                    break
        async with persisted(
            w.store, "team", w.team(stop=MaxMessageTermination(100), max_turns=3)
        ) as run:
            result = await run.run(task="begin")
            assert [message.source for message in result.messages] == [
                "user",
                "writer",
                "critic",
                "writer",
            ]
            result = await run.run(task="more")
        assert [message.source for message in result.messages] == [
            "user",
            "critic",
            "writer",
            "critic",
        ]

    run_scenario(scenario)


# -- when something fails --------------------------------------------------------------------------


def test_after_a_failure_of_the_model_the_same_block_goes_on_and_nobody_is_left_out() -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "team", w.team()) as run:
            w.server.say("one", 500)
            with pytest.raises(RuntimeError, match="500"):
                await run.run(task="begin")
            assert run.pending is not None
            result = await run.run(task="begin")
        assert [message.source for message in result.messages] == [
            "user",
            "writer",
            "critic",
            "writer",
        ]
        assert texts(result)[1] == "one"
        assert w.said(2) == w.said(1) == [("user", "begin"), ("user", "one")]

    run_scenario(scenario)


def test_what_could_not_be_stored_was_not_said() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            said: list[Any] = []
            other = w.agent("writer") if isinstance(runner, AssistantAgent) else w.team()
            hold = (
                None if isinstance(runner, AssistantAgent) else w.server.hold()
            )  # it goes on only when it is read
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

    run_scenario(scenario)


@pytest.mark.parametrize("during", ["a call", "a tool"])
@pytest.mark.parametrize("how", ["token", "task", "leaving"])
def test_a_run_that_is_cancelled_goes_on_in_the_same_block(how: str, during: str) -> None:
    async def scenario(w: World) -> None:
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
            waiting = asyncio.ensure_future(
                asyncio.to_thread(hold.wait) if hold else in_tool.wait()
            )
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
        assert [
            message.source for message in result.messages if isinstance(message, BaseChatMessage)
        ] == ["user", "writer", "critic", "writer"]
        assert w.said(-2)[0] == ("user", 'call tally {"n": 1}')
        assert asyncio.all_tasks() <= before  # nobody waits for ever

    run_scenario(scenario)


def test_a_stream_that_was_left_must_not_be_read_on() -> None:
    async def scenario(w: World) -> None:
        async with persisted(w.store, "agent", w.agent("writer")) as run:
            left = run.run_stream(task="begin")
            await left.__anext__()
            await run.run(task="something else")
            with pytest.raises(RuntimeError, match="left for another run"):
                async for _ in left:
                    pass
        with pytest.raises(RuntimeError, match="inside the block"):
            await run.run(task="too late")

    run_scenario(scenario)


# -- whose state it is -----------------------------------------------------------------------------


def test_a_state_of_other_participants_is_refused_and_left_as_it_is() -> None:
    async def scenario(w: World) -> None:
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
                LayoutChanged,
                match=r"'team' was saved as TeamState 1\.0\.0; writer: AssistantAgentState",
            ):
                async with persisted(w.store, "team", other):
                    pass
        assert await w.document() == document
        async with persisted(
            w.store, "other", others[1]
        ) as run:  # a refusal leaves no trace in the team either
            await run.run(task="begin")

    run_scenario(scenario)


def test_another_version_is_reported_a_newer_form_and_another_document_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(w: World) -> None:
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
        with pytest.raises(UnsupportedVersion, match="newer version of Holdfast"):
            async with persisted(w.store, "team", w.team()):
                pass
        await state.save({"something": "else"})
        with pytest.raises(ValueError, match="something other than a team"):
            async with persisted(w.store, "team", w.team()):
                pass

    with caplog.at_level(logging.WARNING, "holdfast"):
        run_scenario(scenario)
    assert [record.getMessage() for record in caplog.records if "0.4.9" in record.getMessage()]


def test_one_team_serves_one_conversation_after_the_other_and_none_sees_the_others() -> None:
    async def scenario(w: World) -> None:
        for runner in (w.team(), w.agent("writer")):
            for name, task in (
                ("a", "about a"),
                ("b", "about b"),
                ("a", "more about a"),
                ("c", "about c"),
            ):
                async with persisted(w.store, f"{name} {runner.name}", runner) as run:
                    await run.run(task=task)
                    foreign = [
                        text
                        for _, text in w.said()
                        if "about" in text and f"about {name}" not in text
                    ]
                    assert foreign == []
            async with persisted(w.store, f"a {runner.name}", runner) as run:
                with pytest.raises(RuntimeError, match="is already in a block"):
                    async with persisted(w.store, "d", runner):
                        pass

    run_scenario(scenario)


def test_what_a_team_knew_before_is_what_it_begins_with() -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_pictures_and_handoffs_are_kept() -> None:
    async def scenario(w: World) -> None:
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

    run_scenario(scenario)


def test_a_sync_store_and_the_console_do_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(w: World) -> None:
        with holdfast.open(str(tmp_path / "agents.db")) as store:
            async with persisted(store, "team", w.team()) as run:
                await Console(run.run_stream(task="begin"))
            assert store.state("team").version() == 5
        with pytest.raises(TypeError, match="an AutoGen agent or team"):
            persisted(w.store, "team", "writer")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"must be a store .*, got str"):
            persisted("team", w.store, w.team())  # type: ignore[arg-type]
        async with persisted(w.store, "x", w.team()) as run:
            with pytest.raises(ValueError, match="at least one message"):
                await run.run(task=[])
            for task in ({"role": "user", "content": "hi"}, [{"role": "user", "content": "hi"}]):
                with pytest.raises(TypeError, match=r"a message like TextMessage\(.*, got dict"):
                    await run.run(task=task)  # type: ignore[arg-type]

    run_scenario(scenario)
    assert "begin" in capsys.readouterr().out
