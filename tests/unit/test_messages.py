"""Messages: what an object becomes when it is stored, and what each dialect means by calls, results
and answers."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from typing import Any

import msgspec
import pydantic
import pytest
from openai.lib._parsing import parse_chat_completion
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)
from openai.types.responses import (
    ParsedResponseFunctionToolCall,
    ParsedResponseOutputMessage,
    ParsedResponseOutputText,
    Response,
    ResponseFunctionToolCall,
    ResponseReasoningItem,
)
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from holdfast.conversations.messages import (
    INTERRUPTED,
    as_message,
    call_ids,
    drop_results,
    find_tool_name,
    is_answer,
    is_instruction,
    is_reasoning,
    keep_results,
    new_missing_result,
    opens_exchange,
    result_as_text,
    result_ids,
)

Message = dict[str, Any]

CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "look", "arguments": '{"q":  "a"}'},
        },
        {"id": "call_2", "type": "custom", "custom": {"name": "run", "input": "ls"}},
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call_1", "content": "17"}
OLD_CALL: Message = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "look", "arguments": "{}"},
}
OLD_RESULT: Message = {"role": "function", "name": "look", "content": "17"}
RESPONSES: Message = {
    "role": "tool",
    "content": "17\n\n18",
    "tool_responses": [
        {"tool_call_id": "call_1", "role": "tool", "content": "17"},
        {"tool_call_id": "call_2", "role": "tool", "content": "18"},
    ],
}
ITEM: Message = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT: Message = {"type": "function_call_output", "call_id": "call_1", "output": "17"}
USE: Message = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": "a"}},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    ],
}
BLOCKS: Message = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "17"},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "18"}],
        },
        {"type": "text", "text": "and hurry"},
    ],
}


# What an object becomes


def test_a_dict_stays_as_it_is() -> None:
    assert as_message(CALL) == CALL
    assert as_message(OrderedDict(CALL)) == CALL
    assert type(as_message(OrderedDict(CALL))) is dict


def test_an_openai_message_keeps_what_was_set_and_nothing_else() -> None:
    wire = {
        "role": "assistant",
        "content": None,
        "tool_calls": CALL["tool_calls"][:1],
        "annotations": [],
    }
    message = ChatCompletionMessage.model_validate(wire)
    assert as_message(message) == wire
    assert "refusal" not in as_message(message)


def test_openai_objects_inside_a_dict_become_plain() -> None:
    call = ChatCompletionMessageFunctionToolCall.model_validate(CALL["tool_calls"][0])
    assert as_message({**CALL, "tool_calls": [call]}) == {
        **CALL,
        "tool_calls": CALL["tool_calls"][:1],
    }


class Weather(pydantic.BaseModel):
    degrees: int


def test_a_parsed_completion_message_is_stored_without_what_the_sdk_parsed() -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"q": "a"}'},
    }
    wire = {"role": "assistant", "content": '{"degrees": 17}', "tool_calls": [call]}
    completion = ChatCompletion.model_validate(
        {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": wire}],
        }
    )
    tool = {"type": "function", "function": {"name": "look", "strict": True, "parameters": {}}}
    parsed = parse_chat_completion(
        response_format=Weather,
        input_tools=[tool],  # type: ignore[list-item]
        chat_completion=completion,
    )
    message = parsed.choices[0].message
    assert message.parsed == Weather(degrees=17)
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.parsed_arguments == {"q": "a"}
    stored = as_message(message)
    assert stored["content"] == wire["content"]
    assert stored["tool_calls"] == [call]
    assert "parsed" not in stored
    assert as_message({"role": "assistant", "tool_calls": message.tool_calls})["tool_calls"] == [
        call
    ]


def test_parsed_items_are_stored_without_what_the_sdk_parsed() -> None:
    item = ParsedResponseFunctionToolCall(**ITEM, parsed_arguments={})
    assert as_message(item) == ITEM
    text: Any = ParsedResponseOutputText(
        type="output_text", text="17", annotations=[], parsed=Weather(degrees=17)
    )
    message: Any = ParsedResponseOutputMessage(
        id="msg_1", type="message", role="assistant", status="completed", content=[text]
    )
    assert as_message(message)["content"] == [
        {"type": "output_text", "text": "17", "annotations": []}
    ]


def test_items_of_a_response_are_stored_as_they_can_be_sent_back() -> None:
    assert as_message(ResponseFunctionToolCall.model_validate(ITEM)) == ITEM
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    assert as_message(ResponseReasoningItem.model_validate(reasoning)) == reasoning


@dataclasses.dataclass
class Said:
    role: str
    content: str


class Told(msgspec.Struct):
    role: str
    content: str


def test_dataclasses_structs_and_models_become_dicts() -> None:
    class Model(pydantic.BaseModel):
        role: str
        content: str
        name: str | None = None

    wanted = {"role": "user", "content": "hi"}
    for kind in (Said, Told, Model):
        assert as_message(kind(role="user", content="hi")) == wanted


@pytest.mark.parametrize("value", ["hi", ["hi"], [CALL], None, 7, {}, Said, object(), b"{}"])
def test_what_is_no_message_is_refused_with_what_to_pass(value: object) -> None:
    with pytest.raises(TypeError, match="a message must be a dict such as"):
        as_message(value)


def test_a_whole_completion_or_response_is_refused_with_what_to_pass() -> None:
    completion = ChatCompletion.construct(object="chat.completion", choices=[])
    with pytest.raises(TypeError, match=r"choices\[0\].message"):
        as_message(completion)
    with pytest.raises(TypeError, match=r"\*response.output"):
        as_message(Response.construct(object="response", output=[]))


# Calls and results


@pytest.mark.parametrize(
    ("message", "called", "answered"),
    [
        (CALL, ["call_1", "call_2"], []),
        (RESULT, [], ["call_1"]),
        (OLD_CALL, ["look"], []),
        (OLD_RESULT, [], ["look"]),
        (RESPONSES, [], ["call_1", "call_2"]),
        (ITEM, ["call_1"], []),
        (OUTPUT, [], ["call_1"]),
        (USE, ["toolu_1"], []),
        (BLOCKS, [], ["toolu_1", "toolu_2"]),
        ({"type": "web_search_call", "id": "ws_1", "status": "completed"}, [], []),
        (
            {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}},
            [],
            [],
        ),
        ({"type": "tool_search_output", "call_id": "call_1", "tools": []}, [], ["call_1"]),
        ({"type": "local_shell_call_output", "id": "call_1", "output": "{}"}, [], ["call_1"]),
        ({"type": "mcp_approval_request", "id": "r_1"}, [], []),
        ({"type": "reasoning", "id": "rs_1", "summary": []}, [], []),
        ({"role": "assistant", "content": "hi", "tool_calls": None, "function_call": None}, [], []),
        ({"role": "user", "content": "hi"}, [], []),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "look"}}]}, [""], []),
        ({"role": "tool", "content": "17"}, [], [""]),
    ],
)
def test_what_a_message_calls_and_answers(
    message: Message, called: list[str], answered: list[str]
) -> None:
    assert call_ids(message) == called
    assert result_ids(message) == answered


@pytest.mark.parametrize(
    "odd",
    [
        {"tool_calls": "x"},
        {"tool_calls": [1]},
        {"content": 7},
        {"content": [1]},
        {"type": 5},
        {"type": ["a"]},
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool", None, 7])
def test_odd_messages_are_no_trouble(odd: Message, role: object) -> None:
    message = {**odd, "role": role}
    (
        call_ids(message),
        result_ids(message),
        is_answer(message),
        opens_exchange(message),
        is_reasoning(message),
    )


def test_only_a_question_opens_an_exchange() -> None:
    assert opens_exchange({"role": "user", "content": "hi"})
    assert opens_exchange(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    )
    assert not opens_exchange(BLOCKS)
    assert not opens_exchange(RESULT)
    assert not opens_exchange({"role": "system", "content": "be kind"})


def test_system_and_developer_messages_are_instructions() -> None:
    assert is_instruction({"role": "system", "content": "be kind"})
    assert is_instruction({"role": "developer", "content": "be kind"})
    assert not is_instruction({"role": "user", "content": "be kind"})


def test_an_answer_is_what_the_assistant_says_without_calling() -> None:
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi"}],
    }
    assert is_answer({"role": "assistant", "content": "hi"})
    assert is_answer(item)
    assert not is_answer({**item, "phase": "commentary"})
    for message in (CALL, OLD_CALL, USE, RESULT, ITEM, {"role": "user", "content": "hi"}):
        assert not is_answer(message)


def test_tools_are_named() -> None:
    assert [find_tool_name(CALL, "call_1"), find_tool_name(CALL, "call_2")] == ["look", "run"]
    assert [
        find_tool_name(OLD_CALL, "look"),
        find_tool_name(USE, "toolu_1"),
        find_tool_name(ITEM, "call_1"),
    ] == ["look"] * 3
    assert find_tool_name({"type": "shell_call", "call_id": "x"}, "x") == "shell_call"


# A result for a call that has none


@pytest.mark.parametrize(
    ("call", "name"),
    [(CALL, "call_1"), (CALL, "call_2"), (OLD_CALL, "look"), (ITEM, "call_1"), (USE, "toolu_1")],
)
def test_a_missing_result_answers_its_call_and_says_that_it_was_interrupted(
    call: Message, name: str
) -> None:
    result = new_missing_result(call, name)
    assert result_ids(result) == [name]
    assert INTERRUPTED in json.dumps(result)


@pytest.mark.parametrize(
    "kind",
    ["function", "custom_tool", "computer", "local_shell", "shell", "apply_patch", "tool_search"],
)
def test_a_missing_output_has_the_shape_that_the_api_wants_for_that_kind_of_call(kind: str) -> None:
    output = new_missing_result({"type": f"{kind}_call", "call_id": "call_1"}, "call_1")
    assert result_ids(output) == ["call_1"]
    accepted: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseInputItemParam)
    checked = accepted.validate_python(output, strict=True)
    if kind == "shell":
        assert list(checked["output"]) == output["output"]  # checked only when it is read


# Results without calls


@pytest.mark.parametrize("message", [RESULT, OLD_RESULT, RESPONSES, OUTPUT, BLOCKS])
def test_a_result_told_as_text_is_a_question_with_the_same_content(message: Message) -> None:
    text = result_as_text(message)
    assert opens_exchange(text)
    assert "17" in json.dumps(text)
    assert ("18" in json.dumps(text)) == ("18" in json.dumps(message))


def test_parts_of_a_result_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    assert result_as_text({**OUTPUT, "output": [image]})["content"][1] == image
    shot = {"type": "computer_screenshot", "image_url": image["image_url"]}
    assert (
        result_as_text({"type": "computer_call_output", "call_id": "c", "output": shot})["content"][
            1
        ]
        == image
    )
    told = result_as_text(
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "17", "stderr": ""}]}
    )
    assert '"stdout":"17"' in told["content"]
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AA=="},
    }
    block = {"type": "tool_result", "tool_use_id": "t", "content": [picture]}
    assert result_as_text({"role": "user", "content": [block]})["content"][1] == picture


def test_results_are_taken_out_of_a_message_and_the_rest_is_left() -> None:
    assert result_ids(keep_results(RESPONSES, {1})) == ["call_2"]
    assert keep_results(RESPONSES, {1})["content"] == "18"
    assert drop_results(RESPONSES, {1}) == keep_results(RESPONSES, {0})
    assert drop_results(RESPONSES, {0, 1}) is None
    assert keep_results(BLOCKS, {0})["content"] == BLOCKS["content"][:1]
    assert drop_results(BLOCKS, {0, 1}) == {"role": "user", "content": BLOCKS["content"][2:]}
    assert drop_results(RESULT, {0}) is None
    assert keep_results(RESULT, {0}) == RESULT
