"""Python functions as a model's tools: derive their schemas, and run the model's calls."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, get_type_hints

import msgspec

from ... import Step
from .wire import Dialect, Message, ToolCall

logger = logging.getLogger("holdfast")

DEFINITIONS = "#/$defs/"
BYTES = (bytes, bytearray, memoryview)
Function = Callable[..., Any]
Decoder = Callable[[str], Message]

_running: ContextVar[str] = ContextVar("holdfast tool call")


class BadToolCall(Exception):
    """The model made an invalid call. The message is sent to the model."""


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a tool must be awaited. A tool may be a step of a task."""
    return (
        function.is_async if isinstance(function, Step) else inspect.iscoroutinefunction(function)
    )


class Toolbox:
    """The tools of one completion: functions, and ready-made schemas."""

    def __init__(
        self,
        tools: Iterable[Function | Message],
        functions: Mapping[str, Function] | None,
        dialect: Dialect,
    ) -> None:
        if isinstance(tools, Mapping | str) or not isinstance(tools, Iterable):
            raise TypeError(
                f"tools must be a list of functions and schemas, got {type(tools).__name__}"
            )
        if not isinstance(functions, Mapping | None):
            raise TypeError(
                f"functions must be a dict of functions by name, got {type(functions).__name__}"
            )
        self.schemas: list[Message] = []
        self._offered: set[str] = set()
        self._functions: dict[str, tuple[Function, Decoder]] = {}
        for tool in tools:
            if isinstance(tool, Mapping):
                self._add_schema((tool.get("function") or tool).get("name"), dict(tool))
            else:
                self._add_function(tool, dialect)
        for name, function in (functions or {}).items():
            if name not in self._offered or name in self._functions:
                raise ValueError(f"functions has {name!r}, but tools has no schema of that name")
            self._functions[name] = (function, _signature_decoder(function))

    def _add_function(self, function: Function, dialect: Dialect) -> None:
        name = getattr(function, "__name__", None)
        if name is None or not callable(function):
            raise TypeError(
                f"a tool must be a named function or a schema dict, got {type(function).__name__}"
            )
        shape = _arguments_struct(function, name)
        try:
            [schema], parts = msgspec.json.schema_components(
                [shape], ref_template=DEFINITIONS + "{name}"
            )
        except TypeError as error:
            raise TypeError(
                f"a parameter of {name}() has an unsupported type ({error}); "
                "pass the schema in tools= and the function in functions="
            ) from error
        parameters = parts.pop(schema["$ref"].removeprefix(DEFINITIONS))
        parameters.pop("title", None)
        if parts:
            parameters["$defs"] = parts
        self._add_schema(name, dialect.function(name, inspect.getdoc(function) or "", parameters))
        self._functions[name] = (function, _struct_decoder(shape))

    def _add_schema(self, name: str | None, schema: Message) -> None:
        self.schemas.append(schema)
        if name is None:
            return  # a built-in tool of the provider
        if name in self._offered:
            raise ValueError(f"two tools are named {name!r}")
        self._offered.add(name)

    @property
    def is_async(self) -> bool:
        return any(is_async(function) for function, _ in self._functions.values())

    def has(self, call: ToolCall) -> bool:
        """Return whether we can answer a call: its function is here, or the tool is unknown."""
        return call.arguments is not None and (
            call.name in self._functions or call.name not in self._offered
        )

    def prepare(self, call: ToolCall) -> tuple[Function, Message]:
        """Return the function of a call and its arguments, or raise `BadToolCall`."""
        if call.name not in self._functions:
            raise BadToolCall(f"error: no tool is named {call.name!r}")
        function, decode = self._functions[call.name]
        try:
            return function, decode(call.arguments or "{}")
        except (ValueError, TypeError) as error:
            raise BadToolCall(f"error: wrong arguments: {error}") from None


def _signature_decoder(function: Function) -> Decoder:
    """Return a decoder for a function with a ready-made schema.

    It accepts what the function takes.
    """
    signature = inspect.signature(function)

    def decode(text: str) -> Message:
        arguments: Message = json.loads(text)
        signature.bind(**arguments)
        return arguments

    return decode


def _struct_decoder(shape: type[msgspec.Struct]) -> Decoder:
    """Return a decoder that converts JSON to the declared parameter types."""
    decoder = msgspec.json.Decoder(shape)

    def decode(text: str) -> Message:
        decoded = decoder.decode(text)
        return {name: getattr(decoded, name) for name in shape.__struct_fields__}

    return decode


def _arguments_struct(function: Function, name: str) -> type[msgspec.Struct]:
    """Build a struct with a field per parameter, for the schema and to check arguments."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"{name}() must have only named parameters to be a tool, got {parameter}"
            )
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name} of {name}() must have a type annotation")
        field: tuple[Any, ...] = (parameter.name, hints[parameter.name])
        if parameter.default is not parameter.empty:
            field += (_default(parameter.default),)
        fields.append(field)
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    """Return a field default; simple ones appear in the schema."""
    return (
        value
        if isinstance(value, str | int | float | None)
        else msgspec.field(default_factory=lambda: value)
    )


def call_id() -> str:
    """Return the id of the tool call that `complete` is running.

    It stays the same if the call runs again after a crash, so use it as an idempotency key. It is
    as unique as the provider makes it. Raises RuntimeError outside a tool.
    """
    try:
        return _running.get()
    except LookupError:
        raise RuntimeError("call_id() works only inside a tool that complete() runs") from None


def run(id: str, function: Function, arguments: Message) -> Any:
    """Run a tool function with its call id set."""
    token = _running.set(id)
    try:
        return function(**arguments)
    finally:
        _running.reset(token)


async def run_async(id: str, function: Function, arguments: Message) -> Any:
    """Await an async tool function with its call id set."""
    token = _running.set(id)
    try:
        return await function(**arguments)
    finally:
        _running.reset(token)


def as_text(name: str, value: Any) -> str:
    """Convert a tool's result for the model: text as it is, anything else as JSON.

    The tool has already run, so a value without a JSON form is not an error: that would run the
    call again. Instead, the model learns that the result can't be shown.
    """
    if inspect.iscoroutine(value):
        value.close()  # it has not started
        raise TypeError(f"{name}() returned a coroutine: declare it with async def")
    try:
        text = value if isinstance(value, str) else _as_json(value)
        text.encode()
    except Exception:  # a model_dump() can raise anything
        kind = type(value).__name__
        logger.warning(
            "tool %s has run, but its result (%s) can't be shown to the model", name, kind
        )
        return f"{name} has run; its result ({kind}) can't be shown"
    return text


def _as_json(value: Any) -> str:
    # Keep bytes and NaN, so that the JSON encoder refuses them instead of writing base64 and null.
    plain = msgspec.to_builtins(value, builtin_types=BYTES, str_keys=True, enc_hook=_from_pydantic)
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _from_pydantic(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__}")
