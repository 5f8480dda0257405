"""Completions on the OpenAI SDK: what is stored, what is sent, what is done again and what is
not."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import openai
import pytest

import holdfast
from helpers.model_server import Call, ModelServer, Reply
from holdfast.integrations.openai import NoAnswer, TurnAnswer, complete

from .openai_loop import HELLO, Loop, of_openai, settings

pytest_plugins = ["integrations.openai_fixtures"]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# -- answers ---------------------------------------------------------------------------------------


@of_openai
def test_an_answer_is_stored_as_the_sdk_would_send_it_back(loop: Loop) -> None:
    loop.chat.append(HELLO)
    answer = loop.complete()
    assert answer.text == "seen 1 messages; last: hello"
    assert loop.chat.messages() == [HELLO, *answer.messages]
    with openai.OpenAI(**settings(loop.server)) as client:
        if loop.api == "chat":
            message = (
                client.chat.completions.create(model="any", messages=[HELLO]).choices[0].message
            )  # type: ignore[list-item]
            assert answer.messages == [message.to_dict()]
        else:
            [item] = client.responses.create(model="any", input="hello").output
            assert [{**answer.messages[0], "id": item.id}] == [item.to_dict()]


@of_openai
def test_what_the_model_and_the_bill_need_is_noted_beside_the_answer_and_never_sent(
    loop: Loop,
) -> None:
    loop.chat.append(HELLO)
    answer = loop.complete()
    assert answer.meta["model"] == "any"
    assert answer.meta["finish"] in ("stop", "completed")
    assert answer.meta["usage"]["total_tokens"] == 2
    assert loop.chat.entries(last=1)[0].meta["response"] == answer.meta["response"]
    loop.chat.append(HELLO)
    loop.complete()
    assert loop.shown() == [HELLO, *answer.messages, HELLO]


def test_a_chat_that_is_answered_is_not_asked_about_again(loop: Loop) -> None:
    loop.chat.append(HELLO)
    first = loop.complete()
    assert loop.complete() == first
    assert loop.pieces() == [first.text]
    assert len(loop.server.requests) == 1


def test_a_request_that_is_repeated_is_answered_once(loop: Loop) -> None:
    for _ in range(3):
        loop.chat.append(HELLO, id="request-17")
        assert loop.complete().text == "seen 1 messages; last: hello"
    assert len(loop.server.requests) == 1


def test_an_empty_chat_has_nothing_to_answer(loop: Loop) -> None:
    with pytest.raises(ValueError, match="append the user's message first"):
        loop.complete()


def test_instructions_alone_are_nothing_to_answer(loop: Loop) -> None:
    loop.chat.append(
        {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."}
    )
    with pytest.raises(ValueError, match="append the user's message first"):
        loop.complete()
    assert loop.server.requests == []


def test_an_older_request_that_is_repeated_gets_its_own_answer(loop: Loop) -> None:
    asked = loop.chat.append(HELLO, id="request-17")
    first = loop.complete()
    loop.chat.append({"role": "user", "content": "and another thing"}, id="request-18")
    loop.complete()
    assert loop.chat.append(HELLO, id="request-17").last == asked.last
    entry = loop.chat.answer(asked.last)
    assert entry is not None
    assert entry.message == first.messages[-1]


@of_openai
def test_the_window_is_what_the_model_is_shown_with_the_system_prompt(loop: Loop) -> None:
    for number in range(30):
        loop.chat.append(
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": "yes"},
        )
    loop.chat.append(HELLO)
    loop.complete(system="Be brief.", window=5, counter=lambda message: 1)
    assert loop.shown() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "question 29"},
        {"role": "assistant", "content": "yes"},
        HELLO,
    ]


@of_openai
def test_all_of_the_chat_is_shown_if_no_window_is_given_mended_if_need_be(loop: Loop) -> None:
    for number in range(300):
        loop.chat.append({"role": "user", "content": f"question {number}"})
    if loop.api == "chat":
        calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
        loop.chat.append({"role": "assistant", "content": None, "tool_calls": calls})
    else:
        loop.chat.append(
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"}
        )
    loop.chat.append(HELLO)
    assert loop.complete(system="Be brief.").text.startswith("seen 304 messages")


@of_openai
def test_other_options_go_to_the_sdk(loop: Loop) -> None:
    loop.chat.append(HELLO)
    loop.complete(temperature=0.5, extra_body={"seed": 7})
    body = loop.server.requests[-1]["body"]
    assert (body["temperature"], body["seed"]) == (0.5, 7)


@pytest.mark.parametrize(
    "reply", [Reply("half", finish="length"), Reply(None, reasoning=True, finish="length")]
)
@of_openai
def test_an_answer_that_ran_out_of_tokens_is_an_answer_and_says_so(
    reply: Reply, loop: Loop
) -> None:
    loop.server.say(reply)
    loop.chat.append(HELLO)
    answer = loop.complete()
    assert answer.text == (reply.text or "")
    assert answer.meta["finish"] in ("length", "max_output_tokens")
    loop.chat.append(HELLO)
    loop.complete()


def test_reasoning_is_sent_back_with_what_followed_from_it(
    server: ModelServer, chat: holdfast.Conversation
) -> None:
    server.say(
        Reply(calls=[Call("add", {"a": 1, "b": 2})], reasoning=True), Reply("three", reasoning=True)
    )
    chat.append(HELLO)
    with openai.OpenAI(**settings(server)) as client:
        complete(client, chat, model="any", api="responses", tools=[add])
        chat.append(HELLO)
        complete(client, chat, model="any", api="responses", tools=[add])
    kinds = [item.get("type", item.get("role")) for item in server.shown()[-1]]
    assert kinds == [
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
        "user",
    ]


# -- errors and retries ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 429, 500])
@pytest.mark.parametrize("streamed", [False, True])
@of_openai
def test_errors_of_the_sdk_come_through_and_nothing_is_stored(
    status: int, streamed: bool, loop: Loop
) -> None:
    loop.chat.append(HELLO)
    version = loop.chat.version()
    loop.server.say(status)
    with pytest.raises(openai.APIStatusError) as raised:
        loop.pieces() if streamed else loop.complete()
    assert raised.value.status_code == status
    assert loop.chat.version() == version
    assert loop.complete().text == "seen 1 messages; last: hello"


def test_a_failed_response_is_no_answer(server: ModelServer, chat: holdfast.Conversation) -> None:
    server.say(Reply(finish="failed"), Reply(finish="failed"))
    chat.append(HELLO)
    with openai.OpenAI(**settings(server)) as client:
        with pytest.raises(NoAnswer, match="server_error"):
            complete(client, chat, model="any", api="responses")
        with pytest.raises(NoAnswer, match="server_error"):
            list(complete(client, chat, model="any", api="responses", stream=True))
        assert chat.messages() == [HELLO]
        assert (
            complete(client, chat, model="any", api="responses").text
            == "seen 1 messages; last: hello"
        )


def test_a_rewound_answer_is_asked_for_anew_even_if_it_comes_out_the_same(loop: Loop) -> None:
    version = loop.chat.append(HELLO).last
    for answer in ("yes", "no", "yes", "yes"):
        loop.server.say(answer)
        assert loop.complete().text == answer
        assert loop.chat.count() == 2
        loop.chat.rewind(version=version)


def test_of_two_that_answer_at_once_the_first_one_counts(loop: Loop) -> None:
    loop.chat.append(HELLO)
    hold = loop.server.hold()
    answers: list[TurnAnswer] = []
    slow = threading.Thread(target=lambda: answers.append(loop.complete()))
    slow.start()
    hold.wait()
    loop.server.say("the quick one's answer")
    quick = loop.complete()
    hold.release()
    slow.join()
    assert answers == [quick]
    assert loop.chat.messages() == [HELLO, *quick.messages]
    assert len(loop.server.requests) == 2


def test_a_message_that_came_while_the_model_was_answering_is_answered_next(loop: Loop) -> None:
    loop.chat.append(HELLO)
    hold = loop.server.hold()
    slow = threading.Thread(target=loop.complete)
    slow.start()
    hold.wait()
    loop.chat.append({"role": "user", "content": "and another thing"})
    hold.release()
    slow.join()
    assert loop.complete().text.endswith("last: and another thing")


# -- wrong use -------------------------------------------------------------------------------------


def test_client_and_conversation_are_of_the_same_kind(chat: holdfast.Conversation) -> None:
    with pytest.raises(TypeError, match=r"AsyncOpenAI for one of store\.aio"):
        complete(openai.AsyncOpenAI(api_key="none"), chat, model="any")  # type: ignore[call-overload]
    with holdfast.open("memory://") as store:
        with pytest.raises(TypeError, match=r"AsyncOpenAI for one of store\.aio"):
            complete(openai.OpenAI(api_key="none"), store.aio.conversation("chat"), model="any")  # type: ignore[call-overload]


def test_wrong_arguments_say_what_to_pass(chat: holdfast.Conversation) -> None:
    with openai.OpenAI(api_key="none") as client:
        wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
            (
                chat,
                client,
                {},
                r"chat must be a conversation, like store.conversation\('support-42'\), got OpenAI",
            ),
            (client, "support-42", {}, "got str"),
            ("gpt-5", chat, {}, r"client must be an OpenAI\(\) or AsyncOpenAI\(\), got str"),
            (client, chat, {"window": "8000"}, "window must be an integer >= 1, got str"),
        ]
        for first, second, options, problem in wrong:
            with pytest.raises(TypeError, match=problem):
                complete(first, second, model="any", **options)
        with pytest.raises(ValueError, match="window must be an integer >= 1"):
            complete(client, chat, model="any", window=0)


@pytest.mark.parametrize(
    "option",
    [
        {"messages": []},
        {"input": []},
        {"previous_response_id": "x"},
        {"conversation": "x"},
        {"n": 2},
    ],
)
@of_openai
def test_options_that_contradict_the_chat_are_refused(option: dict[str, Any], loop: Loop) -> None:
    loop.chat.append(HELLO)
    with pytest.raises(TypeError, match="is not accepted"):
        loop.complete(**option)
    assert loop.server.requests == []


def test_an_unknown_api_is_refused(server: ModelServer, chat: holdfast.Conversation) -> None:
    with (
        openai.OpenAI(**settings(server)) as client,
        pytest.raises(ValueError, match="'chat' or 'responses'"),
    ):
        complete(client, chat, model="any", api="completions")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("module", "package"), [("openai", "openai"), ("openai_agents", "openai-agents")]
)
def test_a_missing_package_says_what_to_install(module: str, package: str) -> None:
    hidden = {"openai": "openai", "openai_agents": "agents"}[module]
    code = f"import sys; sys.modules[{hidden!r}] = None; import holdfast.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ImportError: holdfast.integrations.{module} needs" in done.stderr
    assert f"pip install {package}\n" in done.stderr
