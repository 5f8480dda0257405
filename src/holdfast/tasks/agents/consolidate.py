"""The task that consolidates a memory: `holdfast.memory.consolidate`.

It finds proposals, asks a model for more, lets a policy or a person decide, and applies them. Each
of these is a step, so a run that was killed resumes where it was.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import msgspec

from ...backends import clock
from ...errors import BudgetExceeded, Erased
from ...log.drivers import EffectGen, drive, drive_async
from ...log.events import new_append_context
from ...log.head_fields import TASK_TTL
from ...log.ids import check_id, format_ids, stream_key
from ...log.validation import check_seconds, describe_value
from ...memory.arguments import Authors, check_authors
from ...memory.consolidation.apply import apply_proposal, load_open, undo_run
from ...memory.consolidation.ask_model import (
    CheckedAnswer,
    build_messages,
    check_answer,
    group_related,
)
from ...memory.consolidation.find import FindOptions, find_proposals, is_open, load_docs
from ...memory.consolidation.proposals import ConsolidationResult, Decision, Proposal, UndoResult
from ...memory.memory import Memory
from ...memory.model import KIND, MemoryDoc
from ..base import TaskBase
from ..run import waits
from ..run.claim import OpenOptions, check_open_options
from ..run.frames import current_step
from ..state.events import KIND as TASK_KIND
from ..state.load import list_tasks, load_view
from ..steps.declare import Step, StepOptions, is_async
from ..steps.run import request_step_gen
from ..steps.usage import Budget, extract_usage
from ..task import AsyncTask, Task
from .declare import DEFAULT_LEASE, Agent
from .run import run_agent, run_agent_async

if TYPE_CHECKING:
    from ..._store import AsyncStore, Store
    from ...log.log import Log
    from ...log.operations import Operation

Policy = Literal["safe", "ask", "all"] | Callable[[Proposal], Decision]
"""What to do with a proposal. See `consolidate`."""
ConsolidationModel = Callable[[list[dict[str, str]]], Any]
"""A function from messages to a model's answer. It may be async in an async store."""

QUESTION: Final = "approve"
DEFAULT_BUDGET: Final = Budget(calls=20)
DEFAULT_UNUSED: Final = timedelta(days=180)
MAX_NAMESPACE_BYTES: Final = 400
"""A longer namespace doesn't fit into the id of a task."""


class _Settings(msgspec.Struct, frozen=True):
    """The arguments of a run."""

    namespace: str
    find: FindOptions
    model: ConsolidationModel | None
    policy: Policy


@overload
def consolidate(
    store: Store | Task,
    namespace: str,
    *,
    subject: str | None = None,
    model: ConsolidationModel | None = None,
    policy: Policy = "safe",
    budget: Budget | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
    run_id: str | None = None,
) -> ConsolidationResult: ...


@overload
def consolidate(
    store: AsyncStore | AsyncTask,
    namespace: str,
    *,
    subject: str | None = None,
    model: ConsolidationModel | None = None,
    policy: Policy = "safe",
    budget: Budget | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
    run_id: str | None = None,
) -> Coroutine[Any, Any, ConsolidationResult]: ...


