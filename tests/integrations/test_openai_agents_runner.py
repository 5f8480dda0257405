"""Durable runs of the Agents SDK: what is recorded is not called again, whatever the run consists
of."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    CustomTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    ToolOutputText,
    UserError,
    function_tool,
    retry_policies,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from helpers.paths import TESTS
from holdfast.errors import NotFound, ReplayMismatch, StepInDoubt
from holdfast.integrations.openai_agents import HoldfastRunner, HoldfastSession, ToolDecision
from holdfast.testing import crash

from .openai_loop import settings

pytest_plugins = ["integrations.openai_fixtures"]

set_tracing_disabled(True)

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as store:
        yield store


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    done.append(f"add {a} {b}")
    return a + b


@function_tool
@holdfast.step(once=True)
async def pay(amount: int) -> str:
    """Pay."""
    done.append(f"pay {amount}")
    return f"paid {amount}"


@function_tool(needs_approval=True)
def ship(to: str) -> str:
    """Ship."""
    done.append(f"ship {to}")
    return f"shipped to {to}"


def connect(server: ModelServer, kind: Any = OpenAIResponsesModel) -> Any:
    # Connections are not kept: they would outlive the event loop of the run.
    return kind(
        "any",
        openai.AsyncOpenAI(
            **settings(server, awaited=True), default_headers={"connection": "close"}
        ),
    )


def clerk(model: Any, **options: Any) -> Agent[Any]:
    return Agent(name="clerk", model=model, tools=[add, pay, ship], **options)


TWO_TOOLS = 'call add {"a": 1, "b": 2} and call pay {"amount": 7}'


async def run_one_way(runner: HoldfastRunner, way: str, *args: Any, **options: Any) -> Any:
    """Run an agent in one of the three ways, and return its result."""
    if way == "run":
        return await runner.run(*args, **options)
    if way == "run_sync":
        return await asyncio.to_thread(in_loop_of_its_own, runner, *args, **options)
    stream = runner.run_streamed(*args, **options)
    async for _ in stream.stream_events():
        pass
    return stream


def in_loop_of_its_own(runner: HoldfastRunner, *args: Any, **options: Any) -> Any:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return runner.run_sync(*args, **options)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.every_engine
def test_a_finished_run_returns_the_same_result_without_a_call(
    url: str, server: ModelServer
) -> None:
    agent = clerk(connect(server))

    async def main() -> None:
        with holdfast.open(url) as store:
            session = HoldfastSession("chat", store)
            for way in ("run", "run_sync", "run_streamed"):
                result = await run_one_way(
                    HoldfastRunner(store), way, agent, TWO_TOOLS, task_id="bill-7", session=session
                )
                assert result.final_output == "tool said: 3; paid 7"
                assert result.last_agent is agent
                assert result.to_input_list() == await session.get_items()
            view = store.get_task("bill-7")
            assert view is not None
            assert (view.status, view.result, view.goal) == (
                "finished",
                "tool said: 3; paid 7",
                TWO_TOOLS,
            )
            assert sorted(step.path for step in view.steps) == [
                "add",
                "add to the session",
                "clerk[1]",
                "clerk[2]",
                "pay",
                "read the session",
            ]
            assert view.usage.calls == 2

    asyncio.run(main())
    assert len(server.requests) == 2
    assert sorted(done) == ["add 1 2", "pay 7"]


@pytest.mark.parametrize("way", ["run", "run_sync", "run_streamed"])
def test_each_way_to_run_is_recorded(store: holdfast.Store, way: str, server: ModelServer) -> None:
    agent = clerk(connect(server))

    async def main() -> None:
        with crash(after="clerk[1]"):
            await run_one_way(HoldfastRunner(store), way, agent, TWO_TOOLS, task_id="bill-7")
        result = await run_one_way(HoldfastRunner(store), way, agent, TWO_TOOLS, task_id="bill-7")
        assert result.final_output == "tool said: 3; paid 7"

    asyncio.run(main())
    assert len(server.requests) == 2
    assert sorted(done) == ["add 1 2", "pay 7"]


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("first, then", [("run", "run_streamed"), ("run_streamed", "run")])
def test_a_run_that_dies_at_any_write_resumes_in_any_way_and_repeats_no_recorded_call(
    kind: Any, first: str, then: str, server: ModelServer
) -> None:
    async def main(write: int) -> bool:
        with holdfast.open("memory://") as store:
            agent, runner = clerk(connect(server, kind)), HoldfastRunner(store)
            session = HoldfastSession("chat", store)
            options: dict[str, Any] = {"task_id": "bill-7", "session": session}
            died = crash(write=write)
            try:
                with died:
                    await run_one_way(runner, first, agent, TWO_TOOLS, **options)
            except AssertionError:  # no such write: the run was over before
                return False
            requests = len(server.requests)
            view = store.get_task("bill-7")
            assert view is not None
            recorded = {step.path for step in view.steps if step.status == "completed"}
            doubt = [step.path for step in view.steps if step.in_doubt]
            for path in doubt:
                store.resolve("bill-7", path, result="paid 7")
            result = await run_one_way(runner, then, agent, TWO_TOOLS, **options)
            assert result.final_output == "tool said: 3; paid 7"
            assert await session.get_items() == result.to_input_list()
            models = {"clerk[1]", "clerk[2]"}
            assert len(server.requests) - requests == len(models - recorded)
            assert done.count("pay 7") <= 1
            assert done.count("add 1 2") <= (1 if "add" in recorded else 2)
        return True

    write = 1
    while asyncio.run(main(write)):
        write, _ = write + 1, done.clear()
    assert write > 7


def test_a_resumed_stream_has_the_same_text_and_goes_on_live(
    store: holdfast.Store, server: ModelServer
) -> None:
    async def texts(runner: HoldfastRunner) -> AsyncIterator[str]:
        stream = runner.run_streamed(clerk(connect(server)), "Good morning", task_id="talk")
        async for event in stream.stream_events():
            if event.type == "raw_response_event" and event.data.type.endswith("text.delta"):
                yield event.data.delta

    async def main() -> None:
        live = [text async for text in texts(HoldfastRunner(store))]
        again = [text async for text in texts(HoldfastRunner(store))]
        assert len(live) > 1
        assert again == ["".join(live)] == ["seen 1 messages; last: Good morning"]

    asyncio.run(main())
    assert len(server.requests) == 1


def test_a_cancelled_stream_leaves_a_run_that_can_be_resumed(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent = clerk(connect(server))

    async def main() -> None:
        stream = HoldfastRunner(store).run_streamed(agent, TWO_TOOLS, task_id="bill-7")
        async for event in stream.stream_events():
            if getattr(event, "name", "") == "tool_output":
                stream.cancel()
        assert stream.is_complete
        view = store.get_task("bill-7")
        assert view is not None and view.status == "pending"
        result = await HoldfastRunner(store).run(agent, TWO_TOOLS, task_id="bill-7")
        assert result.final_output == "tool said: 3; paid 7"

    asyncio.run(main())
    assert sorted(done) == ["add 1 2", "pay 7"]


def test_attributes_of_a_stream_that_has_not_started_say_what_to_do(
    store: holdfast.Store, server: ModelServer
) -> None:
    async def main() -> None:
        stream = HoldfastRunner(store).run_streamed(
            clerk(connect(server)), "Hello", task_id="hello"
        )
        with pytest.raises(AttributeError, match=r"stream_events\(\) first"):
            _ = stream.final_output
        assert [event async for event in stream.stream_events()]
        assert stream.final_output == "seen 1 messages; last: Hello"

    asyncio.run(main())


# -- approvals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_an_approval_can_be_answered_in_the_store_by_another_process(
    store: holdfast.Store, way: str, server: ModelServer
) -> None:
    agent, text = clerk(connect(server)), 'call ship {"to": "Ann"}'

    async def main() -> None:
        for _ in range(2):  # the second run asks nothing of the model
            result = await run_one_way(HoldfastRunner(store), way, agent, text, task_id="letter")
            assert [item.tool_name for item in result.interruptions] == ["ship"]
            assert done == []
        view = store.get_task("letter")
        assert view is not None and view.status == "suspended"
        (question,) = view.questions
        assert question.payload == {"agent": "clerk", "tool": "ship", "arguments": {"to": "Ann"}}
        store.answer("letter", question.name, True, by="ann")
        result = await run_one_way(HoldfastRunner(store), way, agent, text, task_id="letter")
        assert result.final_output == "tool said: shipped to Ann"

    asyncio.run(main())
    assert done == ["ship Ann"]
    assert len(server.requests) == 2


def test_an_approval_in_the_run_state_is_recorded(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent, text = clerk(connect(server)), 'call ship {"to": "Ann"} and call ship {"to": "Bob"}'
    notes: list[str] = []

    def note(text: str) -> str:
        notes.append(text)
        return text

    async def main() -> None:
        runner = HoldfastRunner(store)
        seen = agent.clone(instructions=lambda run, _: note(f"for {run.context}"))
        result = await runner.run(seen, text, task_id="letters", context="Ann")
        state = result.to_state()
        first, second = state.get_interruptions()
        state.approve(first)
        state.reject(second, rejection_message="Bob has moved")
        result = await runner.run(seen, state, task_id="letters")
        assert set(notes) == {"for Ann"}
        assert result.final_output == "tool said: shipped to Ann; Bob has moved"
        # From the start, with the recorded decisions.
        result = await runner.run(agent, text, task_id="letters")
        assert result.final_output == "tool said: shipped to Ann; Bob has moved"
        with pytest.raises(NotFound, match="no task 'others'"):
            await runner.run(agent, state, task_id="others")

    asyncio.run(main())
    assert done == ["ship Ann"]
    assert len(server.requests) == 2


def test_a_decision_can_hold_for_later_calls(store: holdfast.Store) -> None:
    model = ScriptedModel(
        [
            [function_call("ship", {"to": "Ann"}, call_id="c1")],
            [function_call("ship", {"to": "Bob"}, call_id="c2")],
            [assistant_message("done")],
        ]
    )

    async def main() -> None:
        runner = HoldfastRunner(store)
        await runner.run(clerk(model), "Ship", task_id="letters")
        store.answer("letters", "ship c1", ToolDecision(True, always=True))
        result = await runner.run(clerk(model), "Ship", task_id="letters")
        assert result.final_output == "done"

    asyncio.run(main())
    assert done == ["ship Ann", "ship Bob"]


def test_an_approval_inside_an_agent_that_is_a_tool_survives(store: holdfast.Store) -> None:
    inner = ScriptedModel(
        [[function_call("ship", {"to": "Ann"}, call_id="c1")], [assistant_message("it is shipped")]]
    )
    outer = ScriptedModel(
        [
            [function_call("post", {"input": "letter"}, call_id="c1")],
            [assistant_message("all done")],
        ]
    )
    post = Agent(name="post", model=inner, tools=[ship])
    boss = Agent(name="boss", model=outer, tools=[post.as_tool("post", "Posts letters.")])

    async def main() -> None:
        runner = HoldfastRunner(store)
        result = await runner.run(boss, "Post it", task_id="letters")
        assert [item.tool_name for item in result.interruptions] == ["ship"]
        store.answer("letters", "ship c1", True)
        for _ in range(2):
            result = await runner.run(boss, "Post it", task_id="letters")
            assert result.final_output == "all done"
        view = store.get_task("letters")
        assert view is not None
        assert [step.path for step in view.steps if step.kind == "model"] == [
            "boss[1]",
            "post[c1 1]",
            "post[c1 2]",
            "boss[2]",
        ]

    asyncio.run(main())
    assert done == ["ship Ann"]


# -- tools -----------------------------------------------------------------------------------------


def test_a_once_tool_in_doubt_stops_the_run_until_it_is_resolved(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent, text = clerk(connect(server)), 'call pay {"amount": 7}'

    async def main() -> None:
        runner = HoldfastRunner(store)
        with crash(during="pay"):
            await runner.run(agent, text, task_id="bill-7")
        for way in ("run", "run_streamed"):
            with pytest.raises(StepInDoubt, match="pay"):
                await run_one_way(runner, way, agent, text, task_id="bill-7")
        store.resolve("bill-7", "pay", result="paid 7, as the bank says")
        result = await runner.run(agent, text, task_id="bill-7")
        assert result.final_output == "tool said: paid 7, as the bank says"

    asyncio.run(main())
    assert done == ["pay 7"]
    assert len(server.requests) == 2


def test_a_check_tool_is_checked_and_a_failure_that_is_not_one_goes_to_the_model(
    store: holdfast.Store, server: ModelServer
) -> None:
    def find(amount: int) -> str | None:
        return f"found {amount}" if f"bank {amount}" in done else None

    @holdfast.step(check=find, check_after=0)
    def bank(amount: int) -> str:
        """Pay at the bank."""
        done.append(f"bank {amount}")
        if amount > 8:
            raise holdfast.NotDone("too much")
        return f"paid {amount}"

    tool = function_tool(bank, failure_error_function=lambda _, error: f"it said: {error}")
    agent = Agent(name="cashier", model=connect(server), tools=[tool])

    async def main() -> None:
        runner = HoldfastRunner(store)
        with crash(during="bank"):
            await runner.run(agent, 'call bank {"amount": 7}', task_id="bill-7")
        result = await runner.run(agent, 'call bank {"amount": 7}', task_id="bill-7")
        assert result.final_output == "tool said: found 7"
        result = await runner.run(agent, 'call bank {"amount": 9}', task_id="bill-9")
        assert result.final_output == "tool said: it said: too much"

    asyncio.run(main())
    assert done == ["bank 7", "bank 9"]


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_a_tool_may_ask_a_person_itself(
    store: holdfast.Store, way: str, server: ModelServer
) -> None:
    @function_tool
    async def confirm(what: str) -> str:
        """Confirm."""
        task: Any = holdfast.current_task()
        return "yes" if await task.ask("sure", "Are you sure?", what, returns=bool) else "no"

    agent, text = (
        Agent(name="clerk", model=connect(server), tools=[confirm]),
        'call confirm {"what": "it"}',
    )

    async def main() -> None:
        runner = HoldfastRunner(store)
        with pytest.raises(holdfast.Suspended):
            await run_one_way(runner, way, agent, text, task_id="sure")
        view = store.get_task("sure")
        assert view is not None and view.status == "suspended"
        store.answer("sure", "sure", True)
        result = await run_one_way(runner, way, agent, text, task_id="sure")
        assert result.final_output == "tool said: yes"

    asyncio.run(main())
    assert len(server.requests) == 2


class Parcel(BaseModel):
    to: str
    weight: float


@pytest.mark.parametrize(
    "output",
    ["text", 3, None, {"a": [1, 2.5]}, Parcel(to="Ann", weight=2), ToolOutputText(text="typed")],
)
def test_a_tool_output_comes_back_as_it_was(store: holdfast.Store, output: Any) -> None:
    async def give() -> Any:
        """Give."""
        done.append("give")
        return output

    give.__annotations__["return"] = type(output)
    seen: list[Any] = []

    async def main() -> None:
        model = ScriptedModel([[function_call("give", {}, call_id="c1")]])
        agent: Agent[Any] = Agent(
            name="giver",
            model=model,
            tools=[function_tool(give)],
            tool_use_behavior="stop_on_first_tool",
        )
        for _ in range(2):
            result = await HoldfastRunner(store).run(agent, "Give", task_id="gift")
            seen.append(result.new_items[-1].output)  # type: ignore[union-attr]  # of the tool

    asyncio.run(main())
    assert seen == [output, output]
    assert done == ["give"]


def test_a_failed_tool_is_recorded_as_what_the_model_reads(
    store: holdfast.Store, server: ModelServer
) -> None:
    @function_tool
    def fail() -> str:
        """Fail."""
        done.append("fail")
        raise ValueError("no luck")

    agent = Agent(name="loser", model=connect(server), tools=[fail])

    async def main() -> None:
        for _ in range(2):
            result = await HoldfastRunner(store).run(agent, "call fail {}", task_id="bad")
            assert "An error occurred" in result.final_output

    asyncio.run(main())
    assert done == ["fail"]


def test_a_tool_that_cannot_be_recorded_is_refused(
    store: holdfast.Store, server: ModelServer
) -> None:
    async def invoke(context: Any, text: str) -> str:
        return text

    custom = CustomTool(name="typist", description="Types.", on_invoke_tool=invoke)
    agent = Agent(name="writer", model=connect(server), tools=[custom])
    with pytest.raises(UserError, match="can't record calls of 'typist'"):
        asyncio.run(HoldfastRunner(store).run(agent, "Type", task_id="typing"))
    assert server.requests == []


def test_tools_of_an_mcp_server_are_steps(store: holdfast.Store, server: ModelServer) -> None:
    async def main() -> None:
        for _ in range(2):
            program = {"command": sys.executable, "args": [str(TESTS / "helpers" / "mcp_adder.py")]}
            async with MCPServerStdio(program, client_session_timeout_seconds=60) as adder:  # type: ignore[arg-type]
                agent = Agent(name="clerk", model=connect(server), mcp_servers=[adder])
                result = await HoldfastRunner(store).run(
                    agent, 'call add_up {"a": 1, "b": 2}', task_id="sum"
                )
                assert "3" in result.final_output
        view = store.get_task("sum")
        assert view is not None
        assert [step.path for step in view.steps] == ["clerk[1]", "add_up", "clerk[2]"]

    asyncio.run(main())
    assert len(server.requests) == 2


# -- handoffs, guardrails, sessions, retries -------------------------------------------------------


def test_handoffs_lead_to_the_same_agent_again(store: holdfast.Store) -> None:
    spanish = Agent(name="spanish", model=ScriptedModel([[assistant_message("hola")]]))
    triage = Agent(
        name="triage",
        model=ScriptedModel([[function_call("transfer_to_spanish", {}, call_id="c1")]]),
        handoffs=[spanish],
    )

    async def main() -> None:
        for _ in range(2):
            result = await HoldfastRunner(store).run(triage, "Buenos dias", task_id="talk")
            assert result.final_output == "hola"
            assert result.last_agent is spanish
        view = store.get_task("talk")
        assert view is not None
        assert [step.path for step in view.steps] == ["triage[1]", "spanish[2]"]

    asyncio.run(main())


def test_the_model_call_of_a_guardrail_is_recorded_too(store: holdfast.Store) -> None:
    judge = Agent(name="judge", model=ScriptedModel([[assistant_message("fine")]]))

    async def guard(
        context: RunContextWrapper[Any], agent: Agent[Any], text: Any
    ) -> GuardrailFunctionOutput:
        said = (await Runner.run(judge, text)).final_output
        return GuardrailFunctionOutput(output_info=said, tripwire_triggered=said != "fine")

    agent = Agent(
        name="clerk",
        model=ScriptedModel([[assistant_message("hello")]]),
        input_guardrails=[InputGuardrail(guardrail_function=guard)],
    )

    async def main() -> None:
        for _ in range(2):
            result = await HoldfastRunner(store).run(agent, "Hello", task_id="talk")
            assert result.final_output == "hello"
            assert result.input_guardrail_results[0].output.output_info == "fine"

    asyncio.run(main())


def test_instructions_that_change_with_time_do_not_repeat_finished_calls(
    store: holdfast.Store, server: ModelServer
) -> None:
    times = iter(range(100))
    agent = clerk(connect(server), instructions=lambda _, __: f"The time is {next(times)}")

    async def main() -> None:
        with crash(after="add"):
            await HoldfastRunner(store).run(agent, 'call add {"a": 1, "b": 2}', task_id="sum")
        result = await HoldfastRunner(store).run(agent, 'call add {"a": 1, "b": 2}', task_id="sum")
        assert result.final_output == "tool said: 3"

    asyncio.run(main())
    assert len(server.requests) == 2
    assert done == ["add 1 2"]


def test_a_run_goes_on_after_max_turns_with_more_of_them(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent, text = clerk(connect(server)), 'call add {"a": 1, "b": 2}'

    async def main() -> None:
        runner = HoldfastRunner(store)
        with pytest.raises(MaxTurnsExceeded):
            await runner.run(agent, text, task_id="sum", max_turns=1)
        view = store.get_task("sum")
        assert view is not None and view.status == "failed"
        result = await runner.run(agent, text, task_id="sum", max_turns=2)
        assert result.final_output == "tool said: 3"

    asyncio.run(main())
    assert len(server.requests) == 2


@pytest.mark.parametrize("way", ["run", "run_streamed"])
def test_calls_that_the_sdk_retried_are_not_retried_when_the_run_resumes(
    store: holdfast.Store, way: str, server: ModelServer
) -> None:
    server.say(500, Reply(calls=[Call("add", {"a": 1, "b": 2})]))
    retry = ModelRetrySettings(max_retries=2, policy=retry_policies.http_status([500]))
    agent = clerk(connect(server), model_settings=ModelSettings(retry=retry))

    async def main() -> None:
        runner = HoldfastRunner(store)
        with crash(after="add"):
            await run_one_way(runner, way, agent, "Add", task_id="sum")
        result = await run_one_way(runner, way, agent, "Add", task_id="sum")
        assert result.final_output == "tool said: 3"

    asyncio.run(main())
    assert len(server.requests) == 3


def test_a_run_that_dies_while_it_adds_to_its_session_adds_once(
    store: holdfast.Store, server: ModelServer
) -> None:
    async def main() -> None:
        session = HoldfastSession("chat", store)
        agent, options = clerk(connect(server)), {"task_id": "hello", "session": session}
        with crash(during="add to the session"):
            await HoldfastRunner(store).run(agent, "Hello", **options)  # type: ignore[arg-type]
        assert len(await session.get_items()) == 2
        result = await HoldfastRunner(store).run(agent, "Hello", **options)  # type: ignore[arg-type]
        assert await session.get_items() == result.to_input_list()

    asyncio.run(main())
    assert len(server.requests) == 1


def test_another_session_is_read_and_written_once(
    store: holdfast.Store, server: ModelServer
) -> None:
    async def main() -> None:
        session = SQLiteSession("chat")
        await session.add_items([{"role": "user", "content": "My name is Ann."}])
        for _ in range(2):
            result = await HoldfastRunner(store).run(
                clerk(connect(server)), "Hello", task_id="hello", session=session
            )
            assert result.final_output == "seen 2 messages; last: Hello"
        assert len(await session.get_items()) == 3

    asyncio.run(main())
    assert len(server.requests) == 1


# -- tasks -----------------------------------------------------------------------------------------


def test_runs_inside_a_task_are_part_of_it_and_a_worker_resumes_them(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent = clerk(connect(server))

    @holdfast.agent("secretary")
    async def secretary(task: holdfast.AsyncTask) -> list[str]:
        runner = HoldfastRunner(store)
        texts = ["Hello", 'call ship {"to": "Ann"}']
        results = await asyncio.gather(*[runner.run(agent, text) for text in texts])
        return [result.final_output for result in results]

    store.submit("secretary", "letters")
    assert [run.status for run in store.run_due()] == ["suspended"]
    view = store.get_task("letters")
    assert view is not None
    store.answer("letters", view.questions[0].name, True)
    assert [run.status for run in store.run_due()] == ["finished"]
    view = store.get_task("letters")
    assert view is not None
    assert view.result == ["seen 1 messages; last: Hello", "tool said: shipped to Ann"]
    assert len(server.requests) == 3
    assert done == ["ship Ann"]


def test_another_input_or_another_kind_of_task_is_refused(
    store: holdfast.Store, server: ModelServer
) -> None:
    agent = clerk(connect(server))

    async def main() -> None:
        runner = HoldfastRunner(store)
        await runner.run(agent, "Hello", task_id="hello")
        with pytest.raises(ReplayMismatch, match=r"another (input|goal)"):
            await runner.run(agent, "Good bye", task_id="hello")
        with pytest.raises(TypeError, match="pass task_id=…"):
            await runner.run(agent, "Hello")
        with pytest.raises(TypeError, match="store must be an open store"):
            HoldfastRunner("agents.db")  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="an event loop is running here"):
            runner.run_sync(agent, "Hello", task_id="hello")

    asyncio.run(main())
    with store.task("plain"), pytest.raises(TypeError, match="needs an async one"):
        in_loop_of_its_own(HoldfastRunner(store), agent, "Hello")


def test_outside_durable_runs_the_sdk_is_as_it_was(
    store: holdfast.Store, server: ModelServer
) -> None:
    HoldfastRunner(store)
    agent = Agent(name="clerk", model=connect(server), tools=[add])

    async def main() -> None:
        for _ in range(2):
            result = await Runner.run(agent, 'call add {"a": 1, "b": 2}', run_config=RunConfig())
            assert result.final_output == "tool said: 3"

    asyncio.run(main())
    assert len(server.requests) == 4
    assert done == ["add 1 2", "add 1 2"]


def test_outside_durable_runs_the_model_hears_of_any_error_of_a_tool(store: holdfast.Store) -> None:
    @function_tool
    def find(name: str) -> str:
        """Find."""
        raise NotFound(f"there is no {name}")

    HoldfastRunner(store)
    asked = function_call("find", {"name": "bill"}, call_id="1")
    model = ScriptedModel([[asked], [assistant_message("sorry")]])
    agent = Agent(name="clerk", model=model, tools=[find])
    assert asyncio.run(Runner.run(agent, "find it")).final_output == "sorry"


def test_an_sdk_that_calls_tools_in_another_way_is_refused(
    store: holdfast.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = importlib.import_module("holdfast.integrations.openai_agents.calls")
    HoldfastRunner(store)
    monkeypatch.delattr(calls._Originals, "get_model")
    monkeypatch.delattr("agents.run_internal.run_loop.get_model")
    with pytest.raises(ImportError, match=r"needs openai-agents 0\.24, got .*pip install"):
        HoldfastRunner(store)
