"""The store that `holdfast.open` returns: `Store`, and `AsyncStore` for async code."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

from .admin.health import Health, read_health
from .admin.purge_expired import SweepResult, sweep, sweep_async
from .backends import Head, StreamKey
from .conversations import AsyncConversation, Conversation, ConversationInfo
from .conversations.lifecycle import list_conversations
from .log import operations as ops
from .log.events import EventType
from .log.ids import check_tenant, stream_key
from .log.log import Log
from .log.operations.stream_ops import list_streams
from .log.operations.subjects import SubjectRegistrar
from .state.state import AsyncState, State, StateInfo
from .streams.stream import AsyncStream, Stream, StreamInfo
from .tasks import AsyncTask, Budget, Task, TaskInfo, TaskView
from .tasks.agents.declare import find_agent
from .tasks.agents.run import run_agent, run_agent_async
from .tasks.artifacts import Artifact, AsyncArtifact, find_artifact
from .tasks.control.requests import (
    agent_open_options,
    check_status,
    prepare_answer,
    prepare_resolve,
    prepare_signal,
    prepare_submit,
)
from .tasks.run.claim import TASK_TTL, check_open_options
from .tasks.state.load import list_tasks, load_view

if TYPE_CHECKING:
    from .admin.anchors import Anchor, AnchorKey
    from .admin.audit import Audit
    from .admin.erasure import Erasable, EraseResult
    from .admin.verify.report import VerifyProgress, VerifyResult
    from .encryption.rotation import RekeyResult
    from .keys import KeyLike
    from .memory import Weights
    from .memory.memory import AsyncMemory, Memory
    from .memory.model import MemoryInfo
    from .memory.vectors.embedding import Embed
    from .tasks.checkpoint import AgentCheckpoint
    from .tasks.replay.replay import ReplayResult
    from .worker.worker import RunResult

T = TypeVar("T")
R = TypeVar("R")


Page = ops.Operation[tuple[list[T], str]]
"""An operation that lists a page and returns where the next one starts, or an empty string."""


class StoreBase:
    """What `Store` and `AsyncStore` share."""

    def __init__(self, log: Log, tenant: str, *, owner: bool = True) -> None:
        self._log, self._tenant, self._owner = log, tenant, owner

    @property
    def tenant(self) -> str:
        return self._tenant

    def _task_key(self, id: str) -> StreamKey:
        return stream_key(self._tenant, "task", id)

    def _list_heads(self, kind: str) -> Callable[[str], Page[Head]]:
        return lambda after: list_streams(self._tenant, kind, after)

    def __repr__(self) -> str:
        backend = type(self._log.backend).__name__
        return f"<{type(self).__name__} on {backend}, tenant {self._tenant!r}>"


class Store(StoreBase):
    """An open store, as `holdfast.open` returns it. Any number of threads may share it.

    `get_task`, `memory.get` and other methods named `get` return None if nothing is found. All
    others raise `NotFound`, unless they take a default. Listings yield `...Info` objects, read page
    by page. `aio` is the same store for async code. Closing it finishes the writes in flight.
    """

    @property
    def aio(self) -> AsyncStore:
        """The async view of this store: the same names, awaited."""
        return AsyncStore(self._log, self._tenant, owner=False)

    def for_tenant(self, tenant: str) -> Store:
        """Return the same store for another tenant: the same connection, none of the data.

        Closing the returned store has no effect.
        """
        return Store(self._log, check_tenant(tenant), owner=False)

    def conversation(self, id: str, *, subject: str | None = None) -> Conversation:
        """Return a conversation. It exists from its first message; there is no I/O before that.

        Args:
            id: Its id, unique within the tenant.
            subject: The person it is about, so that `store.erase(subject=...)` finds it. It is
                recorded before the next message is stored.

        Returns:
            A handle. Several handles may have the same id.

        Raises:
            InvalidId: The id is empty, too long, or not text.

        Example:
            >>> chat = store.conversation("support-42")
            >>> chat.append({"role": "user", "content": "Hello"}, id="request-1")
        """
        key = stream_key(self._tenant, "conversation", id)
        return Conversation(
            self._log, key, None, None if subject is None else SubjectRegistrar(key, subject)
        )

    def conversations(self) -> Iterator[ConversationInfo]:
        """Yield the conversations that have not expired, ordered by id, read page by page."""
        return self._iterate(lambda after: list_conversations(self._tenant, after))

    def task(
        self,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        agent: str | None = None,
        lease: float | timedelta = 30.0,
        wait: float | timedelta | None = None,
        steal: bool = False,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Task:
        """Return a task for a `with` block, which starts it, or resumes it if the id exists.

        There is no I/O until it is entered. One process works on a task at a time. Entering takes
        over from a dead process at once, and waits for a live one.

        Args:
            id: Its id, unique within the tenant.
            goal: The goal of the task. On an existing id it must be the same, or left out.
            input: The input of the task; the same rule applies.
            agent: The name of the agent whose task it is. Decisions and discoveries of the task are
                saved to that agent's memory.
            lease: How long another process waits before it takes over, in seconds or as a
                timedelta.
            wait: How long to wait for a live owner. None: one `lease`.
            steal: Take the task from its owner, even if that is alive.
            ttl: How long to keep the task after it has ended. None: forever.
            restart: Start an expired id again.
            budget: The limit for its model calls. The most recent budget applies.
            subject: The person it is about, with its conversation, children and memories; see
                `erase`.

        Returns:
            The task, not entered yet.

        Raises:
            ValueError: An argument is out of range.

            Entering it may raise `LeaseHeld` (another process has it), `ReplayMismatch` (a
            different goal or input is recorded) or `Expired`.

        Example:
            >>> with store.task("claim-42", goal="Settle claim 42") as task:
            ...     task.step("read", read_claim, 42)
            ...     task.finish("settled")
        """
        options = check_open_options(
            goal, input, agent, lease, wait, steal, ttl, restart, budget, subject
        )
        return Task(self._log, self._task_key(id), options, input, False)

    def get_task(self, id: str) -> TaskView | None:
        """Return the current state of a task; None if there is none, or it has expired."""
        return ops.run(self._log, load_view(self._task_key(id)))

    def tasks(self, *, status: str | None = None) -> Iterator[TaskInfo]:
        """Yield the tasks that have not expired, ordered by id; with `status`, only those."""
        check_status(status)
        return self._iterate(lambda after: list_tasks(self._tenant, status, after))

    @overload
    def run(
        self,
        agent: Callable[..., R],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> R: ...

    @overload
    def run(
        self,
        agent: str,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Any: ...

    def run(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Any:
        """Run an agent's task to its end in this process, and return its result.

        If the task has finished already, its stored result is returned and nothing runs.

        Args:
            agent: A function that takes the task, or the name of a registered one
                (`@holdfast.agent`).
            id: The task's id.
            goal: The goal of the task.
            input: The input of the task.
            wait: How long to wait for another process that has the task. None: one lease.
            ttl: How long to keep the task after it has ended. None: forever.
            restart: Start an expired id again.
            budget: The limit for its model calls and those of its children.
            subject: The person it is about; see `erase`.

        Returns:
            The agent's result, of the return type that its function declares.

        Raises:
            Suspended: The task waits for an answer, a signal or a time. Run it again later, or let
                a worker do it.
            LeaseHeld: Another process has the task.
            NotFound: No agent of that name is registered in this process.

        Example:
            >>> store.run(claims, "claim-42", goal="Settle claim 42")
            'settled'
        """
        definition = find_agent(agent)
        options = agent_open_options(agent, goal, input, ttl, wait, restart, budget, subject)
        task = Task(self._log, self._task_key(id), options, input, False)
        return run_agent(task, definition, definition.returns)

    def replay(
        self, agent: str | Callable[..., Any], id: str, *, version: int | None = None
    ) -> ReplayResult:
        """Run an agent against the record of its task, up to `version`.

        No step runs, and nothing is written or waited for. The result has the first divergence from
        the record, if there is one. See `holdfast.replay`.
        """
        from .tasks.replay.replay import replay_agent

        return replay_agent(self._log, self._task_key(id), find_agent(agent), version)

    def submit(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        at: float | datetime | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> bool:
        """Queue an agent's task for a worker, now or `at` a time.

        A task that has not finished may be submitted again: a worker then retries it, even if it
        was given up as failed or stuck.

        Args:
            agent: The name of an agent, or a registered function. A name may belong to an agent
                that only another process registers.
            id: The task's id.
            goal: The goal of the task.
            input: The input of the task.
            at: When to start, as Unix seconds or a datetime with a time zone. None: now.
            ttl: How long to keep the task after it has ended. None: forever.
            restart: Start an expired id again.
            budget: The limit for its model calls and those of its children. After
                `BudgetExceeded`, a larger budget lets it resume.
            subject: The person it is about; see `erase`.

        Returns:
            True if the task is new.

        Raises:
            ReplayMismatch: The id exists with a different agent, goal or input.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.submit("claims", "claim-42", input={"claim": 42})
            True
        """
        options = agent_open_options(agent, goal, input, ttl, None, restart, budget, subject)
        make = prepare_submit(self._log, self._task_key(id), options, at)
        return ops.run_until_settled(self._log, make)

    def run_due(self, *, limit: int | None = None) -> list[RunResult]:
        """Run all due tasks of the agents registered here, one by one, and return the results.

        `holdfast worker app.py` does this continuously, several tasks at once.
        """
        from .worker.worker import run_due

        return run_due(self, limit)

    def answer(
        self,
        task_id: str,
        name: str,
        value: object,
        *,
        by: str | None = None,
        question: str | None = None,
    ) -> None:
        """Answer a question that a task asks (`task.ask`). A worker then continues the task.

        Args:
            task_id: The task that asks.
            name: The name of the question.
            value: The answer, of the type that the question requires.
            by: The person who answers.
            question: The id of the question as displayed (`view.questions`). If the task has
                replaced the question since, the answer is rejected rather than applied to the new
                one.

        Raises:
            AlreadyAnswered: The question has an answer already.
            NotFound: The task has no such open question.
            TypeError: The answer does not have the type that the question requires.

        Example:
            >>> store.answer("payout-1", "payout", True, by="ann")
        """
        ops.run_until_settled(
            self._log, prepare_answer(self._log, self._task_key(task_id), name, value, by, question)
        )

    def signal(
        self, task_id: str, name: str, payload: object = None, *, id: str | None = None
    ) -> bool:
        """Send a signal to a task. It is delivered to `task.wait_for(name)`, now or later.

        Args:
            task_id: The task.
            name: The name of the signal.
            payload: The data of the signal, of the type that the task waits for.
            id: Your own id for it: a signal sent twice with the same id is delivered once.

        Returns:
            False if a signal with this `id` was sent before.

        Raises:
            NotFound: There is no such task.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.signal("order-7", "paid", {"amount": 30}, id="webhook-123")
            True
        """
        make = prepare_signal(self._log, self._task_key(task_id), name, payload, id)
        return ops.run_until_settled(self._log, make)

    def resolve(
        self, task_id: str, step: str, *, result: object = ..., retry: bool = False
    ) -> None:
        """Resolve a step whose outcome is unknown: it was done, or it has to run again.

        Args:
            task_id: The task.
            step: The step's path, or its name if only one step has it.
            result: The step was done, and this is its return value.
            retry: The step was not done, so run it again. This also retries a failed step.

        Raises:
            NotFound: The task has no such step in doubt.
            LeaseHeld: The step is running now.
            TaskEnded: The task has finished or was cancelled.
            ValueError: Neither or both of `result` and `retry` are given.

        Example:
            >>> store.resolve("claim-42", "pay", result="receipt-9")
        """
        ops.run_until_settled(
            self._log, prepare_resolve(self._log, self._task_key(task_id), step, result, retry)
        )

    def artifact(self, task_id: str, name: str) -> Artifact:
        """Return a file attached to a task, for reading; `NotFound` if there is none."""
        return Artifact(self._log, ops.run(self._log, find_artifact(self._task_key(task_id), name)))

    def model_input(self, task_id: str, step: str) -> list[Any]:
        """Return the messages that a step sent to its model, as they were. `step` is its path.

        They are found even if they were rewound or summarized since. Raises `NotFound` if the step
        recorded no messages, or the conversation was deleted.
        """
        from .tasks.steps.model_input import read_model_input

        return ops.run_until_settled(
            self._log, lambda: read_model_input(self._task_key(task_id), step)
        )

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> int:
        """Save a checkpoint document durably and return its version. Sets `updated_at`.

        If another one was saved since this one was loaded, `Conflict` is raised and nothing is
        written. All versions are in `store.state(f"checkpoint/{task_id}").history()`.
        """
        from .tasks.checkpoint import save_checkpoint

        return ops.run(self._log, save_checkpoint(self._log, self._tenant, checkpoint))

    def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None:
        """Return the saved checkpoint; if none was saved, one made from the task of this id.

        You may modify it. None if there is neither, as checkpointing loops expect.
        """
        from .tasks.checkpoint import load_checkpoint

        return ops.run_until_settled(self._log, lambda: load_checkpoint(self._tenant, task_id))

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> Stream:
        """Return a stream of your own events. It exists from its first append; no I/O until then.

        Args:
            id: Its id, unique within the tenant.
            types: The event types it may contain. Without them, any event of plain JSON values.

        Returns:
            A handle.

        Raises:
            InvalidId: The id is empty, too long, or not text.

        Example:
            >>> orders = store.stream("orders-7", types=[EventType("order.placed", Order)])
            >>> orders.append(("order.placed", Order("A1")), id="request-17")
        """
        return Stream(self._log, stream_key(self._tenant, "stream", id), types)

    def streams(self) -> Iterator[StreamInfo]:
        """Yield your own streams, ordered by id, read page by page."""
        return map(StreamInfo.of, self._iterate(self._list_heads("stream")))

    @overload
    def state(self, id: str, type: type[T]) -> State[T]: ...

    @overload
    def state(self, id: str, type: Any = Any) -> State[Any]: ...

    def state(self, id: str, type: Any = Any) -> State[Any]:
        """Return a document that is saved as a whole and keeps all its versions. No I/O until used.

        Args:
            id: Its id, unique within the tenant.
            type: The type of its value: a dataclass, a `msgspec.Struct`, a pydantic model, and so
                on. Without one, plain JSON values.

        Returns:
            A handle that loads and saves values of that type.

        Raises:
            TypeError: The type cannot be stored.

        Example:
            >>> plan = store.state("plan-7", Plan)
            >>> plan.save(Plan(goal="Draft the checklist"))
            1
            >>> plan.load().goal
            'Draft the checklist'
        """
        return State(self._log, stream_key(self._tenant, "state", id), type)

    def states(self) -> Iterator[StateInfo]:
        """Yield your state documents, ordered by id, read page by page."""
        return map(StateInfo.of, self._iterate(self._list_heads("state")))

    def memory(
        self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None
    ) -> Memory:
        """Return the long-term memory of an agent, a user or a team. No I/O until it is used.

        Args:
            namespace: The agent, user or team. Tasks use the name of their agent.
            embed: A function from a list of texts to a list of vectors
                (`holdfast.memory.embedders`), to search by meaning too. It is called on recall,
                never on remember. None: the store's own.
            weights: How much relevance, age and the other factors count on recall.

        Returns:
            A handle.

        Raises:
            InvalidId: The namespace is empty, too long, or not text.

        Example:
            >>> memory = store.memory("buyer")
            >>> memory.remember("Ann signs the orders")
            >>> memory.recall("Who signs?")[0].text
            'Ann signs the orders'
        """
        from .memory.memory import Memory

        return Memory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    def memory_namespaces(self) -> Iterator[MemoryInfo]:
        """Yield the memory namespaces, ordered by name, read page by page."""
        from .memory.model import MemoryInfo

        return map(MemoryInfo.of, self._iterate(self._list_heads("memory")))

    def _iterate(self, list_page: Callable[[str], Page[T]]) -> Iterator[T]:
        after = ""
        while True:
            page, after = ops.run(self._log, list_page(after))
            yield from page
            if not after:
                return

    def sweep(
        self,
        *,
        dry_run: bool = False,
        limit: int = 1000,
        grace: float | timedelta = timedelta(days=1),
        force: bool = False,
    ) -> SweepResult:
        """Purge the tasks and conversations that expired more than `grace` ago.

        If the process dies, the next sweep finishes the work. A conversation that existing forks
        start with is spared.

        Args:
            dry_run: Only report what would be purged.
            limit: The maximum number to purge.
            grace: How long to keep expired data, in seconds or as a timedelta.
            force: Lift the limit that protects against a wrong clock: at most half of the tasks and
                conversations within 24 hours.

        Returns:
            The purged and the spared streams.

        Raises:
            ValueError: An argument is out of range.

        Example:
            >>> store.sweep(grace=timedelta(days=7)).deleted
        """
        return sweep(
            self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force
        )

    def erase(
        self,
        what: Erasable | None = None,
        *,
        subject: str | None = None,
        reason: str = "erased by the program",
    ) -> EraseResult:
        """Erase data permanently: one thing, or everything about a subject.

        The keys are destroyed, so the records can no longer be read, in any copy. Blobs and the
        memory index are deleted too. Reading raises `Erased` from then on. The hash chain still
        verifies, and the audit stream records what was erased, when and why.

        Args:
            what: A conversation, task, memory, state document or stream.
            subject: The person the data is about, in place of `what`.
            reason: Why, for the audit stream.

        Returns:
            The erased streams and memories.

        Raises:
            NotEncrypted: The store is not encrypted, so there is no key to destroy.
            TypeError: Neither or both of `what` and `subject` are given.

        Example:
            >>> store.erase(subject="person-7", reason="asked for by mail")
        """
        from .admin.erasure import erase

        return erase(self._log, self._tenant, what, subject, reason)

    def rekey(
        self, key: KeyLike, *, progress: Callable[[int], object] | None = None
    ) -> RekeyResult:
        """Rotate the key of an encrypted store while other processes use it.

        Data keys are re-wrapped; records stay as they are. If the process dies, call it again to
        finish. Other processes need both keys (`key=[new, old]`) before this is called, and the new
        one after it. `progress` is called with the number of re-wrapped data keys.
        """
        from .encryption.rotation import rekey

        return rekey(self._log, key, progress)

    def verify(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        anchor_key: AnchorKey | None = None,
        since: str | os.PathLike[str] | None = None,
        all_tenants: bool = False,
        progress: Callable[[VerifyProgress], object] | None = None,
    ) -> VerifyResult:
        """Read the whole store and check its hash chains, stream heads and blobs.

        A chain shows that records were changed, inserted, moved or removed. Only an anchor shows
        that the newest records or a whole stream are gone, or that an old backup was restored.

        Args:
            anchor: The path of an anchor file (`store.anchor`) to compare with.
            anchor_key: The anchor's key; for Ed25519 the public half.
            since: An anchor, in place of `anchor`: trust everything up to it, and read only what
                was written since.
            all_tenants: Check all tenants, not only this one.
            progress: Called from time to time, in the calling thread.

        Returns:
            The streams checked, and each problem with its place. Damage is reported, not raised.

        Raises:
            AnchorRefused: The anchor itself was altered, or `anchor_key` is not its key.

        Example:
            >>> store.verify().ok
            True
        """
        from .admin.verify.store import verify

        tenant = None if all_tenants else self._tenant
        return verify(
            self._log, tenant, anchor=anchor, anchor_key=anchor_key, since=since, progress=progress
        )

    def anchor(
        self,
        file: str | os.PathLike[str] | IO[str],
        *,
        key: AnchorKey | None = None,
        all_tenants: bool = False,
        overwrite: bool = False,
    ) -> Anchor:
        """Write a signed snapshot of all stream heads to a path or an open text file.

        `verify` compares the store with it, so keep it apart from the store. `key` is at least 32
        random bytes (HMAC-SHA256), an Ed25519 private key, or the path of a file with one. Raises
        `AlreadyExists` if the file exists, unless `overwrite=True`. The file is written atomically,
        and only its owner may read it.
        """
        from .admin.anchors import write_anchor
        from .backends.retrying import RetryingBackend

        tenant = None if all_tenants else self._tenant
        return write_anchor(
            RetryingBackend(self._log.backend), tenant, key, file, overwrite=overwrite
        )

    def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """Return who did what, and when, in a task or another `kind` of stream, in order.

        Entries of the audit stream about its deletion are included, even if the stream is gone.
        Entries have names, times and people; content only with `content=True`. Print the result, or
        use `text()`, `jsonl()` or `csv()`. Raises `NotFound` if there are no entries.
        """
        from .admin.audit import audited_key, load_audit

        return ops.run(self._log, load_audit(audited_key(self._tenant, kind, id), content=content))

    def health(self) -> Health:
        """Return the backend, location, durability and size of the store, and its oldest lease."""
        return ops.run(self._log, read_health(self._log.describe(), self._tenant))

    def close(self) -> None:
        """Finish the writes in flight and close the backend. Closing twice is harmless."""
        if self._owner:
            self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStore(StoreBase):
    """An open store for async code. Several event loops may use it at once."""

    def for_tenant(self, tenant: str) -> AsyncStore:
        """`Store.for_tenant`."""
        return AsyncStore(self._log, check_tenant(tenant), owner=False)

    def conversation(self, id: str, *, subject: str | None = None) -> AsyncConversation:
        """`Store.conversation`, with awaited methods."""
        key = stream_key(self._tenant, "conversation", id)
        return AsyncConversation(
            self._log, key, None, None if subject is None else SubjectRegistrar(key, subject)
        )

    def conversations(self) -> AsyncIterator[ConversationInfo]:
        """`Store.conversations` as an async iterator."""
        return self._iterate(lambda after: list_conversations(self._tenant, after))

    def task(
        self,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        agent: str | None = None,
        lease: float | timedelta = 30.0,
        wait: float | timedelta | None = None,
        steal: bool = False,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> AsyncTask:
        """`Store.task`, to be entered with `async with`."""
        options = check_open_options(
            goal, input, agent, lease, wait, steal, ttl, restart, budget, subject
        )
        return AsyncTask(self._log, self._task_key(id), options, input, True)

    async def get_task(self, id: str) -> TaskView | None:
        """`Store.get_task`, awaited."""
        return await ops.run_async(self._log, load_view(self._task_key(id)))

    def tasks(self, *, status: str | None = None) -> AsyncIterator[TaskInfo]:
        """`Store.tasks` as an async iterator."""
        check_status(status)
        return self._iterate(lambda after: list_tasks(self._tenant, status, after))

    @overload
    async def run(
        self,
        agent: Callable[..., Awaitable[R]],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> R: ...

    @overload
    async def run(
        self,
        agent: Callable[..., R],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> R: ...

    @overload
    async def run(
        self,
        agent: str,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Any: ...

    async def run(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | timedelta | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Any:
        """`Store.run`, awaited; a synchronous function runs in a thread."""
        definition = find_agent(agent)
        options = agent_open_options(agent, goal, input, ttl, wait, restart, budget, subject)
        key = self._task_key(id)
        if definition.is_async:
            return await run_agent_async(
                AsyncTask(self._log, key, options, input, True), definition, definition.returns
            )
        import asyncio

        return await asyncio.to_thread(
            run_agent, Task(self._log, key, options, input, False), definition, definition.returns
        )

    async def replay(
        self, agent: str | Callable[..., Any], id: str, *, version: int | None = None
    ) -> ReplayResult:
        """`Store.replay`, awaited; a synchronous function runs in a thread."""
        from .tasks.replay.replay import replay_agent_async

        return await replay_agent_async(self._log, self._task_key(id), find_agent(agent), version)

    async def submit(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        at: float | datetime | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> bool:
        """`Store.submit`, awaited."""
        options = agent_open_options(agent, goal, input, ttl, None, restart, budget, subject)
        make = prepare_submit(self._log, self._task_key(id), options, at)
        return await ops.run_until_settled_async(self._log, make)

    async def run_due(self, *, limit: int | None = None) -> list[RunResult]:
        """`Store.run_due`, awaited."""
        import asyncio

        from .worker.worker import run_due

        return await asyncio.to_thread(run_due, Store(self._log, self._tenant, owner=False), limit)

    async def answer(
        self,
        task_id: str,
        name: str,
        value: object,
        *,
        by: str | None = None,
        question: str | None = None,
    ) -> None:
        """`Store.answer`, awaited."""
        make = prepare_answer(self._log, self._task_key(task_id), name, value, by, question)
        await ops.run_until_settled_async(self._log, make)

    async def signal(
        self, task_id: str, name: str, payload: object = None, *, id: str | None = None
    ) -> bool:
        """`Store.signal`, awaited."""
        make = prepare_signal(self._log, self._task_key(task_id), name, payload, id)
        return await ops.run_until_settled_async(self._log, make)

    async def resolve(
        self, task_id: str, step: str, *, result: object = ..., retry: bool = False
    ) -> None:
        """`Store.resolve`, awaited."""
        make = prepare_resolve(self._log, self._task_key(task_id), step, result, retry)
        await ops.run_until_settled_async(self._log, make)

    async def artifact(self, task_id: str, name: str) -> AsyncArtifact:
        """`Store.artifact`, awaited."""
        record = await ops.run_async(self._log, find_artifact(self._task_key(task_id), name))
        return AsyncArtifact(self._log, record)

    async def model_input(self, task_id: str, step: str) -> list[Any]:
        """`Store.model_input`, awaited."""
        from .tasks.steps.model_input import read_model_input

        key = self._task_key(task_id)
        return await ops.run_until_settled_async(self._log, lambda: read_model_input(key, step))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> Coroutine[Any, Any, int]:
        """`Store.save_checkpoint`, awaited. The document is copied when this is called."""
        from .tasks.checkpoint import save_checkpoint

        return ops.run_async(self._log, save_checkpoint(self._log, self._tenant, checkpoint))

    async def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None:
        """`Store.load_checkpoint`, awaited."""
        from .tasks.checkpoint import load_checkpoint

        return await ops.run_until_settled_async(
            self._log, lambda: load_checkpoint(self._tenant, task_id)
        )

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> AsyncStream:
        """`Store.stream`, with awaited methods."""
        return AsyncStream(self._log, stream_key(self._tenant, "stream", id), types)

    async def streams(self) -> AsyncIterator[StreamInfo]:
        """`Store.streams` as an async iterator."""
        async for head in self._iterate(self._list_heads("stream")):
            yield StreamInfo.of(head)

    @overload
    def state(self, id: str, type: type[T]) -> AsyncState[T]: ...

    @overload
    def state(self, id: str, type: Any = Any) -> AsyncState[Any]: ...

    def state(self, id: str, type: Any = Any) -> AsyncState[Any]:
        """`Store.state`, with awaited methods."""
        return AsyncState(self._log, stream_key(self._tenant, "state", id), type)

    async def states(self) -> AsyncIterator[StateInfo]:
        """`Store.states` as an async iterator."""
        async for head in self._iterate(self._list_heads("state")):
            yield StateInfo.of(head)

    def memory(
        self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None
    ) -> AsyncMemory:
        """`Store.memory`, with awaited methods. `embed` may be a coroutine function."""
        from .memory.memory import AsyncMemory

        return AsyncMemory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    async def memory_namespaces(self) -> AsyncIterator[MemoryInfo]:
        """`Store.memory_namespaces` as an async iterator."""
        from .memory.model import MemoryInfo

        async for head in self._iterate(self._list_heads("memory")):
            yield MemoryInfo.of(head)

    async def _iterate(self, list_page: Callable[[str], Page[T]]) -> AsyncIterator[T]:
        after = ""
        while True:
            page, after = await ops.run_async(self._log, list_page(after))
            for item in page:
                yield item
            if not after:
                return

    async def sweep(
        self,
        *,
        dry_run: bool = False,
        limit: int = 1000,
        grace: float | timedelta = timedelta(days=1),
        force: bool = False,
    ) -> SweepResult:
        """`Store.sweep`, awaited."""
        return await sweep_async(
            self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force
        )

    async def erase(
        self,
        what: Erasable | None = None,
        *,
        subject: str | None = None,
        reason: str = "erased by the program",
    ) -> EraseResult:
        """`Store.erase`, awaited."""
        from .admin.erasure import erase

        return await self._log.run_in_thread(erase, self._log, self._tenant, what, subject, reason)

    async def rekey(
        self, key: KeyLike, *, progress: Callable[[int], object] | None = None
    ) -> RekeyResult:
        """`Store.rekey`, awaited. `progress` is called in a thread."""
        from .encryption.rotation import rekey

        return await self._log.run_in_thread(rekey, self._log, key, progress)

    async def verify(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        anchor_key: AnchorKey | None = None,
        since: str | os.PathLike[str] | None = None,
        all_tenants: bool = False,
        progress: Callable[[VerifyProgress], object] | None = None,
    ) -> VerifyResult:
        """`Store.verify`, awaited. It runs in threads, which also call `progress`."""
        from .admin.verify.store import verify_async

        tenant = None if all_tenants else self._tenant
        return await verify_async(
            self._log, tenant, anchor=anchor, anchor_key=anchor_key, since=since, progress=progress
        )

    async def anchor(
        self,
        file: str | os.PathLike[str] | IO[str],
        *,
        key: AnchorKey | None = None,
        all_tenants: bool = False,
        overwrite: bool = False,
    ) -> Anchor:
        """`Store.anchor`, awaited."""
        import asyncio

        store = Store(self._log, self._tenant, owner=False)
        return await asyncio.to_thread(
            store.anchor, file, key=key, all_tenants=all_tenants, overwrite=overwrite
        )

    async def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """`Store.audit`, awaited."""
        from .admin.audit import audited_key, load_audit

        return await ops.run_async(
            self._log, load_audit(audited_key(self._tenant, kind, id), content=content)
        )

    async def health(self) -> Health:
        """`Store.health`, awaited."""
        description = await self._log.run_in_thread(self._log.describe)
        return await ops.run_async(self._log, read_health(description, self._tenant))

    async def close(self) -> None:
        """`Store.close`, awaited."""
        if self._owner:
            await self._log.close_async()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