def consolidate(
    store: Store | AsyncStore | Task | AsyncTask,
    namespace: str,
    *,
    subject: str | None = None,
    model: ConsolidationModel | None = None,
    policy: Policy = "safe",
    budget: Budget | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
    run_id: str | None = None,
) -> Any:
    """Tidy up a memory, as a task that survives its process. Can be undone.

    Merges duplicates, archives old memories that were never used, and removes expired ones. With a
    model, it also merges memories that say the same, adds summaries, and replaces outdated ones.
    What it replaces is no longer recalled, but stays as evidence: see `Memory.evidence`.

    If the process dies, call it again: it resumes the run that has not finished, and applies
    nothing twice.

    Args:
        store: A store; the call is awaited for an async one. Or a task, inside its block: then the
            steps, the question and the budget are the task's own, and a worker can resume it.
        namespace: The namespace of the memory.
        subject: Consolidate the memories about this subject. Default: those about no one. A run
            never mixes subjects.
        model: A function that takes messages (role and content) and returns the model's answer: its
            text, or the parsed value. Default: no model.
        policy: What to apply. "safe": what loses nothing that can be recalled. "ask": also what a
            person approves. "all": everything. Or a function of a `Proposal` that returns "apply",
            "ask" or "leave". Protected proposals are never applied without a person's approval.
        budget: The limit for model calls. Default: 20 calls.
        unused_after: How old an unused memory must be to be archived, in seconds or as a
            timedelta. Default: 180 days. None: never.
        trusted: Authors whose memories only a person may replace.
        run_id: The id of the run, which is the id of its task. Default: the run that has not
            finished, or else a new one.

    Returns:
        What was applied and what was not, with the `run_id` for `undo_consolidation`.

    Raises:
        Suspended: A person must answer the question "approve" first: True for all proposals, False
            for none, or a list of their ids. Then call it again.
        StepFailed: The model failed. Call it again to retry.

    Example:
        >>> holdfast.memory.consolidate(store, "buyer").applied
        [Proposal(...)]
    """
    if isinstance(store, TaskBase):
        if budget is not None or run_id is not None:
            raise TypeError("budget and run_id must be left out for a task: it has its own")
        about = _check_subject(store, subject)
        settings = _check_settings(namespace, about, model, policy, unused_after, trusted)
        _check_model(settings, asynchronous=store._asynchronous)
        run: Any = drive_async if store._asynchronous else drive
        return run(store._log, _consolidate_gen(store, settings))
    settings = _check_settings(namespace, subject, model, policy, unused_after, trusted)
    _check_model(settings, asynchronous=is_async(store.run))
    if run_id is not None:
        check_id(run_id, "run_id")
    options = check_open_options(
        f"Consolidate the memory {namespace!r}",
        {"namespace": namespace},
        None,
        DEFAULT_LEASE,
        None,
        False,
        TASK_TTL,
        False,
        (budget or DEFAULT_BUDGET) if model is not None else budget,
        subject,
    )
    if is_async(store.run):
        return _run_async(store, settings, options, run_id)
    return _run(store, settings, options, run_id)


def _run(
    store: Store | AsyncStore, settings: _Settings, options: OpenOptions, run_id: str | None
) -> ConsolidationResult:
    name = run_id or drive(store._log, _find_run(store._tenant, settings))

    def run(task: Task) -> ConsolidationResult:
        return drive(task._log, _consolidate_gen(task, settings))

    task = Task(
        store._log, store._task_key(name), options, {"namespace": settings.namespace}, False
    )
    result: ConsolidationResult = run_agent(task, Agent("consolidate", run), ConsolidationResult)
    return result


async def _run_async(
    store: Store | AsyncStore, settings: _Settings, options: OpenOptions, run_id: str | None
) -> ConsolidationResult:
    name = run_id
    if name is None:
        name = await drive_async(store._log, _find_run(store._tenant, settings))

    async def run(task: AsyncTask) -> ConsolidationResult:
        return await drive_async(task._log, _consolidate_gen(task, settings))

    given = {"namespace": settings.namespace}
    task = AsyncTask(store._log, store._task_key(name), options, given, True)
    result: ConsolidationResult = await run_agent_async(
        task, Agent("consolidate", run), ConsolidationResult
    )
    return result


@overload
def undo_consolidation(store: Store, namespace: str, run_id: str) -> UndoResult: ...


@overload
def undo_consolidation(
    store: AsyncStore, namespace: str, run_id: str
) -> Coroutine[Any, Any, UndoResult]: ...


