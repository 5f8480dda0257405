"""Steps: functions whose calls inside a task are recorded, once and for all."""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections import abc
from collections.abc import Callable, Mapping
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

from ...errors import NoTask
from ...log.codec import check_declared
from ...log.ids import checked_id
from ...log.validation import seconds, shown
from ..run.frames import current_frame, refuse_if_left
from .identity import code_digest
from .usage import checked_price

if TYPE_CHECKING:
    from ...conversations.base import ConversationBase as Conversation

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])

KEY_PARAMETER = "idempotency_key"
UNRESOLVED: Any = object()


class Options(msgspec.Struct, frozen=True):
    """How a function is run as a step."""

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

    @property
    def mode(self) -> Literal["", "once", "check"]:
        return "check" if self.check is not None else "once" if self.once else ""


class Step(Generic[P, R]):
    """A function that is a durable step inside a task, and a plain function outside of one.

    `once` and `check` functions raise `NoTask` outside: without a record they could run twice.
    """

    def __init__(self, fn: Callable[P, R], options: Options) -> None:
        self.fn, self.options, self.mode = fn, options, options.mode
        self.eager = bool(options.mode) or options.kind == "child"
        """Whether its start is durable before it runs."""
        self.key: str | None = None
        self.to: Conversation | None = None
        """The conversation in which its result is a message: of a `task.reply`."""
        self.owner: tuple[object, ...] = ()
        self.streams = streams(fn)
        """Whether it gives its result in chunks."""
        self.is_async = is_async(fn) or self.streams == "async"
        self.is_model = options.kind == "model"
        functools.update_wrapper(self, fn, updated=())
        try:
            self.signature: inspect.Signature | None = inspect.signature(fn)
        except (TypeError, ValueError):  # some builtins have none
            self.signature = None
        parameters = self.signature.parameters if self.signature else {}
        self._simple = _simple(self.signature)
        wants = parameters.get(KEY_PARAMETER)
        self.takes_key = wants is not None and wants.default is not inspect.Parameter.empty
        model = parameters.get("model")
        self.default_model = (
            model.default if model is not None and isinstance(model.default, str) else None
        )
        self.code = code_digest(fn)
        self.around = _around(fn)
        """What the function brings along: its object, or what it was partially called with. Part of its arguments."""
        self.chunk: Any = Any
        self._returns = options.returns
        if self.streams and self._returns is not UNRESOLVED:
            self._returns = self._of_chunks(self._returns)
        _refuse_what_cannot_work(self)
        try:
            self.returns  # noqa: B018  a type that cannot be stored is refused here, not after the work
        except NameError:
            pass  # it names a class that is defined further down; asked again at the first call

    @property
    def name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    @property
    def returns(self) -> Any:
        """The type of the result: as declared, else as annotated, else plain JSON values."""
        if self._returns is UNRESOLVED:
            declared = annotated(self.fn)
            if self.streams:
                declared = self._of_chunks(_chunk_of(declared))
            try:
                check_declared(declared)
            except TypeError as error:
                raise TypeError(
                    f"the result of {self.name!r} is annotated with a type that cannot be stored ({error}); "
                    "return something that can, or say which type to store: holdfast.step(returns=…)"
                ) from None
            self._returns = declared
        return self._returns

    def _of_chunks(self, chunk: Any) -> Any:
        self.chunk = chunk
        return Any if chunk is Any else list[chunk]

    def bound(self, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by name, as far as they are given; a TypeError if the function cannot be called with them."""
        if self._simple is not None:
            names, required = self._simple
            if not kwargs and required <= len(args) <= len(names):
                return dict(zip(names, args, strict=False))
        if self.signature is None:
            return {"args": args, **kwargs}
        return self.signature.bind(*args, **kwargs).arguments

    def using(self, *, key: object) -> Step[P, R]:
        """The same step with a key for this call: `pay.using(key=order.id)(order)`."""
        other = copy.copy(self)
        other.key = as_key(key)
        return other

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        frame = current_frame()
        if frame is None:
            refuse_if_left()
            if self.options.mode:
                raise NoTask(
                    f"{self.name!r} is a step that must not be done twice, and only a task can see to that: "
                    "call it inside `with store.task(id) as task:`; in a thread of your own, as `task.step(name, fn, …)`"
                )
            return self.fn(*self.owner, *args, **kwargs)  # type: ignore[arg-type]  # the owner is the method's self
        return cast("R", frame.task._call(self, frame, args, kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Step[..., R]:
        if instance is None:
            return self
        bound = copy.copy(self)
        bound.owner = (instance,)
        return bound

    def __repr__(self) -> str:
        return f"<Step {self.name!r}>"


def _refuse_what_cannot_work(step: Step[Any, Any]) -> None:
    options, name = step.options, step.name
    if step.streams and (options.max_attempts != 1 or options.timeout is not None):
        raise TypeError(
            f"{name!r} is a generator, whose chunks are used as they come: it cannot be tried again (max_attempts), or cut off (timeout)"
        )
    if options.timeout is not None and not step.is_async:
        raise TypeError(
            f"{name!r} is not async, and nothing can stop a plain function that runs: "
            "give its own calls a timeout, or make it async"
        )
    if type(options.max_attempts) is not int or options.max_attempts < 1:
        raise ValueError(f"max_attempts must be an integer >= 1, got {shown(options.max_attempts)}")
    if options.drift not in ("refuse", "keep", "rerun"):
        raise ValueError(f"drift must be 'refuse', 'keep' or 'rerun', got {options.drift!r}")
    for what, given in (("key", options.key), ("check", options.check)):
        if given is not None and not callable(given):
            raise TypeError(
                f"{what} must be a function of the step's arguments; for one call: step.using(key=…)"
            )
    if options.check is not None and is_async(options.check) and not step.is_async:
        raise TypeError(
            f"the check of {name!r} is async and {name!r} is not; make both async, or neither"
        )
    if options.check is not None and not _takes_the_same(options.check, step):
        raise TypeError(
            f"the check of {name!r} is called with the arguments of {name!r}; let it take the same ones"
        )
    if options.returns is not UNRESOLVED:
        check_declared(options.returns)
    checked_price(options.price)


def _takes_the_same(check: Callable[..., Any], step: Step[Any, Any]) -> bool:
    """Whether a check can be called with whatever its step can be called with. Better now than after the first crash."""
    try:
        taken = inspect.signature(check)
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
    return _can_take(taken, own) and _can_take(taken, required)


def _can_take(taken: inspect.Signature, parameters: list[inspect.Parameter]) -> bool:
    by_place = [
        each
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    try:
        taken.bind(*by_place, **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True


def is_async(fn: object) -> bool:
    """Whether calling it gives something to await."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, Step):
        return fn.is_async
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)
    )  # noqa: B004


