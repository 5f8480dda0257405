"""The model that the tests ask is as strict as the real one: a history that OpenAI refuses is
refused here too."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from helpers.model_server import Call, ModelServer, Reply
from helpers.paths import TESTS

USER = {"role": "user", "content": "hello"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]}
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "x"}


def post(url: str, body: Any = None) -> Any:
    with urlopen(url, data=json.dumps(body).encode()) as answer:
        return json.load(answer)


def result(id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": id, "content": "x"}


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [USER, CALLS],
        [USER, CALLS, result("a")],
        [USER, CALLS, result("a"), USER, result("b")],
        [USER, CALLS, result("a"), result("a"), result("b")],
        [USER, result("a")],
        [USER, {"role": "assistant", "content": None}],
    ],
)
def test_a_chat_that_openai_refuses_is_refused(messages: list[Any]) -> None:
    with ModelServer() as server:
        with pytest.raises(HTTPError, match="400"):
            post(f"{server.base_url}/chat/completions", {"model": "any", "messages": messages})
        assert server.shown() == [messages]


@pytest.mark.parametrize(
    "items",
    [[USER, CALL], [USER, OUTPUT, CALL], [USER, CALL, CALL, OUTPUT], [USER, CALL, OUTPUT, OUTPUT]],
)
def test_items_that_openai_refuses_are_refused(items: list[Any]) -> None:
    with ModelServer() as server, pytest.raises(HTTPError, match="400"):
        post(f"{server.base_url}/responses", {"model": "any", "input": items})


def test_reasoning_and_what_followed_from_it_are_refused_without_each_other() -> None:
    with ModelServer(Reply("yes", reasoning=True)) as server:
        url = f"{server.base_url}/responses"
        reasoning, message = post(url, {"model": "any", "input": [USER]})["output"]
        for torn in ([USER, reasoning], [USER, message], [USER, reasoning, USER, message]):
            with pytest.raises(HTTPError, match="400"):
                post(url, {"model": "any", "input": torn})
        assert (
            post(url, {"model": "any", "input": [USER, reasoning, message, USER]})["status"]
            == "completed"
        )


def test_a_call_is_held_until_it_is_released() -> None:
    with ModelServer("yes") as server:
        hold = server.hold()
        answers: list[Any] = []
        body = {"model": "any", "messages": [USER]}
        asking = threading.Thread(
            target=lambda: answers.append(post(f"{server.base_url}/chat/completions", body))
        )
        asking.start()
        hold.wait()
        assert (answers, len(server.requests)) == ([], 1)
        hold.release()
        asking.join()
        assert answers[0]["choices"][0]["message"]["content"] == "yes"


def test_it_can_live_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-W", "error", "-m", "helpers.model_server"]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            base = process.stdout.readline().strip()
            root = base.removesuffix("/v1")
            post(f"{root}/_say", [{"calls": [{"name": "f", "arguments": {"a": 1}}]}, 503])
            answer = post(f"{base}/chat/completions", {"model": "any", "messages": [USER]})
            assert answer["choices"][0]["message"]["tool_calls"][0]["function"] == {
                "name": "f",
                "arguments": '{"a": 1}',
            }
            with pytest.raises(HTTPError, match="503"):
                post(f"{base}/chat/completions", {"model": "any", "messages": [USER]})
            with urlopen(f"{root}/_log") as log:
                assert [request["body"]["messages"] for request in json.load(log)] == [
                    [USER],
                    [USER],
                ]
        finally:
            process.kill()


def test_scripted_replies_come_first_and_then_those_that_follow_from_the_request() -> None:
    with ModelServer("one", Reply(calls=[Call("f", "not json")])) as server:
        url = f"{server.base_url}/chat/completions"
        tools = [{"type": "function", "function": {"name": "f"}}]
        said = [
            post(url, {"model": "any", "messages": [USER], "tools": tools})["choices"][0]["message"]
            for _ in range(3)
        ]
        assert (said[0]["content"], said[2]["content"]) == ("one", "seen 1 messages; last: hello")
        assert said[1]["tool_calls"][0]["function"]["arguments"] == "not json"
        asking = {"role": "user", "content": 'please call f {"a": {"b": 1}} and call g {}'}
        [call] = post(url, {"model": "any", "messages": [asking], "tools": tools})["choices"][0][
            "message"
        ]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": {"b": 1}}