def undo_consolidation(store: Store | AsyncStore, namespace: str, run_id: str) -> Any:
    """Undo what a consolidation applied: memories that it closed are recalled again.

    Memories that it made are forgotten, except what was said about them since. Calling it again
    does nothing. The call is awaited for an async store.

    Args:
        store: The store.
        namespace: The namespace of the memory.
        run_id: The `run_id` of the `ConsolidationResult`, or the id of the task it ran in.

    Returns:
        How many proposals were undone, and how many were left: what they made was superseded or
        forgotten since, or a later run replaced other memories with it. Undo that run first.

    Example:
        >>> holdfast.memory.undo_consolidation(store, "buyer", result.run_id)
        UndoResult(undone=3, left=0)
    """
    memory = _open_memory(store._log, store._tenant, namespace)
    run = check_id(run_id, "run_id")
    if is_async(store.run):
        return store._log.run_in_thread(undo_run, memory, run)
    return undo_run(memory, run)


@overload
def propose(
    store: Store,
    namespace: str,
    *,
    subject: str | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
) -> list[Proposal]: ...


@overload
def propose(
    store: AsyncStore,
    namespace: str,
    *,
    subject: str | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
) -> Coroutine[Any, Any, list[Proposal]]: ...


def propose(
    store: Store | AsyncStore,
    namespace: str,
    *,
    subject: str | None = None,
    unused_after: float | timedelta | None = DEFAULT_UNUSED,
    trusted: Authors = ("person",),
) -> Any:
    """Return what `consolidate` would propose without a model. Writes nothing.

    Takes the arguments of `consolidate`. The call is awaited for an async store.
    """
    settings = _check_settings(namespace, subject, None, "safe", unused_after, trusted)
    memory = _open_memory(store._log, store._tenant, namespace)
    if is_async(store.run):
        return store._log.run_in_thread(find_proposals, memory, settings.find)
    return find_proposals(memory, settings.find)


# -- arguments -------------------------------------------------------------------------------------


def _check_settings(
    namespace: str,
    subject: str | None,
    model: ConsolidationModel | None,
    policy: Policy,
    unused_after: float | timedelta | None,
    trusted: Authors,
) -> _Settings:
    check_id(namespace, "namespace")
    if subject is not None:
        check_id(subject, "subject")
    if model is not None and not callable(model):
        raise TypeError(f"model must be a function of messages, got {describe_value(model)}")
    if policy not in ("safe", "ask", "all") and (not callable(policy) or is_async(policy)):
        raise ValueError(
            "policy must be 'safe', 'ask', 'all' or a synchronous function of a proposal,"
            f" got {describe_value(policy)}"
        )
    unused = None if unused_after is None else check_seconds(unused_after, "unused_after")
    names = check_authors(trusted, "trusted")
    authors = (names,) if isinstance(names, str) else names or ()
    return _Settings(namespace, FindOptions(subject, unused, authors), model, policy)


def _check_model(settings: _Settings, *, asynchronous: bool) -> None:
    if settings.model is not None and is_async(settings.model) and not asynchronous:
        raise TypeError("model must be a synchronous function; or use the async store: store.aio")


def _check_subject(task: TaskBase, subject: str | None) -> str | None:
    """Return the subject of a task. Memories about another one must not get into its record."""
    own = task._require_session().state.subject
    if subject is not None and subject != own:
        raise ValueError(
            "subject must be the task's own, because the task records texts of the memories; open"
            " the task with that subject"
        )
    return own


def _open_memory(log: Log, tenant: str, namespace: str) -> Memory:
    return Memory(log, stream_key(tenant, KIND, check_id(namespace, "namespace")), None)


# -- the run ---------------------------------------------------------------------------------------


def _find_run(tenant: str, settings: _Settings) -> Operation[str]:
    """Return the id of the newest run of this memory that has not finished, or else a new id."""
    prefix = _run_prefix(settings.namespace)
    after, found = prefix, None
    while after.startswith(prefix):
        page, after = yield from list_tasks(tenant, None, after)
        for info in page:
            run = info.id.removeprefix(prefix)
            if run == info.id:
                after = ""
                break
            if info.status in ("finished", "cancelled") or "/" in run:
                continue
            try:
                view = yield from load_view(stream_key(tenant, TASK_KIND, info.id))
            except Erased:
                continue
            if view is not None and view.subject == settings.find.subject:
                found = info.id
        if not after:
            break
    return found or prefix + format_ids(new_append_context().id, 1)[0]


