"""The `@holdfast.step` decorator and `Step`: functions whose calls inside a task are recorded."""

from __future__ import annotations

import copy
import functools
import types
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from ...errors import NoTask, NotSerializable
from ...log.codec import check_declared
from ...log.ids import check_id
from ...log.validation import check_seconds, describe_value
from ..control.value_schema import schema_of
from ..run.frames import check_not_left, current_frame
from .identity import code_digest
from .renames import function_identity, registered_functions
from .usage import check_price

if TYPE_CHECKING:
    import inspect

    from ...conversations.base import ConversationBase as Conversation

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])

KEY_PARAMETER = "idempotency_key"
UNRESOLVED: Any = object()


class StepOptions(msgspec.Struct, frozen=True):
    """The options of a step."""

    key: Callable[..., object] | None = None
    once: bool = False
    check: Callable[..., Any] | None = None
    max_attempts: int = 1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    timeout: float | None = None
    returns: Any = UNRESOLVED
    kind: str = "tool"
    drift: str = "refuse"
    price: tuple[float, float] | None = None
    check_after: float | None = None
    renamed_from: tuple[str, ...] | None = None
    expect: float | None = None
    store_arguments: bool = True

    @property
    def mode(self) -> Literal["", "once", "check"]:
        """How the step avoids running twice; "" if it may run twice."""
        return "check" if self.check is not None else "once" if self.once else ""


