"""Python functions as tools of a model: what is offered, and running what it calls."""

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


class Mistaken(Exception):
    """The model called wrongly; the text is for it to read."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a tool gives something to await. A tool may be a step of a task."""
    return (
        function.is_async if isinstance(function, Step) else inspect.iscoroutinefunction(function)
    )


class Toolbox:
    """The tools of one completion: functions with schemas made from their signatures, and schemas given as they are."""

    def __init__(
        self,
        tools: Iterable[Function | Message],
        functions: Mapping[str, Function] | None,
        dialect: Dialect,
    ) -> None:
        if isinstance(tools, Mapping | str) or not isinstance(tools, Iterable):
            raise TypeError(
                "tools is a list of functions and schemas, also if it is only one: tools=[look_up_order]"
            )
        if not isinstance(functions, Mapping | None):
            raise TypeError(
                "functions is a dict of the functions by the names that they have in tools="
            )
        self.schemas: list[Message] = []
        self._offered: set[str] = set()
        self._functions: dict[str, tuple[Function, Decoder]] = {}
        for tool in tools:
            if isinstance(tool, Mapping):
                self._offer((tool.get("function") or tool).get("name"), dict(tool))
            else:
                self._add(tool, dialect)
        for name, function in (functions or {}).items():
            if name not in self._offered or name in self._functions:
                raise ValueError(f"functions has {name!r}, and tools no schema of that name")
            self._functions[name] = (function, _by_signature(function))

    def _add(self, function: Function, dialect: Dialect) -> None:
        name = getattr(function, "__name__", None)
        if name is None or not callable(function):
            raise TypeError("a tool is a function with a name, or a schema as the API takes it")
        shape = _arguments_of(function, name)
        try:
            [schema], parts = msgspec.json.schema_components(
                [shape], ref_template=DEFINITIONS + "{name}"
            )
        except TypeError as error:
            raise TypeError(
                f"a parameter of {name}() has a type that is not known here ({error}); "
                "give the schema in tools= and the function in functions="
            ) from error
        parameters = parts.pop(schema["$ref"].removeprefix(DEFINITIONS))
        parameters.pop("title", None)
        if parts:
            parameters["$defs"] = parts
        self._offer(name, dialect.function(name, inspect.getdoc(function) or "", parameters))
        self._functions[name] = (function, _by_shape(shape))

    def _offer(self, name: str | None, schema: Message) -> None:
        self.schemas.append(schema)
        if name is None:
            return  # one of the provider's own tools
        if name in self._offered:
            raise ValueError(f"two tools are named {name!r}")
        self._offered.add(name)

    @property
    def is_async(self) -> bool:
        return any(is_async(function) for function, _ in self._functions.values())

    def has(self, call: ToolCall) -> bool:
        """Whether a call can be settled here: there is a function, or there is no such tool at all, which the model is told."""
        return call.arguments is not None and (
            call.name in self._functions or call.name not in self._offered
        )

    def prepare(self, call: ToolCall) -> tuple[Function, Message]:
        """The function of a call and its arguments. `Mistaken` if the model got them wrong."""
        if call.name not in self._functions:
            raise Mistaken(f"error: there is no tool named {call.name!r}")
        function, decode = self._functions[call.name]
        try:
            return function, decode(call.arguments or "{}")
        except (ValueError, TypeError) as error:
            raise Mistaken(f"error: wrong arguments: {error}") from None


def _by_signature(function: Function) -> Decoder:
    """Arguments of a function whose schema was given: any that it can be called with."""
    signature = inspect.signature(function)

    def decode(text: str) -> Message:
        arguments: Message = json.loads(text)
        signature.bind(**arguments)
        return arguments

    return decode


def _by_shape(shape: type[msgspec.Struct]) -> Decoder:
    """Arguments of the declared types; dates, dataclasses and the like are made from what they are in JSON."""
    decoder = msgspec.json.Decoder(shape)

    def decode(text: str) -> Message:
        decoded = decoder.decode(text)
        return {name: getattr(decoded, name) for name in shape.__struct_fields__}

    return decode


def _arguments_of(function: Function, name: str) -> type[msgspec.Struct]:
    """A struct with a field for each parameter: it makes the schema, and it checks what the model sends."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"the model cannot give {name}() its {parameter}: a tool has plain named parameters"
            )
        if parameter.name not in hints:
            raise TypeError(f"say what type {parameter.name} of {name}() has: the model is told so")
        field: tuple[Any, ...] = (parameter.name, hints[parameter.name])
        if parameter.default is not parameter.empty:
            field += (_default(parameter.default),)
        fields.append(field)
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: Any) -> Any:
    """A default that the model is told if it is simple, and that is the function's own object in any case."""
    return (
        value
        if isinstance(value, str | int | float | None)
        else msgspec.field(default_factory=lambda: value)
    )


def call_id() -> str:
    """In a tool that `complete` runs, the id of the call: the same one when the call is run again after a crash.

    Pass it on as an idempotency key. It is as unique as the provider makes it. Outside of such a tool, a `RuntimeError`.
    """
    try:
        return _running.get()
    except LookupError:
        raise RuntimeError(
            "call_id() is for tools while complete() runs them; no tool is run here"
        ) from None


def run(id: str, function: Function, arguments: Message) -> Any:
    """Run the function of a call."""
    token = _running.set(id)
    try:
        return function(**arguments)
    finally:
        _running.reset(token)


async def run_async(id: str, function: Function, arguments: Message) -> Any:
    """Run the async function of a call."""
    token = _running.set(id)
    try:
        return await function(**arguments)
    finally:
        _running.reset(token)


def as_text(name: str, value: Any) -> str:
    """A tool's result for the model: text as it is, anything else as JSON.

    The tool has had its effect. So what has no form in JSON is no error, which would have the call run again: the model
    is told that there is a result and that it cannot be shown.
    """
    if inspect.iscoroutine(value):
        value.close()  # nothing of it has run
        raise TypeError(f"{name}() returned a coroutine: declare it with async def")
    try:
        text = value if isinstance(value, str) else _as_json(value)
        text.encode()
    except Exception:  # a model_dump() can raise anything
        kind = type(value).__name__
        logger.warning(
            "the tool %s has run, and what it returned (%s) cannot be shown to the model",
            name,
            kind,
        )
        return f"{name} has run; what it returned ({kind}) cannot be shown"
    return text


def _as_json(value: Any) -> str:
    # Bytes and NaN stay what they are here, for the encoder to refuse: base64 and null would be something else.
    plain = msgspec.to_builtins(value, builtin_types=BYTES, str_keys=True, enc_hook=_from_pydantic)
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _from_pydantic(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__}")