def streams(fn: object) -> Literal["", "plain", "async"]:
    """Whether calling it gives something to iterate over, and how."""
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


def _simple(signature: inspect.Signature | None) -> tuple[tuple[str, ...], int] | None:
    """The names of the parameters and how many must be given, if all can be given by place: no need for a slow `bind`."""
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(each.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters):
        return None
    return tuple(signature.parameters), sum(
        each.default is inspect.Parameter.empty for each in parameters
    )


def _around(fn: Callable[..., Any]) -> tuple[object, ...]:
    found: list[object] = []
    while isinstance(fn, functools.partial):
        found += [fn.args, fn.keywords]
        fn = fn.func
    if inspect.ismethod(fn):
        found.append(fn.__self__)
    return tuple(found)


def annotated(fn: Callable[..., Any]) -> Any:
    """The type that a function is annotated to return; Any if it is not."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # An object that can be called has the annotations of its class, which are those of its attributes.
    is_function = inspect.isroutine(fn) or inspect.isclass(fn) or hasattr(fn, "__wrapped__")
    holder: Any = fn if is_function else type(fn).__call__
    try:
        told = inspect.unwrap(holder)
        told = getattr(told, "__func__", told)
        # That one alone: others may name what is imported for type checkers only.
        only = types.SimpleNamespace(
            __annotations__={"return": getattr(told, "__annotations__", {}).get("return", Any)}
        )
        hints: Mapping[str, Any] = get_type_hints(only, globalns=getattr(told, "__globals__", {}))
    except NameError:
        raise
    except Exception:  # annotations that are no types
        return Any
    found = hints.get("return", Any)
    return Any if isinstance(found, TypeVar) else found


def _chunk_of(declared: Any) -> Any:
    """The type of one chunk, of a generator function with that annotation."""
    arguments = get_args(declared)
    if get_origin(declared) not in _OF_CHUNKS or not arguments or isinstance(arguments[0], TypeVar):
        return Any
    return arguments[0]


_OF_CHUNKS = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


def as_key(key: object) -> str:
    """A key as text. Numbers may be keys too; 7 and "7" are the same."""
    if type(key) is int:
        key = str(key)
    if not isinstance(key, str):
        raise TypeError(f"a step's key must be text or an integer, got {type(key).__name__}")
    return checked_id(str(key), "key")


def as_step(fn: Callable[..., Any]) -> Step[Any, Any]:
    """A step of any callable; what is not decorated gets the ordinary options."""
    if type(fn) is types.FunctionType:
        return _ordinary(fn)
    if isinstance(fn, Step):
        return fn
    if not callable(fn):
        raise TypeError(
            f"fn must be a function: task.step(name, fn, *args), got {type(fn).__name__}"
        )
    try:
        hash(fn)
    except TypeError:
        return Step(fn, _ORDINARY)
    return _ordinary(fn)


@functools.lru_cache(256)
def _ordinary(fn: Callable[..., Any]) -> Step[Any, Any]:
    return Step(fn, _ORDINARY)


_ORDINARY = Options()
registered: dict[str, str] = {}
"""The code of every decorated function, by name: what `preview` compares with."""


class _StepDecorator:
    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(self, fn: Callable[P, R]) -> Step[P, R]:
        if isinstance(fn, Step):
            fn = fn.fn  # other options for the same function
        step = Step(fn, self._options)
        same = registered.get(step.name, step.code) == step.code
        registered[step.name] = (
            step.code if same else ""
        )  # two functions of one name: nothing can be compared
        return step


@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
) -> _StepDecorator: ...


@overload
def step(
    fn: Callable[P, R],
    /,
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
) -> Step[P, R]: ...


def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    key: Callable[..., object] | None = None,
    once: bool = False,
    check: Callable[..., Any] | None = None,
    max_attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    timeout: float | timedelta | None = None,
    returns: Any = UNRESOLVED,
    kind: Literal["tool", "model"] = "tool",
    drift: Literal["refuse", "keep", "rerun"] = "refuse",
    price: tuple[float, float] | None = None,
) -> Any:
    """Make a function a durable step: inside a task it runs once, and its result is recorded.

    Outside of a task it is a plain function, unless it has `once` or `check`.

    Args:
        fn: The function. A generator function gives its chunks as they come.
        key: A function of the arguments that says what the call is about. Calls are then told apart
            by it alone.
        once: Never run it again when its outcome is unknown. The step is then in doubt, and a
            person settles it (`store.resolve`).
        check: A function with the same arguments that finds out whether it was done, and returns
            the result; None means it was not done.
        max_attempts: How often to try, with growing pauses.
        retry_on: The exceptions that are tried again.
        timeout: How long one attempt may take, in seconds or as a timedelta; for async functions.
        returns: The type of the result, or of one chunk, if not the annotated one.
        kind: "model" for a call of a model: its usage is counted, and what it saw is recorded.
        drift: What to do if a finished step is asked for with other arguments: "refuse", "keep" the
            recorded result, or "rerun".
        price: What a million tokens cost, of input and of output.

    Returns:
        A `Step`, called like the function.

    Raises:
        TypeError: The function cannot be a step with these options.
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
    limit = None if timeout is None else seconds(timeout, "timeout", 0.001)
    made = _StepDecorator(
        Options(key, once, check, max_attempts, kinds, limit, returns, kind, drift, price)
    )
    return made if fn is None else made(fn)