class Step(Generic[P, R]):
    """A function that is a durable step inside a task, and an ordinary function outside of one.

    `once` and `check` functions raise `NoTask` outside a task: nothing would stop them from running
    twice.
    """

    def __init__(self, fn: Callable[P, R], options: StepOptions) -> None:
        import inspect

        self.fn, self.options, self.mode = fn, options, options.mode
        self.eager = bool(options.mode) or options.kind == "child"
        """Whether its start is durable before it runs."""
        self.key: str | None = None
        self.conversation: Conversation | None = None
        """The conversation of a `task.reply`, whose message is the result."""
        self.instance: tuple[object, ...] = ()
        self.renamed_from = options.renamed_from
        self.expect = options.expect
        """How many seconds it is expected to run; None if it doesn't say."""
        self.mapped = False
        """Whether it is an item of a `map` that its scope's own code called, not another thread."""
        self.function = function_identity(fn)
        self.streams = stream_kind(fn)
        """The kind of generator function that it is; "" for other functions."""
        self.is_async = is_async(fn) or self.streams == "async"
        self.is_model = options.kind == "model"
        functools.update_wrapper(self, fn, updated=())
        _copy_function_attributes(self, fn)
        try:
            self.signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):  # some builtins have none
            self.signature = None
        parameters = self.signature.parameters if self.signature else {}
        self._positional = _positional_parameters(self.signature)
        wants = parameters.get(KEY_PARAMETER)
        self.takes_key = wants is not None and wants.default is not inspect.Parameter.empty
        model = parameters.get("model")
        self.default_model = (
            model.default if model is not None and isinstance(model.default, str) else None
        )
        self.code = code_digest(fn)
        self.bound_values = _bound_values(fn)
        """The method's object and the arguments of a partial; they count as arguments."""
        self.chunk: Any = Any
        self._returns = options.returns
        self._schema: Any = UNRESOLVED
        if self.streams and self._returns is not UNRESOLVED:
            self._returns = self._set_chunk_type(self._returns)
        _check_options(self)
        try:
            self.returns  # noqa: B018  raises for a type that cannot be stored, before any work
        except NameError:
            pass  # a class that is defined later; resolved at the first call

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    @property
    def __signature__(self) -> inspect.Signature | None:
        """The parameters to pass; those of a method are without `self`."""
        if self.signature is None or not self.instance:
            return self.signature
        parameters = list(self.signature.parameters.values())[len(self.instance) :]
        return self.signature.replace(parameters=parameters)

    @property
    def returns(self) -> Any:
        """The type of the result: declared, or else annotated, or else Any (plain JSON values)."""
        if self._returns is UNRESOLVED:
            declared = return_annotation(self.fn)
            if self.streams:
                declared = self._set_chunk_type(_chunk_type(declared))
            _check_storable(self.name, declared)
            self._returns = declared
        return self._returns

    @property
    def result_schema(self) -> Any:
        """The JSON Schema of the result; None if its type has none."""
        if self._schema is UNRESOLVED:
            self._schema = schema_of(self.returns)
        return self._schema

    def _set_chunk_type(self, chunk: Any) -> Any:
        self.chunk = chunk
        return Any if chunk is Any else list[chunk]

    def bind_arguments(
        self, args: tuple[object, ...], kwargs: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the arguments by name; raise TypeError if the function doesn't accept them."""
        if self._positional is not None:
            names, required = self._positional
            if not kwargs and required <= len(args) <= len(names):
                return dict(zip(names, args, strict=False))
        if self.signature is None:
            return {"args": args, **kwargs}
        return self.signature.bind(*args, **kwargs).arguments

    def using(
        self,
        *,
        key: object = UNRESOLVED,
        renamed_from: str | Sequence[str] = UNRESOLVED,
        expect: float | timedelta | None = UNRESOLVED,
    ) -> Step[P, R]:
        """Return the step with another option for one call: `pay.using(key=order.id)(order)`.

        `renamed_from` is for names given to the task:
        `task.step("pay Ann", pay.using(renamed_from="pay"), 120)`. `expect` is that of
        `holdfast.step`.
        """
        other = copy.copy(self)
        if key is not UNRESOLVED:
            other.key = to_key(key)
        if renamed_from is not UNRESOLVED:
            other.renamed_from = check_names(renamed_from)
        if expect is not UNRESOLVED:
            other.expect = check_expect(expect)
        return other

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        frame = current_frame()
        if frame is None:
            check_not_left()
            if self.options.mode:
                raise NoTask(
                    f"step {self.name!r} must not run twice, so it must run inside a task: call it"
                    " inside `with store.task(id) as task:`; in a thread of your own, use"
                    " `task.step(name, fn, …)`"
                )
            return self.fn(*self.instance, *args, **kwargs)  # type: ignore[arg-type]  # the instance is self
        return cast("R", frame.task._call(self, frame, args, kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Step[..., R]:
        if instance is None:
            return self
        bound = copy.copy(self)
        bound.instance = (instance,)
        return bound

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"


def _check_options(step: Step[Any, Any]) -> None:
    """Raise for options that are out of range or do not work together."""
    options, name = step.options, step.name
    if step.streams and (options.max_attempts != 1 or options.timeout is not None):
        raise TypeError(
            f"{name!r} is a generator function, whose chunks are passed on as they come,"
            " so it can't have max_attempts or timeout"
        )
    if type(options.max_attempts) is not int or options.max_attempts < 1:
        raise ValueError(
            f"max_attempts must be an integer >= 1, got {describe_value(options.max_attempts)}"
        )
    if options.drift not in ("refuse", "keep", "rerun"):
        raise ValueError(f"drift must be 'refuse', 'keep' or 'rerun', got {options.drift!r}")
    for what, given in (("key", options.key), ("check", options.check)):
        if given is not None and not callable(given):
            raise TypeError(
                f"{what} must be a function of the step's arguments, got {type(given).__name__};"
                " for the key of a single call, use step.using(key=…)"
            )
    if options.check is not None and is_async(options.check) and not step.is_async:
        raise TypeError(
            f"the check of {name!r} is async and {name!r} isn't; make both async, or neither"
        )
    if options.check is not None and not _accepts_arguments_of(options.check, step):
        raise TypeError(f"the check of {name!r} must accept the same arguments as {name!r}")
    if options.check is None and options.check_after is not None:
        raise TypeError(f"{name!r} has check_after, but no check to call; pass check= too")
    if options.returns is not UNRESOLVED:
        _check_storable(name, options.returns)
    check_price(options.price)


def _check_storable(name: str, declared: Any) -> None:
    """Raise, before any side effect, if results of a declared type can never be stored."""
    try:
        check_declared(declared)
    except TypeError as error:
        raise NotSerializable(
            f"the result of {name!r}",
            f"it is declared as a type that can't be stored ({error}); return what you need of it"
            " instead, such as an id, a dict or a dataclass, and declare that: -> str, or"
            " holdfast.step(returns=str)",
        ) from None


def _accepts_arguments_of(check: Callable[..., Any], step: Step[Any, Any]) -> bool:
    """Whether a check accepts its step's arguments. Asked now, not after the first crash."""
    import inspect

    try:
        signature = inspect.signature(check)
    except (TypeError, ValueError):  # some builtins have none
        return True
    if step.signature is None:
        return True
    own = [
        each
        for each in step.signature.parameters.values()
        if each.name != KEY_PARAMETER or not step.takes_key
    ]
    required = [each for each in own if each.default is each.empty]
    return _accepts(signature, own) and _accepts(signature, required)


def _accepts(signature: inspect.Signature, parameters: list[inspect.Parameter]) -> bool:
    positional = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    keywords = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    try:
        signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    return True


def is_async(fn: object) -> bool:
    """Whether calling it returns an awaitable."""
    import inspect

    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, Step):
        return fn.is_async
    call = getattr(fn, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


def stream_kind(fn: object) -> Literal["", "plain", "async"]:
    """Return the kind of a generator function; "" for other functions."""
    import inspect

    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, Step):
        return fn.streams
    for each in (fn, getattr(fn, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(each):
            return "plain"
        if inspect.isasyncgenfunction(each):
            return "async"
    return ""


def _copy_function_attributes(step: Step[Any, Any], fn: object) -> None:
    """Give a step what `inspect` needs to treat it as the function that it wraps.

    Frameworks ask `inspect.iscoroutinefunction` whether to await a tool.
    """
    import inspect

    if inspect.isfunction(fn):
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            setattr(step, name, getattr(fn, name))


def _positional_parameters(
    signature: inspect.Signature | None,
) -> tuple[tuple[str, ...], int] | None:
    """Return the names of the parameters, and how many are required, if all are positional.

    This avoids the slow `Signature.bind`.
    """
    import inspect

    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
        return None
    return tuple(signature.parameters), sum(
        each.default is inspect.Parameter.empty for each in parameters
    )


def _bound_values(fn: Callable[..., Any]) -> tuple[object, ...]:
    import inspect

    found: list[object] = []
    while isinstance(fn, functools.partial):
        found += [fn.args, fn.keywords]
        fn = fn.func
    if inspect.ismethod(fn):
        found.append(fn.__self__)
    return tuple(found)


def return_annotation(fn: Callable[..., Any]) -> Any:
    """Return the type that a function is annotated to return; Any if there is none."""
    import inspect

    while isinstance(fn, functools.partial):
        fn = fn.func
    # The annotations of a callable object are those of its attributes.
    is_function = inspect.isroutine(fn) or inspect.isclass(fn) or hasattr(fn, "__wrapped__")
    function: Any = fn if is_function else type(fn).__call__
    try:
        function = inspect.unwrap(function)
        function = getattr(function, "__func__", function)
        # Only this annotation: others may name types that are imported for type checkers only.
        only = types.SimpleNamespace(
            __annotations__={"return": getattr(function, "__annotations__", {}).get("return", Any)}
        )
        hints: Mapping[str, Any] = get_type_hints(
            only, globalns=getattr(function, "__globals__", {})
        )
    except NameError:
        raise
    except Exception:  # annotations that are not types
        return Any
    found = hints.get("return", Any)
    return Any if isinstance(found, TypeVar) else found


def _chunk_type(declared: Any) -> Any:
    """Return the type of one chunk, given the annotation of a generator function."""
    arguments = get_args(declared)
    if (
        get_origin(declared) not in _CHUNK_TYPES
        or not arguments
        or isinstance(arguments[0], TypeVar)
    ):
        return Any
    return arguments[0]


_CHUNK_TYPES = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


def to_key(key: object) -> str:
    """Return a key as text. An integer is allowed; 7 and "7" are the same key."""
    if type(key) is int:
        key = str(key)
    if not isinstance(key, str):
        raise TypeError(f"a step's key must be text or an integer, got {type(key).__name__}")
    return check_id(str(key), "key")


def check_expect(expect: float | timedelta | None) -> float | None:
    """Return `expect` in seconds."""
    return None if expect is None else check_seconds(expect, "expect")


def check_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Check `renamed_from`, and return its names."""
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, list | tuple):
        raise TypeError(
            f"renamed_from must be a name or a list of names, got {type(names).__name__}"
        )
    return tuple(check_id(name, "a name in renamed_from") for name in given)


def to_step(fn: Callable[..., Any]) -> Step[Any, Any]:
    """Return a step for any callable. An undecorated function gets the default options."""
    if type(fn) is types.FunctionType:
        return _default_step(fn)
    if isinstance(fn, Step):
        return fn
    if not callable(fn):
        raise TypeError(
            f"fn must be a function: task.step(name, fn, *args), got {type(fn).__name__}"
        )
    try:
        hash(fn)
    except TypeError:
        return Step(fn, _DEFAULT_OPTIONS)
    return _default_step(fn)


@functools.lru_cache(256)
def _default_step(fn: Callable[..., Any]) -> Step[Any, Any]:
    return Step(fn, _DEFAULT_OPTIONS)


_DEFAULT_OPTIONS = StepOptions()
registered_steps: dict[str, str] = {}
"""The code digest of every decorated function by name, for `preview`."""


class _StepDecorator:
    def __init__(self, options: StepOptions) -> None:
        self._options = options

    def __call__(self, fn: Callable[P, R]) -> Step[P, R]:
        if isinstance(fn, Step):
            fn = fn.fn  # other options for the same function
        step = Step(fn, self._options)
        same = registered_steps.get(step.name, step.code) == step.code
        # The name no longer identifies the code: two functions share it.
        registered_steps[step.name] = step.code if same else ""
        registered_functions.add(step.function)
        return step


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    check_after: float | timedelta | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    expect: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
    renamed_from: str | Sequence[str] | None = None,
    store_arguments: bool = True,
) -> _StepDecorator: ...


@overload
def step(
    fn: Callable[P, R],
    /,
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    check_after: float | timedelta | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    expect: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
    renamed_from: str | Sequence[str] | None = None,
    store_arguments: bool = True,
) -> Step[P, R]: ...


def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    check_after: float | timedelta | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    expect: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
    renamed_from: str | Sequence[str] | None = None,
    store_arguments: bool = True,
) -> Any:
    """Make a function a durable step: inside a task it runs once, and its result is recorded.

    Outside a task it is an ordinary function, unless it has `once` or `check`.

    Args:
        fn: The function. The chunks of a generator function are passed on as they come.
        key: A function of the arguments that returns the identity of the call. This identity alone
            then distinguishes calls.
        once: Never run it again when its outcome is unknown. The step is then in doubt until a
            person resolves it (`store.resolve`).
        check: A function of the same arguments that finds out whether the step was done. It returns
            the result, or None if the step was not done.
        check_after: How long after an attempt the check may be called, in seconds or as a
            timedelta: the external service may need this time until the check can see what the
            attempt did. Default: 30 seconds if another process may have been in the middle of the
            attempt, otherwise 0. Pass 0 if the check sees it at once.
        max_attempts: The maximum number of attempts, with growing pauses.
        retry_on: The exceptions that are retried.
        timeout: The time limit of one attempt, in seconds or as a timedelta. The step then fails
            with `TimeoutError`. An async function is cancelled. A synchronous function runs in a
            thread of its own, which cannot be stopped: it is abandoned, keeps running, and its
            result is refused. A `once` or `check` step is then in doubt.
        expect: How long it is expected to run, in seconds or as a timedelta. If it takes longer,
            that is logged, and the task is shown as `overdue`.
        returns: The type of the result, or of one chunk. Default: the annotated type.
        kind: "model" for a model call: its usage is counted, and its input is recorded.
        drift: What to do if a finished step is called with other arguments: "refuse" it, "keep" the
            recorded result, or "rerun" it.
        price: The cost of a million input tokens and of a million output tokens.
        renamed_from: The earlier name of the step, or a list of earlier names. Tasks that recorded
            the step under such a name continue with that record. An empty list means that it is a
            new step, although a recorded one looks like it (see `ReplayMismatch`).
        store_arguments: The arguments of a `once` or `check` step are stored, redacted and
            shortened, so that an operator sees them if the step is in doubt. False: only their
            fingerprint is stored, as for other steps.

    Returns:
        A `Step`, which is called like the function.

    Raises:
        TypeError: The function can't be a step with these options.
        ValueError: An option is out of range.

    Example:
        >>> @holdfast.step(check=find_payment, max_attempts=3, retry_on=TimeoutError)
        ... def pay(order: str, amount: int) -> Receipt:
        ...     return bank.pay(order, amount, key=holdfast.idempotency_key())
    """
    kinds: tuple[Any, ...] = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if any(not isinstance(each, type) or not issubclass(each, BaseException) for each in kinds):
        raise TypeError("retry_on must be an exception class, or a tuple of them")
    if kind not in ("tool", "model"):
        raise ValueError(f"kind must be 'tool' or 'model', got {kind!r}")
    if type(store_arguments) is not bool:
        raise TypeError(
            f"store_arguments must be True or False, got {describe_value(store_arguments)}"
        )
    limit = None if timeout is None else check_seconds(timeout, "timeout", 0.001)
    after = None if check_after is None else check_seconds(check_after, "check_after")
    decorator = _StepDecorator(
        StepOptions(
            key,
            once,
            check,
            max_attempts,
            kinds,
            limit,
            returns,
            kind,
            drift,
            price,
            after,
            None if renamed_from is None else check_names(renamed_from),
            check_expect(expect),
            store_arguments,
        )
    )
    return decorator if fn is None else decorator(fn)
