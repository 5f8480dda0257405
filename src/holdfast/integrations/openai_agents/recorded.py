"""What a run records: model responses and tool outputs as plain JSON values, and back.

A streamed response is recorded without its pieces. A later run streams it again, with each text as
one piece.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, get_type_hints

from agents import FunctionTool, ToolOutputFileContent, ToolOutputImage, ToolOutputText, Usage
from agents.items import ModelResponse, TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from pydantic import TypeAdapter

_RESPONSE: Final = TypeAdapter(ModelResponse)
_STRUCTURED: Final[TypeAdapter[Any]] = TypeAdapter(
    ToolOutputText | ToolOutputImage | ToolOutputFileContent
)
_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(Any)
_PLAIN: Final = (str, int, float, bool, type(None))


def dump_response(response: ModelResponse) -> Any:
    """Return a model response as plain JSON values."""
    return _RESPONSE.dump_python(response, mode="json", exclude_unset=True)


def load_response(recorded: Any) -> ModelResponse:
    """Return a recorded model response."""
    return _RESPONSE.validate_python(recorded)


def to_usage(usage: ResponseUsage | None) -> Usage:
    """Return the usage of a streamed response as the SDK counts it."""
    if usage is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens=usage.output_tokens,
        output_tokens_details=usage.output_tokens_details,
        total_tokens=usage.total_tokens,
    )


def _to_response(recorded: ModelResponse) -> Response:
    """Return a recorded response in the form in which a stream ends."""
    used = recorded.usage
    return Response(
        id=recorded.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=recorded.output,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=used.input_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens=used.output_tokens,
            output_tokens_details=used.output_tokens_details,
            total_tokens=used.total_tokens,
        ),
    )


def replay_stream(recorded: ModelResponse) -> Iterator[TResponseStreamEvent]:
    """Yield the events of a recorded response: each item, its text as one piece, and the end."""
    number = 0
    for index, item in enumerate(recorded.output):
        yield ResponseOutputItemAddedEvent(
            item=item,
            output_index=index,
            sequence_number=(number := number + 1),
            type="response.output_item.added",
        )
        if isinstance(item, ResponseOutputMessage):
            for part, content in enumerate(item.content):
                if isinstance(content, ResponseOutputText):
                    yield ResponseTextDeltaEvent(
                        content_index=part,
                        delta=content.text,
                        item_id=item.id,
                        logprobs=[],
                        output_index=index,
                        sequence_number=(number := number + 1),
                        type="response.output_text.delta",
                    )
        elif isinstance(item, ResponseFunctionToolCall):
            yield ResponseFunctionCallArgumentsDeltaEvent(
                delta=item.arguments,
                item_id=item.id or "",
                output_index=index,
                sequence_number=(number := number + 1),
                type="response.function_call_arguments.delta",
            )
        yield ResponseOutputItemDoneEvent(
            item=item,
            output_index=index,
            sequence_number=(number := number + 1),
            type="response.output_item.done",
        )
    yield ResponseCompletedEvent(
        response=_to_response(recorded), sequence_number=number + 1, type="response.completed"
    )


def dump_output(tool: FunctionTool, output: Any) -> dict[str, Any]:
    """Return what a tool returned as plain JSON values, with how to read it back.

    A value that is neither plain nor of the declared type is recorded as the text that the model
    would see.
    """
    if isinstance(output, _PLAIN):
        return {"plain": output}
    if _is_structured(output):
        many = output if isinstance(output, list) else [output]
        parts = [_STRUCTURED.dump_python(part, mode="json", exclude_none=True) for part in many]
        return {"structured": parts, "many": isinstance(output, list)}
    if isinstance(output, list | dict):
        try:
            dumped = _ANYTHING.dump_python(output, mode="json")
        except ValueError:
            return {"plain": str(output)}
        if dumped == output:
            return {"plain": dumped}
    if (declared := _declared_type(tool)) is not None:
        try:
            return {"typed": declared.dump_python(output, mode="json", warnings="error")}
        except ValueError:
            pass
    return {"plain": str(output)}


def load_output(tool: FunctionTool, recorded: dict[str, Any]) -> Any:
    """Return what a tool returned."""
    if "structured" in recorded:
        parts = [_STRUCTURED.validate_python(part) for part in recorded["structured"]]
        return parts if recorded["many"] else parts[0]
    if "typed" in recorded and (declared := _declared_type(tool)) is not None:
        return declared.validate_python(recorded["typed"])
    return recorded.get("plain", recorded.get("typed"))


def _is_structured(output: Any) -> bool:
    kinds = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
    if isinstance(output, list):
        return bool(output) and all(isinstance(part, kinds) for part in output)
    return isinstance(output, kinds)


def _declared_type(tool: FunctionTool) -> TypeAdapter[Any] | None:
    """Return the type that a tool's function is annotated to return; None if there is none."""
    try:
        function = inspect.unwrap(tool.__wrapped__)
        declared = get_type_hints(function).get("return")
        return None if declared in (None, Any, str) else TypeAdapter(declared)
    except Exception:  # no function, or annotations that are not types
        return None
