"""The JSON API, version 1: what the pages show and do, for scripts and other tools.

`ENDPOINTS` is the one list of it. The routes, the checks of parameters and the OpenAPI description
all follow from this list. An id is a query parameter, because ids may contain any character.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from time import monotonic
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from .. import Budget, Event, HoldfastError, MemoryHit, MemoryItem, Store, TaskInfo, TaskView
from ..backends import StreamKey
from ..conversations.tokens import default_counter
from ..conversations.window import read_window
from ..errors import NotFound
from ..log import operations as ops
from ..log.context import act_as
from ..log.drivers import drive
from ..log.ids import stream_key
from ..log.operations import Operation
from ..tasks.control.find import check_task_filter, find_tasks
from ..tasks.control.lifecycle import require_head
from ..tasks.memory import explain_context
from ..tasks.state.fold import TaskState
from ..tasks.state.load import load_events, load_view, load_view_at
from ..types import ConversationView, EntityInfo
from .diff import Change, diff_values
from .inbox import LOOK_SECONDS, InboxPage, read_inbox
from .memories import MemoryChain, list_memories, trace_memory
from .savings import Savings
from .store_facts import StoreFacts, StoreMonitor
from .timeline import Timeline
from .timeline_cache import TimelineCache

P = TypeVar("P", bound=msgspec.Struct)

MAX_TOKENS: Final = 1_000_000

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
Status = Literal[
    "pending", "running", "suspended", "retrying", "failed", "finished", "cancelled", "stuck"
]


StreamKind = Literal[
    "stream", "task", "conversation", "memory", "state", "subject", "blob", "audit"
]


class Actor(NamedTuple):
    """The store that a request works on, the person who sent it, and what requests share."""

    store: Store
    by: str | None
    timelines: TimelineCache
    monitor: StoreMonitor


@dataclass(frozen=True)
class Endpoint(Generic[P]):
    """One operation of the API. `params` are query parameters of a GET, the body of a POST."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    params: type[P]
    returns: Any
    handle: Callable[[Actor, P], Any]


# -- parameters ------------------------------------------------------------------------------------


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class InboxParams(msgspec.Struct, forbid_unknown_fields=True):
    after: str = ""
    limit: Limit = 100


class TasksParams(msgspec.Struct, forbid_unknown_fields=True):
    status: Status | None = None
    agent: Id | None = None
    query: str | None = None
    error: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    since: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    after: str = ""
    limit: Limit = 100


class TaskParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    version: Version | None = None


class EventsParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    limit: Limit = 200


class ContextParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    version: Version | None = None
    max_tokens: Tokens = 8000


class DiffParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    before: Version
    after: Version


class StepParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    step: Id


class AnswerParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    name: Id
    value: Any
    question: str | None = None


class ResolveParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    step: Id
    result: Any = msgspec.UNSET
    retry: bool = False


class RetryParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    budget: Budget | None = None


class CancelParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    reason: Annotated[str, msgspec.Meta(max_length=2000)] | None = None


class BatchParams(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["retry", "cancel"]
    ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=1000)]
    reason: Annotated[str, msgspec.Meta(max_length=2000)] | None = None


class SignalParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    name: Id
    payload: Any = None
    signal_id: Id | None = None


class ForkParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    new_id: Id
    version: Version | None = None
    input: Any = msgspec.UNSET
    results: dict[str, Any] = {}
    queue: bool = False


class PageParams(msgspec.Struct, forbid_unknown_fields=True):
    after: str = ""
    limit: Limit = 100


class ConversationParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    last: Limit = 200


class WindowParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    max_tokens: Tokens = 8000
    version: Version | None = None


class RecallParams(msgspec.Struct, forbid_unknown_fields=True):
    namespace: Id
    query: str = ""
    about: str = ""
    after: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20


class EntitiesParams(msgspec.Struct, forbid_unknown_fields=True):
    namespace: Id
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class PinParams(msgspec.Struct, forbid_unknown_fields=True):
    namespace: Id
    id: Id
    pinned: bool = True


class ForgetParams(msgspec.Struct, forbid_unknown_fields=True):
    namespace: Id
    id: Id


class SupersedeParams(msgspec.Struct, forbid_unknown_fields=True):
    namespace: Id
    id: Id
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


class StreamsParams(msgspec.Struct, forbid_unknown_fields=True):
    kind: StreamKind = "stream"
    after: str = ""
    limit: Limit = 100