def _run_prefix(namespace: str) -> str:
    """Return how the ids of the runs of a namespace begin. A long name is shortened to a digest."""
    if len(namespace.encode()) > MAX_NAMESPACE_BYTES:
        namespace = hashlib.blake2b(namespace.encode(), digest_size=16).hexdigest()
    return f"consolidate/{namespace}/"


def _consolidate_gen(task: TaskBase, settings: _Settings) -> EffectGen[ConsolidationResult]:
    """Find, decide and apply; then ask the model, decide and apply; then ask the person."""
    # A second call in one task consolidates again. It is the second whenever the task runs again.
    number = task._require_session().counters.take(
        task._scope(), ("consolidate", settings.namespace)
    )
    run = _Run(task, settings, number)
    found = yield from run.step("find", run.find, list[Proposal])
    yield from run.settle_gen(found, "found")
    if settings.model is not None:
        yield from run.ask_model_gen()
    if run.to_ask:
        yield from run.ask_person_gen()
    return run.result()


class _Run:
    """The state of a run in one process. The task's record rebuilds it after a crash.

    `number` counts the calls of the task for this memory before this one.
    """

    def __init__(self, task: TaskBase, settings: _Settings, number: int) -> None:
        self._task, self._settings = task, settings
        session = task._require_session()
        suffix = f"#{number + 1}" if number else ""
        self._session, self._key = session, session.incarnation_hex + suffix
        self._step_key = settings.namespace + suffix
        self._memory = _open_memory(task._log, task._key.tenant, settings.namespace)
        self._applied: list[Proposal] = []
        self._left: list[Proposal] = []
        self._stale: list[Proposal] = []
        self._rejected: Counter[str] = Counter()
        self._calls = 0
        self._budget_exceeded = False
        self.to_ask: list[Proposal] = []

    def result(self) -> ConsolidationResult:
        return ConsolidationResult(
            run_id=self._task.id,
            applied=self._applied,
            left=self._left,
            stale=self._stale,
            rejected=dict(self._rejected),
            model_calls=self._calls,
            budget_exceeded=self._budget_exceeded,
        )

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        returns: Any,
        key: str | None = None,
        kind: str = "tool",
    ) -> EffectGen[Any]:
        """Run a function as a step of the task. Its key identifies it, not its arguments."""
        key = self._step_key if key is None else f"{self._step_key}/{key}"
        declared: Step[Any, Any] = Step(fn, StepOptions(returns=returns, kind=kind)).using(key=key)
        return request_step_gen(self._task, name, declared, (), {})

    def find(self) -> list[Proposal]:
        return find_proposals(self._memory, self._settings.find)

    # -- deciding and applying ---------------------------------------------------------------------

    def settle_gen(self, proposals: Sequence[Proposal], round: str) -> EffectGen[None]:
        """Apply what the policy accepts, and keep what a person must approve."""
        if not proposals:
            return

        def decide() -> list[Decision]:
            return [decide_proposal(self._settings.policy, one) for one in proposals]

        decisions = yield from self.step("decide", decide, list[Decision], round)
        for proposal, decision in zip(proposals, decisions, strict=True):
            if decision == "apply":
                yield from self._apply_gen(proposal)
            elif decision == "ask":
                self.to_ask.append(proposal)
            else:
                self._left.append(proposal)

    def _apply_gen(self, proposal: Proposal) -> EffectGen[None]:
        def apply() -> bool:
            subject = self._settings.find.subject
            return apply_proposal(self._memory, proposal, self._task.id, self._key, subject)

        done = yield from self.step("apply", apply, bool, proposal.id)
        (self._applied if done else self._stale).append(proposal)

    def ask_person_gen(self) -> EffectGen[None]:
        """Ask for approval of all proposals at once, and apply those that are approved."""
        payload = yield from self.step("describe", self._describe, list[dict[str, Any]])
        question = f"Apply these changes to the memory {self._settings.namespace!r}?"
        answer: bool | list[str] = yield from waits.ask(
            self._session, QUESTION, question, payload, bool | list[str], None
        )
        for proposal in self.to_ask:
            if answer is True or (answer is not False and proposal.id in answer):
                yield from self._apply_gen(proposal)
            else:
                self._left.append(proposal)

    def _describe(self) -> list[dict[str, Any]]:
        """Return the proposals with the texts that a person needs to decide on them."""
        ids = list(dict.fromkeys(name for one in self.to_ask for name in one.evidence))
        docs = load_open(self._memory, ids, self._settings.find.subject)
        texts = {doc.id: doc.text for doc in docs}
        return [
            {
                "id": one.id,
                "kind": one.kind,
                "memories": {name: texts.get(name) for name in one.evidence},
                "closes": list(one.closes),
                "keep": one.keep,
                "text": one.text,
                "reason": one.reason,
            }
            for one in self.to_ask
        ]

    # -- the model ---------------------------------------------------------------------------------

    def ask_model_gen(self) -> EffectGen[None]:
        """Show related memories to the model, and settle what it proposes."""
        groups: list[list[str]] = yield from self.step("group", self._group, list[list[str]])
        asked = {name for one in self.to_ask for name in one.evidence}
        for number, group in enumerate(groups, 1):
            shown = [name for name in group if name not in asked]
            if len(shown) < 2:
                continue
            call = self._make_call(shown)
            try:
                answer: CheckedAnswer = yield from self.step(
                    "propose", call, CheckedAnswer, str(number), "model"
                )
            except BudgetExceeded:
                self._budget_exceeded = True
                return
            self._calls += 1
            self._rejected.update(answer.rejected)
            yield from self.settle_gen(answer.proposals, str(number))

    def _group(self) -> list[list[str]]:
        now = clock.time()
        docs = load_docs(self._memory, self._settings.find.subject, now)
        return group_related([doc for doc in docs if is_open(doc, now)])

    def _make_call(self, ids: Sequence[str]) -> Callable[[], Any]:
        """Return the function that shows memories to the model and checks its answer."""
        model, find = self._settings.model, self._settings.find
        assert model is not None

        def check(docs: Sequence[MemoryDoc], answer: object) -> CheckedAnswer:
            input_tokens, output_tokens = extract_usage(answer)
            if input_tokens or output_tokens:
                current_step().use(input_tokens=input_tokens, output_tokens=output_tokens)
            return check_answer(answer, docs, find.trusted)

        def call() -> CheckedAnswer:
            docs = load_open(self._memory, ids, find.subject)
            return check(docs, model(build_messages(docs))) if len(docs) > 1 else CheckedAnswer()

        async def call_async() -> CheckedAnswer:
            docs = await self._task._log.run_in_thread(load_open, self._memory, ids, find.subject)
            if len(docs) < 2:
                return CheckedAnswer()
            return check(docs, await model(build_messages(docs)))

        return call_async if is_async(model) else call


def decide_proposal(policy: Policy, proposal: Proposal) -> Decision:
    """Return what a policy says. A protected proposal is never applied without a question."""
    if callable(policy):
        decision = policy(proposal)
        if decision not in ("apply", "ask", "leave"):
            raise ValueError(
                f"policy must return 'apply', 'ask' or 'leave', got {describe_value(decision)}"
            )
    elif policy == "all" or proposal.safe:
        decision = "apply"
    else:
        decision = "ask" if policy == "ask" else "leave"
    return "ask" if decision == "apply" and proposal.protected else decision
