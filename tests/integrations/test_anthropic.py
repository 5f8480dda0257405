"""Chats on the Anthropic SDK: what is particular to the Messages API. What holds for each API is
tested with OpenAI's, and so are kills, in test_openai_crashes.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from helpers.paths import ROOT
from holdfast.integrations.anthropic import NoAnswer, TooManyRounds, call_id, complete

from .openai_loop import HELLO, Loop, anthropic_client

pytest_plugins = ["integrations.openai_fixtures"]


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def claude(request: pytest.FixtureRequest, server: ModelServer) -> Iterator[Loop]:
    with holdfast.open("memory://") as store:
        yield Loop(server, store, "messages", request.param)


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


def test_an_answer_is_stored_as_it_is_sent_back_with_what_the_bill_needs(claude: Loop) -> None:
    claude.chat.append(HELLO)
    answer = claude.complete()
    assert answer.text == "seen 1 messages; last: hello"
    stored = {"role": "assistant", "content": [{"type": "text", "text": answer.text}]}
    assert claude.chat.messages() == [HELLO, stored]
    assert answer.meta["finish"] == "end_turn"
    assert answer.meta["usage"] == {"input_tokens": 1, "output_tokens": 1}
    claude.chat.append({"role": "user", "content": "more"})
    claude.complete()
    assert claude.shown() == [HELLO, stored, {"role": "user", "content": "more"}]


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_and_calls_are_sent_back_as_they_came(claude: Loop, streamed: bool) -> None:
    claude.server.say(Reply("Let me see.", [Call("add", {"a": 1, "b": 2})], reasoning=True))
    claude.chat.append(HELLO)
    if streamed:
        said = "".join(claude.pieces(tools=[add]))
        assert said == "Let me see.tool said: 3"
    else:
        assert claude.complete(tools=[add]).text == "tool said: 3"
    call = {"type": "tool_use", "id": "toolu_1_0", "name": "add", "input": {"a": 1, "b": 2}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1_0", "content": "3"}
    assert claude.shown() == [
        HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hmm.", "signature": "sig_1"},
                {"type": "text", "text": "Let me see."},
                call,
            ],
        },
        {"role": "user", "content": [result]},
    ]
    assert claude.chat.validate() == []


def test_results_of_parallel_calls_are_one_turn_before_any_text(claude: Loop) -> None:
    claude.chat.append({"role": "user", "content": 'call add {"a": 1} and call add {"a": 2}'})
    assert claude.complete(tools=[add]).text == "tool said: 1; 2"
    turn = claude.shown()[-1]
    assert [block["type"] for block in turn["content"]] == ["tool_result", "tool_result"]
    assert claude.chat.count() == 5  # each result is a message of its own


def test_system_prompts_are_sent_beside_the_messages_within_the_window(claude: Loop) -> None:
    claude.chat.append({"role": "system", "content": "Speak English."})
    for number in range(30):
        claude.chat.append({"role": "user", "content": f"question {number}"})
        claude.chat.append({"role": "assistant", "content": f"answer {number}"})
    claude.chat.append(HELLO)
    claude.complete()
    body = claude.server.requests[-1]["body"]
    assert body["system"] == "Speak English."
    assert len(body["messages"]) == 61
    claude.chat.append(HELLO)
    claude.complete(system="Be brief.", window=60, counter=lambda _: 10)
    body = claude.server.requests[-1]["body"]
    assert body["system"] == "Be brief."
    assert len(body["messages"]) <= 6
    assert body["max_tokens"] == 1000


def test_a_message_that_came_while_the_model_answered_is_the_last_one_shown(claude: Loop) -> None:
    claude.chat.append(HELLO)
    claude.chat.append({"role": "user", "content": "and this?"})
    claude.chat.append(
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}, meta={"seen": 1}
    )
    claude.complete()
    assert [message["role"] for message in claude.shown()] == ["user", "assistant", "user"]
    assert claude.shown()[-1]["content"] == "and this?"


def test_a_turn_that_pauses_is_continued(claude: Loop) -> None:
    claude.server.say(Reply("I am searching", finish="pause_turn"), Reply(" and found it."))
    claude.chat.append(HELLO)
    assert claude.complete().text == " and found it."
    assert [message["role"] for message in claude.shown()] == ["user", "assistant"]
    claude.chat.append(HELLO)
    claude.server.say(*[Reply("…", finish="pause_turn")] * 3)
    with pytest.raises(TooManyRounds):
        claude.complete(rounds=3)


def test_an_empty_answer_is_not_sent_back(claude: Loop) -> None:
    claude.server.say(Reply())
    claude.chat.append(HELLO)
    assert claude.complete().text == ""
    claude.chat.append({"role": "user", "content": "more"})
    assert claude.complete().text.startswith("seen 1 messages")


def test_the_number_of_rounds_is_bounded_over_all_calls(claude: Loop) -> None:
    claude.server.say(*[Reply(calls=[Call("add", {"a": 1})])] * 3)
    claude.chat.append(HELLO)
    for _ in range(2):
        with pytest.raises(TooManyRounds):
            claude.complete(tools=[add], rounds=3)
    assert len(claude.server.requests) == 3


def test_schemas_go_with_functions_and_other_calls_are_for_the_caller(claude: Loop) -> None:
    schema = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
    claude.chat.append({"role": "user", "content": 'call add {"a": 1}'})
    answer = claude.complete(tools=[schema])
    [call] = answer.calls
    assert (call["name"], call["input"]) == ("add", {"a": 1})
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "one"}
    claude.chat.append({"role": "user", "content": [result]})
    assert claude.complete(tools=[schema]).text == "tool said: one"

    claude.chat.append({"role": "user", "content": 'call add {"a": 2}'})
    assert claude.complete(tools=[schema], functions={"add": add}).text == "tool said: 2"
    claude.complete(tools=[add])
    claude.chat.append(HELLO)
    claude.complete(tools=[add])
    [offered] = claude.server.requests[-1]["body"]["tools"]
    assert offered["description"] == "Add two numbers."
    assert offered["input_schema"]["required"] == ["a"]


def test_wrong_arguments_are_told_to_the_model_and_the_id_of_a_call_stays(claude: Loop) -> None:
    seen: list[str] = []
    broken = True

    def pay(amount: int) -> str:
        seen.append(call_id())
        if broken:
            raise OSError("down")
        return "paid"

    claude.server.say(
        Reply(calls=[Call("pay", {"amount": "x"})]), Reply(calls=[Call("pay", {"amount": 7})])
    )
    claude.chat.append(HELLO)
    with pytest.raises(OSError, match="down"):
        claude.complete(tools=[pay])
    broken = False
    assert claude.complete(tools=[pay]).text == "tool said: paid"
    assert seen == ["toolu_2_0", "toolu_2_0"]
    told = claude.shown()[2]["content"][0]["content"]
    assert told.startswith("error: wrong arguments: Expected `int`")


@pytest.mark.parametrize("cleanly", [False, True])
def test_a_stream_that_breaks_is_an_error_and_the_answer_is_asked_for_again(
    claude: Loop, cleanly: bool
) -> None:
    claude.server.say(Reply("one two three", cut_after=2, cleanly=cleanly))
    claude.chat.append(HELLO)
    with pytest.raises(NoAnswer if cleanly else (httpx2.HTTPError, anthropic.APIConnectionError)):
        claude.pieces()
    assert claude.chat.messages() == [HELLO]
    assert [draft.text for draft in claude.chat.drafts()] == ["one two "]
    assert "".join(claude.pieces()) == "seen 1 messages; last: hello"
    assert claude.chat.count() == 2


def test_a_streamed_call_that_ran_out_of_tokens_is_not_run(claude: Loop) -> None:
    claude.server.say(Reply(calls=[Call("add", '{"a": 1, "b')], finish="length"))
    claude.chat.append(HELLO)
    with pytest.raises(NoAnswer, match="raise max_tokens="):
        claude.pieces(tools=[add])
    assert claude.chat.messages() == [HELLO]


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_errors_of_the_sdk_come_through_and_nothing_is_stored(claude: Loop, status: int) -> None:
    claude.server.say(status)
    claude.chat.append(HELLO)
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.complete()
    assert caught.value.status_code == status
    assert claude.chat.messages() == [HELLO]
    assert claude.complete().text == "seen 1 messages; last: hello"


def test_wrong_arguments_say_what_to_pass(server: ModelServer) -> None:
    with holdfast.open("memory://") as store, anthropic_client(server) as client:
        chat = store.conversation("chat")
        options: dict[str, Any] = {"model": "any", "max_tokens": 10}
        with pytest.raises(TypeError, match="chat must be a conversation"):
            complete(client, [], **options)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"AsyncAnthropic for one of store\.aio"):
            complete(client, store.aio.conversation("chat"), **options)
        with pytest.raises(TypeError, match="messages= is not accepted"):
            complete(client, chat, messages=[], **options)
        with pytest.raises(TypeError, match="must be an Anthropic"):
            complete(object(), chat, **options)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="no message to answer"):
            complete(client, chat, **options)
        chat.append(HELLO)
        chat.append({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})
        chat.append(HELLO)
        with pytest.raises(ValueError, match="a message of another API, of type 'function_call'"):
            complete(client, chat, **options)


def test_it_needs_anthropics_sdk_and_not_openais(tmp_path: Path) -> None:
    program = "import sys; sys.modules['{}'] = None; import holdfast.integrations.anthropic"
    for missing, expected in (("openai", ""), ("anthropic", "pip install anthropic")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(missing)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.strip().splitlines()[-1:] == [] or expected in done.stderr
        assert bool(done.returncode) == bool(expected)


@pytest.mark.slow
def test_the_chat_in_the_terminal_goes_on_where_it_was_killed(
    server: ModelServer, tmp_path: Path
) -> None:
    settings = {
        "ANTHROPIC_BASE_URL": server.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
    }
    command = [sys.executable, str(ROOT / "examples" / "anthropic_chat.py")]
    for said, answers in (
        ('call roll {"sides": 1}', ["tool said: 1"]),
        ("thanks", ["(resuming after 4 messages)", "seen 5 messages; last: thanks"]),
    ):
        with subprocess.Popen(
            [*command, str(tmp_path / "chat.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(f"{said}\n")
                process.stdin.flush()
                assert [process.stdout.readline().strip() for _ in answers] == answers
            finally:
                process.kill()