class StreamParams(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    last: Limit = 100


# -- results ---------------------------------------------------------------------------------------


class TasksPage(msgspec.Struct, frozen=True):
    """Tasks ordered by id. `after` continues the list; it is empty at the end."""

    tasks: list[TaskInfo]
    after: str = ""


class EventFacts(msgspec.Struct, frozen=True):
    """One recorded event."""

    version: int
    id: str
    type: str
    at: datetime
    by: str | None
    correlation: str | None
    data: Any


class EventsPage(msgspec.Struct, frozen=True):
    events: list[EventFacts]
    after: int
    """The version to continue after; 0 at the end."""


class TimelineAndSavings(msgspec.Struct, frozen=True):
    timeline: Timeline
    savings: Savings


class ContextText(msgspec.Struct, frozen=True):
    """The resume context of a task: what the model reads, and how long it is."""

    text: str
    tokens: int
    version: int
    complete: bool
    """Whether nothing was left out or shortened to fit."""
    memories: list[MemoryHit]
    """The memories in it, with the reasons of their ranks."""


class Done(msgspec.Struct, frozen=True):
    """What an action did."""

    done: str


class BatchResult(msgspec.Struct, frozen=True):
    """The tasks for which the action was done, and the reason for each of the others."""

    done: list[str]
    failed: dict[str, str]


class NamesPage(msgspec.Struct, frozen=True):
    names: list[str]
    after: str = ""


class MessageFacts(msgspec.Struct, frozen=True):
    version: int
    at: datetime
    by: str | None
    pinned: bool
    message: dict[str, Any]


class ConversationFacts(msgspec.Struct, frozen=True):
    conversation: ConversationView
    messages: list[MessageFacts]


class WindowFacts(msgspec.Struct, frozen=True):
    """Messages for a model, and about how many tokens they have."""

    messages: list[Any]
    tokens: int


class MemoriesFacts(msgspec.Struct, frozen=True):
    """The hits of a query, the memories about a name, or a page of all memories.

    `after` continues the page; 0 at the end.
    """

    hits: list[MemoryHit]
    memories: list[MemoryItem]
    after: int = 0


class EntitiesFacts(msgspec.Struct, frozen=True):
    entities: list[EntityInfo]


class StreamFacts(msgspec.Struct, frozen=True):
    version: int
    events: list[EventFacts]


# -- reading ---------------------------------------------------------------------------------------


def list_inbox(actor: Actor, params: InboxParams) -> InboxPage:
    return read_inbox(actor.store, after=params.after, limit=params.limit)


def list_tasks(actor: Actor, params: TasksParams) -> TasksPage:
    found: list[TaskInfo] = []
    stop, after, log = monotonic() + LOOK_SECONDS, params.after, actor.store._log
    wanted = check_task_filter(
        params.status, params.agent, params.since, params.error, params.query or ""
    )
    while True:
        page, last = ops.run(log, find_tasks(actor.store.tenant, wanted, after))
        for info in page:
            found.append(info)
            if len(found) == params.limit:
                return TasksPage(found, info.id)
        if not last or monotonic() > stop:
            return TasksPage(found, last)
        after = last


def show_task(actor: Actor, params: TaskParams) -> TaskView:
    if params.version is not None:
        return actor.store.task(params.id).view(version=params.version)
    view = actor.store.get_task(params.id)
    if view is None:
        raise _task_gone(params.id)
    return view


def _task_gone(id: str) -> NotFound:
    return NotFound(f"there is no task {id!r}, or it has expired")


def show_timeline(actor: Actor, params: TaskParams) -> TimelineAndSavings:
    view = show_task(actor, params)
    return TimelineAndSavings(*actor.timelines.read(view, past=params.version is not None))


def list_events(actor: Actor, params: EventsParams) -> EventsPage:
    key = stream_key(actor.store.tenant, "task", params.id)
    return ops.run(actor.store._log, _read_events(key, params.after, params.limit))


def _read_events(key: StreamKey, after: int, limit: int) -> Operation[EventsPage]:
    """Return up to `limit` events after a version. Later events are not read."""
    head = yield from require_head(key)
    if after > head.version:
        raise NotFound(f"version {after} of {key} not found: it has versions 1 to {head.version}")
    found: list[Event] = []
    while len(found) < limit and after < head.version:
        page = yield from load_events(key, after, limit - len(found))
        if not page:
            break
        found += page
        after = page[-1].version
    return EventsPage(list(map(event_facts, found)), after if after < head.version else 0)


def show_context(actor: Actor, params: ContextParams) -> ContextText:
    view = show_task(actor, TaskParams(params.id, params.version))
    return make_context(actor, view, params)


def make_context(actor: Actor, view: TaskView, params: ContextParams) -> ContextText:
    """Return the resume context of a task at a view, which need not be loaded again."""
    task = actor.store.task(params.id)
    explained = explain_context(task, view, params.max_tokens, past=params.version is not None)
    context, memories = drive(task._log, explained)
    return ContextText(str(context), context.tokens, view.version, context.complete, memories)


def show_diff(actor: Actor, params: DiffParams) -> list[Change]:
    return diff_views(*show_two_versions(actor, params.id, params.before, params.after))


def show_two_versions(
    actor: Actor, id: str, one: int, other: int | None
) -> tuple[TaskView, TaskView]:
    """Return a task at two versions, from one pass over its events. `other` may be None: now."""
    key = stream_key(actor.store.tenant, "task", id)
    return ops.run(actor.store._log, _load_two_views(key, one, other))


def _load_two_views(
    key: StreamKey, one: int, other: int | None
) -> Operation[tuple[TaskView, TaskView]]:
    if other is not None and other < one:
        later, earlier = yield from _load_two_views(key, other, one)
        return earlier, later
    state = TaskState(key)
    first = yield from load_view_at(key, one, state)
    if other is not None:
        return first, (yield from load_view_at(key, other, state))
    newest = yield from load_view(key, state)
    if newest is None:
        raise _task_gone(key.id)
    return first, newest


def diff_views(before: TaskView, after: TaskView) -> list[Change]:
    """Return what changed between two versions. Steps are named by their paths."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    old["steps"] = {step.path: step for step in before.steps}
    new["steps"] = {step.path: step for step in after.steps}
    for one, two in ((old, new), (old["steps"], new["steps"])):
        for name in [name for name in one if name in two and one[name] == two[name]]:
            del one[name], two[name]  # equal ones are not looked into
    return diff_values(msgspec.to_builtins(old), msgspec.to_builtins(new))


def show_model_input(actor: Actor, params: StepParams) -> WindowFacts:
    return _count_tokens(actor.store.model_input(params.id, params.step))


def _count_tokens(messages: list[Any]) -> WindowFacts:
    count = default_counter()
    tokens = sum(count(each) for each in messages if isinstance(each, dict))
    return WindowFacts(messages, tokens)


def list_conversations(actor: Actor, params: PageParams) -> NamesPage:
    listed = (info.id for info in actor.store.conversations(after=params.after))
    return _page_of_names(listed, params.limit)


def show_conversation(actor: Actor, params: ConversationParams) -> ConversationFacts:
    chat = actor.store.conversation(params.id)
    entries = chat.entries(last=params.last)
    facts = [
        MessageFacts(entry.version, entry.at, entry.by, entry.pinned, entry.message)
        for entry in entries
    ]
    return ConversationFacts(chat.view(), facts)


def show_window(actor: Actor, params: WindowParams) -> WindowFacts:
    if params.version is None:
        return _count_tokens(list(actor.store.conversation(params.id).window(params.max_tokens)))
    key = stream_key(actor.store.tenant, "conversation", params.id)
    newest = actor.store.conversation(params.id).version()
    if params.version > newest:
        raise NotFound(f"the conversation has versions 1 to {newest}")
    window = read_window(key, params.max_tokens, (), default_counter(), params.version)
    return _count_tokens(list(ops.run(actor.store._log, window)))


def list_namespaces(actor: Actor, params: PageParams) -> NamesPage:
    listed = (info.namespace for info in actor.store.memory_namespaces(after=params.after))
    return _page_of_names(listed, params.limit)


def recall_memories(actor: Actor, params: RecallParams) -> MemoriesFacts:
    memory = actor.store.memory(params.namespace)
    if params.query.strip():
        return MemoriesFacts(memory.recall(params.query, params.limit), [])
    if params.about.strip():
        return MemoriesFacts([], memory.about(params.about, params.limit))
    memories, after = list_memories(memory, params.after, params.limit)
    return MemoriesFacts([], memories, after)


def list_entities(actor: Actor, params: EntitiesParams) -> EntitiesFacts:
    return EntitiesFacts(actor.store.memory(params.namespace).entities(params.limit))


def show_memory(actor: Actor, params: ForgetParams) -> MemoryChain:
    chain = trace_memory(actor.store.memory(params.namespace), params.id)
    if chain.memory is None and not chain.earlier:
        raise NotFound("there is no such memory")
    return chain


def list_streams(actor: Actor, params: StreamsParams) -> NamesPage:
    listed = (info.id for info in actor.store.streams(kind=params.kind, after=params.after))
    return _page_of_names(listed, params.limit)


def show_stream(actor: Actor, params: StreamParams) -> StreamFacts:
    stream = actor.store.stream(params.id)
    return StreamFacts(stream.version(), list(map(event_facts, stream.last(params.last))))


def show_store(actor: Actor, params: Nothing) -> StoreFacts:
    return actor.monitor.read()


# -- actions ---------------------------------------------------------------------------------------


def answer_question(actor: Actor, params: AnswerParams) -> Done:
    actor.store.answer(params.id, params.name, params.value, by=actor.by, question=params.question)
    return Done(f"answered {params.name}")


def resolve_step(actor: Actor, params: ResolveParams) -> Done:
    if params.result is msgspec.UNSET:
        actor.store.resolve(params.id, params.step, retry=params.retry, by=actor.by)
    elif params.retry:
        raise ValueError("give a result or retry, not both")
    else:
        actor.store.resolve(params.id, params.step, result=params.result, by=actor.by)
    return Done(f"resolved {params.step}")


def retry_task(actor: Actor, params: RetryParams) -> Done:
    _need_agent(show_task(actor, TaskParams(params.id)))
    actor.store.retry(params.id, budget=params.budget, by=actor.by)
    return Done(f"queued {params.id}")


def _need_agent(view: TaskView) -> None:
    if view.agent is None:
        raise ValueError("the task has no agent: resume it from the script that created it")


def cancel_task(actor: Actor, params: CancelParams) -> Done:
    actor.store.task(params.id).cancel(params.reason, by=actor.by)
    return Done(f"cancelled {params.id}")


def act_on_tasks(actor: Actor, params: BatchParams) -> BatchResult:
    result = BatchResult([], {})
    for task in dict.fromkeys(params.ids):
        try:
            if params.action == "retry":
                retry_task(actor, RetryParams(task))
            else:
                cancel_task(actor, CancelParams(task, params.reason))
        except (HoldfastError, ValueError) as error:
            result.failed[task] = str(error)
        else:
            result.done.append(task)
    return result


def signal_task(actor: Actor, params: SignalParams) -> Done:
    is_new = actor.store.signal(
        params.id, params.name, params.payload, id=params.signal_id, by=actor.by
    )
    return Done(f"signalled {params.name}" if is_new else f"{params.name} was sent before")


def fork_task(actor: Actor, params: ForkParams) -> Done:
    if params.queue:
        _need_agent(show_task(actor, TaskParams(params.id)))  # before the fork is made
    changed = {} if params.input is msgspec.UNSET else {"input": params.input}
    actor.store.task(params.id).fork(
        params.new_id, version=params.version, results=params.results, by=actor.by, **changed
    )
    if params.queue:
        retry_task(actor, RetryParams(params.new_id))
    return Done(f"forked {params.id} to {params.new_id}")


def forget_memory(actor: Actor, params: ForgetParams) -> Done:
    with act_as(actor.by):
        if not actor.store.memory(params.namespace).forget(params.id):
            raise NotFound("there is no such memory")
    return Done("forgotten")


def supersede_memory(actor: Actor, params: SupersedeParams) -> Done:
    """Replace the text of a memory. Its author is then the person who did it."""
    memory = actor.store.memory(params.namespace)
    with act_as(actor.by):
        memory.supersede(params.id, params.text, author=actor.by or "user")
    return Done("superseded")


def pin_memory(actor: Actor, params: PinParams) -> Done:
    """Give a memory the highest importance, or the usual one."""
    memory = actor.store.memory(params.namespace)
    found = memory.get(params.id)
    if found is None:
        raise NotFound("there is no such memory")
    with act_as(actor.by):
        memory.supersede(params.id, found.text, importance=1.0 if params.pinned else 0.5)
    return Done("pinned" if params.pinned else "unpinned")


def verify_store(actor: Actor, params: Nothing) -> Done:
    started = actor.monitor.start_verification(actor.by)
    return Done("verifying" if started else "it is being verified already")


def to_plain(value: object) -> object:
    """Return a value of a subclass, such as a resume context's text, as its plain type."""
    for kind in (str, dict, list):
        if isinstance(value, kind):
            return "".join([value]) if isinstance(value, str) else kind(value)
    raise TypeError(f"cannot encode {type(value).__name__}")


def event_facts(event: Event) -> EventFacts:
    return EventFacts(
        event.version, event.id, event.type, event.at, event.by, event.correlation, event.data
    )


def _page_of_names(names: Any, limit: int) -> NamesPage:
    found = list(islice(names, limit + 1))
    return NamesPage(found[:limit], found[limit - 1] if len(found) > limit else "")


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("GET", "inbox", "List what waits for a person", InboxParams, InboxPage, list_inbox),
    Endpoint("GET", "tasks", "List and search tasks", TasksParams, TasksPage, list_tasks),
    Endpoint("GET", "task", "Show a task, now or at a version", TaskParams, TaskView, show_task),
    Endpoint(
        "GET", "task/timeline", "Show who ran what when", TaskParams, TimelineAndSavings,
        show_timeline,
    ),
    Endpoint("GET", "task/events", "List recorded events", EventsParams, EventsPage, list_events),
    Endpoint(
        "GET", "task/context", "Show what a model reads on resume", ContextParams, ContextText,
        show_context,
    ),
    Endpoint(
        "GET", "task/diff", "Compare two versions of a task", DiffParams, list[Change], show_diff
    ),
    Endpoint(
        "GET", "task/model-input", "Show what a step sent to its model", StepParams, WindowFacts,
        show_model_input,
    ),
    Endpoint("POST", "task/answer", "Answer a question", AnswerParams, Done, answer_question),
    Endpoint("POST", "task/resolve", "Resolve a step in doubt", ResolveParams, Done, resolve_step),
    Endpoint("POST", "task/retry", "Queue a task again", RetryParams, Done, retry_task),
    Endpoint("POST", "task/cancel", "Cancel a task", CancelParams, Done, cancel_task),
    Endpoint("POST", "task/signal", "Send a signal to a task", SignalParams, Done, signal_task),
    Endpoint(
        "POST", "tasks/batch", "Retry or cancel several tasks", BatchParams, BatchResult,
        act_on_tasks,
    ),
    Endpoint("POST", "task/fork", "Fork a task at a version", ForkParams, Done, fork_task),
    Endpoint(
        "GET", "conversations", "List conversations", PageParams, NamesPage, list_conversations
    ),
    Endpoint(
        "GET", "conversation", "Show a conversation's newest messages", ConversationParams,
        ConversationFacts, show_conversation,
    ),
    Endpoint(
        "GET", "conversation/window", "Show what window() would send", WindowParams, WindowFacts,
        show_window,
    ),
    Endpoint("GET", "memories", "List memory namespaces", PageParams, NamesPage, list_namespaces),
    Endpoint(
        "GET", "memory", "Recall or list memories", RecallParams, MemoriesFacts, recall_memories
    ),
    Endpoint(
        "GET", "memory/entities", "List the names that memories mention", EntitiesParams,
        EntitiesFacts, list_entities,
    ),
    Endpoint(
        "GET", "memory/chain", "Show a memory and what it superseded", ForgetParams, MemoryChain,
        show_memory,
    ),
    Endpoint(
        "POST", "memory/pin", "Give a memory the highest importance", PinParams, Done, pin_memory
    ),
    Endpoint("POST", "memory/forget", "Forget a memory", ForgetParams, Done, forget_memory),
    Endpoint(
        "POST", "memory/supersede", "Replace the text of a memory", SupersedeParams, Done,
        supersede_memory,
    ),
    Endpoint("GET", "streams", "List streams of a kind", StreamsParams, NamesPage, list_streams),
    Endpoint("GET", "stream", "Show a stream's newest events", StreamParams, StreamFacts,
             show_stream),
    Endpoint(
        "GET", "store", "Show the store, its growth and its workers", Nothing, StoreFacts,
        show_store,
    ),
    Endpoint("POST", "store/verify", "Verify the store, in the background", Nothing, Done,
             verify_store),
)  # fmt: skip
