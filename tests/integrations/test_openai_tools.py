"""Tools in completions on the OpenAI SDK: offered, called, run once, and what happens when that
goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import openai
import pydantic
import pytest

import holdfast
from helpers.messages_wire import results_in
from helpers.model_server import Call, ModelServer, Reply
from holdfast.integrations.openai import TooManyRounds, call_id, complete

from .openai_loop import HELLO, Loop, of_openai, settings

pytest_plugins = ["integrations.openai_fixtures"]

ADD_TWICE = {"role": "user", "content": 'call add {"a": 1, "b": 2} and call add {"a": 3, "b": 4}'}


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def add_async(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


def schema_of_add(api: str) -> dict[str, Any]:
    function = {"name": "add", "parameters": SCHEMA}
    return (
        {"type": "function", "function": function}
        if api == "chat"
        else {"type": "function", **function}
    )


def results(messages: list[dict[str, Any]]) -> list[str]:
    """The results of tools, in order."""
    if any(results_in(message) for message in messages):
        return [result for message in messages for result in results_in(message)]
    return [
        str(message.get("output", message.get("content")))
        for message in messages
        if message.get("role") == "tool" or message.get("type") == "function_call_output"
    ]


def test_parallel_calls_are_run_and_each_result_is_stored(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    answer = loop.complete(tools=[add])
    assert answer.text == "tool said: 3; 7"
    assert results(loop.chat.messages()) == ["3", "7"]
    assert loop.chat.validate() == []
    assert len(loop.server.requests) == 2


def test_calls_that_are_streamed_are_run_too(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    assert "".join(loop.pieces(tools=[add])) == "tool said: 3; 7"
    assert results(loop.chat.messages()) == ["3", "7"]


def test_a_result_is_stored_before_the_next_tool_runs(loop: Loop) -> None:
    stored: list[list[str]] = []

    def add(a: int, b: int) -> int:
        stored.append(results(loop.chat.messages()))
        return a + b

    loop.chat.append(ADD_TWICE)
    loop.complete(tools=[add])
    assert stored == [[], ["3"]]


def test_a_result_that_was_rewound_is_stored_anew_even_if_it_is_the_same(loop: Loop) -> None:
    called = loop.chat.append(ADD_TWICE).last + (2 if loop.api == "responses" else 1)
    for _ in range(3):
        assert loop.complete(tools=[add]).text == "tool said: 3; 7"
        assert results(loop.chat.messages()) == ["3", "7"]
        loop.chat.rewind(version=called)


def test_an_error_in_a_tool_comes_through_and_only_what_has_no_result_is_run_again(
    loop: Loop,
) -> None:
    runs: list[tuple[int, int]] = []
    broken = True

    def add(a: int, b: int) -> int:
        runs.append((a, b))
        if broken and a == 3:
            raise OSError("the network is down")
        return a + b

    loop.chat.append(ADD_TWICE)
    for _ in range(2):
        with pytest.raises(OSError, match="the network is down"):
            loop.complete(tools=[add])
    broken = False
    assert loop.complete(tools=[add]).text == "tool said: 3; 7"
    assert runs == [(1, 2), (3, 4), (3, 4), (3, 4)]
    assert len(loop.server.requests) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"a": "one", "b": 2}, "error: wrong arguments: Expected `int`, got `str` - at `$.a`"),
        ({"a": 1}, "error: wrong arguments: Object missing required field `b`"),
        ({"a": 1, "b": 2, "c": 3}, "error: wrong arguments: Object contains unknown field `c`"),
        ('{"a": 1', "error: wrong arguments: Input data was truncated"),
    ],
)
@of_openai
def test_wrong_arguments_are_told_to_the_model(arguments: Any, told: str, loop: Loop) -> None:
    loop.server.say(Reply(calls=[Call("add", arguments)]))
    loop.chat.append(HELLO)
    loop.complete(tools=[add])
    assert results(loop.shown()) == [told]


def test_a_tool_that_does_not_exist_is_told_to_the_model(loop: Loop) -> None:
    loop.server.say(Reply(calls=[Call("subtract", {}), Call("add", {"a": 1, "b": 2})]))
    loop.chat.append(HELLO)
    assert loop.complete(tools=[add]).text == "tool said: error: no tool is named 'subtract'; 3"


@of_openai
def test_a_schema_of_ones_own_goes_with_a_function_by_name(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    schema = schema_of_add(loop.api)
    assert loop.complete(tools=[schema], functions={"add": add}).text == "tool said: 3; 7"
    assert loop.server.requests[0]["body"]["tools"] == [schema]
    loop.server.say(Reply(calls=[Call("add", {"x": 1}), Call("add", "[]")]))
    loop.chat.append(HELLO)
    loop.complete(tools=[schema], functions={"add": add})
    assert all(told.startswith("error: wrong arguments: ") for told in results(loop.shown())[2:])


@of_openai
def test_calls_of_a_tool_without_a_function_are_for_the_caller_to_answer(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    schema = schema_of_add(loop.api)
    answer = loop.complete(tools=[schema])
    assert loop.complete(tools=[schema]) == answer
    assert len(loop.server.requests) == 1
    for call, result in zip(answer.calls, ("three", "seven"), strict=True):
        if loop.api == "chat":
            loop.chat.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        else:
            loop.chat.append(
                {"type": "function_call_output", "call_id": call["call_id"], "output": result}
            )
    assert loop.complete(tools=[schema]).text == "tool said: three; seven"


@of_openai
def test_the_number_of_rounds_is_bounded_over_all_calls(loop: Loop) -> None:
    again = Reply(calls=[Call("add", {"a": 1, "b": 2})])
    loop.server.say(again, 500, again, again, "done")
    loop.chat.append(HELLO)
    with pytest.raises(openai.InternalServerError):
        loop.complete(tools=[add], rounds=2)
    for _ in range(2):
        with pytest.raises(TooManyRounds) as raised:
            loop.complete(tools=[add], rounds=2)
        assert raised.value.rounds == 2
    assert len(loop.server.requests) == 3
    assert loop.complete(tools=[add], rounds=4).text == "done"


@dataclass
class Place:
    city: str
    country: str = "NL"


class Forecast(pydantic.BaseModel):
    day: date
    degrees: float


def forecast(
    place: Place,
    day: date,
    unit: Literal["C", "F"] = "C",
    hours: Annotated[list[int], msgspec.Meta(description="which hours")] = [],  # noqa: B006  never changed
) -> Forecast:
    """What the weather will be."""
    assert (place, unit, hours) == (Place("Delft"), "C", [])
    return Forecast(day=day, degrees=21.5)


@of_openai
def test_a_functions_schema_follows_from_its_signature(loop: Loop) -> None:
    loop.server.say(
        Reply(calls=[Call("forecast", {"place": {"city": "Delft"}, "day": "2026-05-04"})])
    )
    loop.chat.append(HELLO)
    loop.complete(tools=[forecast])
    [offered] = loop.server.requests[0]["body"]["tools"]
    function = offered["function"] if loop.api == "chat" else offered
    assert (function["name"], function["description"]) == ("forecast", "What the weather will be.")
    parameters = function["parameters"]
    assert (parameters["type"], parameters["required"]) == ("object", ["place", "day"])
    assert parameters["properties"] == {
        "place": {"$ref": "#/$defs/Place"},
        "day": {"type": "string", "format": "date"},
        "unit": {"enum": ["C", "F"], "default": "C"},
        "hours": {"type": "array", "items": {"type": "integer"}, "description": "which hours"},
    }
    assert parameters["$defs"]["Place"]["required"] == ["city"]
    assert results(loop.shown()) == ['{"day":"2026-05-04","degrees":21.5}']


def test_async_tools_run_in_the_loop_and_others_beside_it(server: ModelServer) -> None:
    async def main(store: holdfast.AsyncStore) -> str:
        chat = store.conversation("chat")
        await chat.append(ADD_TWICE)
        async with openai.AsyncOpenAI(**settings(server, awaited=True)) as client:
            schemas, functions = [schema_of_add("chat")], {"add": add_async}
            return (
                await complete(client, chat, model="any", tools=schemas, functions=functions)
            ).text

    with holdfast.open("memory://") as store:
        assert asyncio.run(main(store.aio)) == "tool said: 3; 7"


def test_a_step_of_a_task_may_be_a_tool_async_or_not(server: ModelServer) -> None:
    ran: list[int] = []

    @holdfast.step(key=lambda a, b: call_id())
    async def add(a: int, b: int) -> int:
        ran.append(a)
        return a + b

    async def main(store: holdfast.AsyncStore) -> str:
        async with (
            openai.AsyncOpenAI(**settings(server, awaited=True)) as client,
            store.task("t") as task,
        ):
            chat = task.conversation()
            await chat.append(ADD_TWICE)
            return (await complete(client, chat, model="any", tools=[add])).text

    with holdfast.open("memory://") as store:
        assert asyncio.run(main(store.aio)) == "tool said: 3; 7"
        assert asyncio.run(main(store.aio)) == "tool said: 3; 7"
        view = store.get_task("t")
        assert view is not None
        assert [step.result for step in view.steps] == [3, 7]
        assert ran == [1, 3]


def test_async_tools_need_an_async_client(server: ModelServer, chat: holdfast.Conversation) -> None:
    with (
        openai.OpenAI(**settings(server)) as client,
        pytest.raises(TypeError, match="async tools need an AsyncOpenAI"),
    ):
        complete(client, chat, model="any", tools=[add_async])


def untyped(a) -> None:  # type: ignore[no-untyped-def]
    pass


def starred(*a: int) -> None:
    pass


def unknown(a: Forecast) -> None:
    pass


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": [unknown]}, "pass the schema in tools= and the function in functions="),
        ({"tools": [untyped]}, "parameter a of untyped.* must have a type"),
        ({"tools": [starred]}, "only named parameters"),
        ({"tools": ["add"]}, "a tool must be a named function"),
        ({"tools": [add, add]}, "two tools are named 'add'"),
        ({"tools": add}, "tools must be a list"),
        ({"tools": schema_of_add("chat")}, "tools must be a list"),
        ({"functions": [add]}, "functions must be a dict"),
        ({"functions": {"add": add}}, "tools has no schema of that name"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused_before_anything_is_asked(
    options: dict[str, Any], problem: str, server: ModelServer, chat: holdfast.Conversation
) -> None:
    with (
        openai.OpenAI(**settings(server)) as client,
        pytest.raises((TypeError, ValueError), match=problem),
    ):
        complete(client, chat, model="any", **options)


class Weird:
    """Something of one's own."""


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Weird(), "Weird"),
        ([Weird()], "list"),
        (float("nan"), "float"),
        ({"degrees": float("inf")}, "dict"),
        (b"receipt", "bytes"),
        ("\ud800", "str"),
    ],
)
def test_a_tool_has_run_even_if_its_result_cannot_be_shown(
    value: object, kind: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    def pay(amount: int) -> object:
        runs.append(amount)
        return value

    loop.chat.append({"role": "user", "content": 'call pay {"amount": 7}'})
    told = f"pay has run; its result ({kind}) can't be shown"
    for _ in range(2):
        assert loop.complete(tools=[pay]).text == f"tool said: {told}"
    assert runs == [7]
    assert results(loop.chat.messages()) == [told]
    [record] = [record for record in caplog.records if record.name == "holdfast"]
    assert record.levelname == "WARNING"


def test_a_coroutine_has_not_run_and_is_no_result(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    with pytest.raises(TypeError, match="declare it with async def"):
        loop.complete(
            tools=[schema_of_add(loop.api)], functions={"add": lambda a, b: add_async(a, b)}
        )
    assert results(loop.chat.messages()) == []


@of_openai
def test_the_id_of_a_call_is_the_same_when_it_is_run_again(loop: Loop) -> None:
    ids: list[str] = []

    def add(a: int, b: int) -> int:
        ids.append(call_id())
        if len(ids) < 3:
            raise OSError("the network is down")
        return a + b

    async def add_later(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return await asyncio.to_thread(add, a, b)

    tools = {
        "tools": [schema_of_add(loop.api)],
        "functions": {"add": add_later if loop.awaited else add},
    }
    loop.chat.append(ADD_TWICE)
    for _ in range(2):
        with pytest.raises(OSError, match="the network is down"):
            loop.complete(**tools)
    assert loop.complete(tools=[add]).text == "tool said: 3; 7"
    first, second = [
        message["tool_call_id"] if loop.api == "chat" else message["call_id"]
        for message in outputs(loop)
    ]
    assert first != second
    assert ids == [first, first, first, second]


def outputs(loop: Loop) -> list[dict[str, Any]]:
    return [message for message in loop.chat.messages() if results([message])]


def test_there_is_no_call_id_where_no_tool_is_run(loop: Loop) -> None:
    loop.chat.append(ADD_TWICE)
    loop.complete(tools=[add])
    with pytest.raises(RuntimeError, match="only inside a tool"):
        call_id()
