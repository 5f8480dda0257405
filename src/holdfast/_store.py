"""The store: what users open, and its async twin."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

from .admin.health import Health, examine
from .admin.retention import SweepResult, sweep, sweep_async
from .backends import Head
from .conversations import AsyncConversation, Conversation, ConversationInfo
from .conversations.lifecycle import list_conversations
from .log import operations as ops
from .log.events import EventType
from .log.ids import checked_tenant, stream_key
from .log.log import Log
from .log.stream_ops import list_streams
from .log.subjects import SubjectRegistrar
from .state.state import AsyncState, State, StateInfo
from .streams.stream import AsyncStream, Stream, StreamInfo
from .tasks import AsyncTask, Budget, Task, TaskInfo, TaskView
from .tasks.agents.declare import find as find_agent
from .tasks.agents.run import run_agent, run_agent_async
from .tasks.artifacts import Artifact, AsyncArtifact, find_artifact
from .tasks.control.listing import (
    TASK_TTL,
    answering,
    checked_status,
    get_task,
    list_tasks,
    resolving,
    signalling,
    submitting,
    wanted_by,
)
from .tasks.run.claim import as_wanted

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


class Store:
    """An open store: `holdfast.open` makes one. Any number of threads may use it.

    `get_task`, `memory.get` and other methods named `get` return None for what is not there. All
    others raise `NotFound`, unless they take a default. Listings yield `...Info` objects, read page
    by page. `aio` is the same store for async code. Closing it finishes the writes in flight.
    """

    def __init__(self, log: Log, tenant: str, *, owner: bool = True) -> None:
        self._log, self._tenant, self._owner = log, tenant, owner

    @property
    def tenant(self) -> str:
        return self._tenant

    @property
    def aio(self) -> AsyncStore:
        """The async view of this store: the same names, awaited."""
        return AsyncStore(self._log, self._tenant, owner=False)

    def for_tenant(self, tenant: str) -> Store:
        """The same store for another tenant, who shares the engine and none of the data.

        Closing such a view closes nothing.
        """
        return Store(self._log, checked_tenant(tenant), owner=False)

    def conversation(self, id: str, *, subject: str | None = None) -> Conversation:
        """A conversation. It exists from its first message; there is no I/O before that.

        Args:
            id: Its id, unique within the tenant.
            subject: Whom it is about, so that `store.erase(subject=...)` finds it. It is noted
                before the next message is stored.

        Returns:
            A handle. Make as many as you like for one id.

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
        """The conversations that have not expired, ordered by id, read page by page."""
        after = ""
        while True:
            found, after = ops.run(self._log, list_conversations(self._tenant, after))
            yield from found
            if not after:
                return

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
        """A task, to be entered: the same id starts it, or continues it.

        There is no I/O until it is entered. One process works on a task at a time. Entering takes
        over from a dead process at once, and waits for a live one.

        Args:
            id: Its id, unique within the tenant.
            goal: What the task is to reach. On an existing id it must be the same, or left out.
            input: What the task works on; the same rule holds.
            agent: The name of the agent whose task it is. Its memory gets what the task leaves
                behind.
            lease: How long another process waits before it takes over, in seconds or as a
                timedelta.
            wait: How long to wait for a live owner. None: one `lease`.
            steal: Take the task from whoever has it.
            ttl: How long the task is kept after it has ended. None: forever.
            restart: Start an expired id again.
            budget: How much its model calls may use. The newest one given counts.
            subject: Whom it is about, with its conversation, children and memories; see `erase`.

        Returns:
            A task for a `with` block.

        Raises:
            ValueError: An argument is out of range.

            Entering it may raise `LeaseHeld` (another process has it), `ReplayMismatch` (another
            goal or input is recorded) or `Expired`.

        Example:
            >>> with store.task("claim-42", goal="Settle claim 42") as task:
            ...     task.step("read", read_claim, 42)
            ...     task.finish("settled")
        """
        wanted = as_wanted(goal, input, agent, lease, wait, steal, ttl, restart, budget, subject)
        return Task(self._log, stream_key(self._tenant, "task", id), wanted, input, False)

    def get_task(self, id: str) -> TaskView | None:
        """A task as it stands; None if there is none, or it has expired."""
        return ops.run(self._log, get_task(stream_key(self._tenant, "task", id)))

    def tasks(self, *, status: str | None = None) -> Iterator[TaskInfo]:
        """The tasks that have not expired, ordered by id; with `status`, only those."""
        checked_status(status)
        after = ""
        while True:
            found, after = ops.run(self._log, list_tasks(self._tenant, status, after))
            yield from found
            if not after:
                return

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

        If the task has finished already, the stored result is returned and nothing runs.

        Args:
            agent: A function that takes the task, or the name of a registered one
                (`@holdfast.agent`).
            id: The task's id.
            goal: What the task is to reach.
            input: What the task works on.
            wait: How long to wait for another process that has the task. None: one lease.
            ttl: How long the task is kept after it has ended. None: forever.
            restart: Start an expired id again.
            budget: How much its model calls and those of its children may use.
            subject: Whom it is about; see `erase`.

        Returns:
            What the agent returned, of the type that its function is annotated to return.

        Raises:
            Suspended: The task waits for an answer, a signal or a time. Run it again later, or let
                a worker do it.
            LeaseHeld: Another process has the task.
            NotFound: No agent of that name is registered here.

        Example:
            >>> store.run(claims, "claim-42", goal="Settle claim 42")
            'settled'
        """
        found = find_agent(agent)
        wanted = wanted_by(agent, goal, input, ttl, wait, restart, budget, subject)
        task = Task(self._log, stream_key(self._tenant, "task", id), wanted, input, False)
        return run_agent(task, found, found.returns)

    def replay(
        self, agent: str | Callable[..., Any], id: str, *, version: int | None = None
    ) -> ReplayResult:
        """Run an agent against what its task has recorded, up to `version`.

        Nothing is called, written or waited for. The result says where the agent first departs from
        the recording, if it does. See `holdfast.replay`.
        """
        from .tasks.replay.replay import run_again

        return run_again(
            self._log, stream_key(self._tenant, "task", id), find_agent(agent), version
        )

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

        A task that has not ended may be submitted again: a worker then tries it once more, even if
        it was given up as failed or stuck.

        Args:
            agent: The name of an agent, or a registered function. Another program may have it.
            id: The task's id.
            goal: What the task is to reach.
            input: What the task works on.
            at: When to start, as Unix seconds or a datetime with its zone. None: now.
            ttl: How long the task is kept after it has ended. None: forever.
            restart: Start an expired id again.
            budget: How much its model calls and those of its children may use. After
                `BudgetExceeded` a larger one lets it continue.
            subject: Whom it is about; see `erase`.

        Returns:
            True if the task is new.

        Raises:
            ReplayMismatch: The id exists with another agent, goal or input.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.submit("claims", "claim-42", input={"claim": 42})
            True
        """
        wanted = wanted_by(agent, goal, input, ttl, None, restart, budget, subject)
        make = submitting(self._log, stream_key(self._tenant, "task", id), wanted, at)
        return ops.run_until_settled(self._log, make)

    def run_due(self, *, limit: int | None = None) -> list[RunResult]:
        """Run all due tasks of the agents registered here, one by one, and say how each ended.

        `holdfast worker app.py` does this all the time, several at once.
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
            value: The answer, of the type that the task wants.
            by: Who answers.
            question: The id of the question that was looked at (`view.questions`). If the task has
                replaced it meanwhile, the answer is refused instead of being taken for the new one.

        Raises:
            AlreadyAnswered: Somebody was quicker.
            NotFound: The task does not ask this.
            TypeError: The answer does not have the type that the task wants.

        Example:
            >>> store.answer("payout-1", "payout", True, by="ann")
        """
        ops.run_until_settled(
            self._log,
            answering(
                self._log, stream_key(self._tenant, "task", task_id), name, value, by, question
            ),
        )

    def signal(
        self, task_id: str, name: str, payload: object = None, *, id: str | None = None
    ) -> bool:
        """Send a signal to a task. It is delivered to `task.wait_for(name)`, now or later.

        Args:
            task_id: The task.
            name: The name of the signal.
            payload: What it carries, of the type that the task waits for.
            id: An id of your own: sent twice under one id, the signal is delivered once.

        Returns:
            False if a signal with this `id` was sent before.

        Raises:
            NotFound: There is no such task.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.signal("order-7", "paid", {"amount": 30}, id="webhook-123")
            True
        """
        make = signalling(self._log, stream_key(self._tenant, "task", task_id), name, payload, id)
        return ops.run_until_settled(self._log, make)

    def resolve(
        self, task_id: str, step: str, *, result: object = ..., retry: bool = False
    ) -> None:
        """Settle a step that is in doubt: either it was done, or it has to run again.

        Args:
            task_id: The task.
            step: The step's path, or its name if only one step has it.
            result: What the step would have returned: it was done.
            retry: It was not done, so run it again. This also retries a step that has failed.

        Raises:
            NotFound: The task has no such step in doubt.
            LeaseHeld: The step is running now.
            TaskEnded: The task has finished or was cancelled.
            ValueError: Neither or both of `result` and `retry` are given.

        Example:
            >>> store.resolve("claim-42", "pay", result="receipt-9")
        """
        ops.run_until_settled(
            self._log,
            resolving(self._log, stream_key(self._tenant, "task", task_id), step, result, retry),
        )

    def artifact(self, task_id: str, name: str) -> Artifact:
        """A file that is attached to a task, to be read; `NotFound` if there is none."""
        return Artifact(
            self._log,
            ops.run(self._log, find_artifact(stream_key(self._tenant, "task", task_id), name)),
        )

    def model_input(self, task_id: str, step: str) -> list[Any]:
        """The messages that the model of a step saw, as they were then. `step` is its path.

        They are found even if they were rewound or summarized since. Raises `NotFound` if nothing
        is known of it, or if the conversation was deleted.
        """
        from .tasks.steps.model_input import read_model_input

        return ops.run_until_settled(
            self._log, lambda: read_model_input(stream_key(self._tenant, "task", task_id), step)
        )

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> int:
        """Save a checkpoint document, durably, and return its version. Sets `updated_at`.

        It must be the newest: if another was saved since this one was loaded, `Conflict` is raised
        and nothing is written. Its versions are in
        `store.state(f"checkpoint/{task_id}").history()`.
        """
        from .tasks.checkpoint import save_checkpoint

        return ops.run(self._log, save_checkpoint(self._log, self._tenant, checkpoint))

    def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None:
        """The saved checkpoint, yours to change; if none was saved, the task of this id as one.

        None if there is neither, as the loops expect that this pair of calls is made for.
        """
        from .tasks.checkpoint import load_checkpoint

        return ops.run_until_settled(self._log, lambda: load_checkpoint(self._tenant, task_id))

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> Stream:
        """A stream of your own events, which exists from its first append. No I/O until then.

        Args:
            id: Its id, unique within the tenant.
            types: The events it may hold. Without them, any event of plain JSON values.

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
        """Your own streams, ordered by id, read page by page."""
        return self._infos("stream", StreamInfo.of)

    @overload
    def state(self, id: str, type: type[T]) -> State[T]: ...

    @overload
    def state(self, id: str, type: Any = Any) -> State[Any]: ...

    def state(self, id: str, type: Any = Any) -> State[Any]:
        """A document that is saved whole, with all its versions. No I/O until it is used.

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
        """Your state documents, ordered by id, read page by page."""
        return self._infos("state", StateInfo.of)

    def memory(
        self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None
    ) -> Memory:
        """The long-term memory of an agent, a user or a team. No I/O until it is used.

        Args:
            namespace: Whose memory it is. Tasks use that of their agent's name.
            embed: A function from a list of texts to as many vectors (`holdfast.memory.embedders`),
                to find by meaning too. It is called to recall, never to remember. None: that of the
                store.
            weights: What counts in recalling.

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
        """The namespaces of memory, ordered by name, read page by page."""
        from .memory.model import MemoryInfo

        return self._infos("memory", MemoryInfo.of)

    def _infos(self, kind: str, info_of: Callable[[Head], T]) -> Iterator[T]:
        after = ""
        while True:
            found, after = ops.run(self._log, list_streams(self._tenant, kind, after))
            yield from map(info_of, found)
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
        """Delete the tasks and conversations that expired longer than `grace` ago.

        If the process dies, the next sweep finishes the work. What living forks begin with is
        spared.

        Args:
            dry_run: Only report what would be deleted.
            limit: Delete at most so many.
            grace: How long to keep what has expired, in seconds or as a timedelta.
            force: Lift the limit that protects against a wrong clock: at most half of what is there
                within 24 hours.

        Returns:
            What was deleted and what was spared.

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
        """Erase data for good: one thing, or everything about a subject.

        The keys are destroyed, so nobody can read the records any more, in no copy. Large values
        and the memory index are deleted too. Reading raises `Erased` from then on. The hash chain
        still verifies, and the audit stream says what was erased, when and why.

        Args:
            what: A conversation, task, memory, state document or stream.
            subject: Whom the data is about, in place of `what`.
            reason: Why, for the audit stream.

        Returns:
            What was erased.

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
        """Give an encrypted store a new key, while others use it.

        Data keys are wrapped again; records stay as they are. If the process dies, call it again to
        finish. Programs that are running need both keys (`key=[new, old]`) before this is called,
        and the new one after it. `progress` is called with the number of data keys done.
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
        """Read the whole store and check it: hash chains, heads and large values.

        A chain shows that records were changed, inserted, moved or removed. Only an anchor shows
        that the newest records or a whole stream are gone, or that an old backup was restored.

        Args:
            anchor: The path of an anchor file (`store.anchor`) to compare with.
            anchor_key: The anchor's key; for Ed25519 the public half.
            since: An anchor, in place of `anchor`: trust what it has seen, and read only what came
                after.
            all_tenants: Check all tenants, not this one alone.
            progress: Called now and then, in the thread that called this.

        Returns:
            What was checked and what is wrong, and where. Damage is reported, not raised.

        Raises:
            AnchorRefused: The anchor itself was changed, or the key is not its key.

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
        """Write where every stream stands now, signed, to a path or an open text file.

        `verify` compares the store with it; keep it away from the store. `key` is at least 32
        random bytes (HMAC-SHA256), an Ed25519 private key, or the path of a file with one.
        `AlreadyExists` if the file exists, unless `overwrite=True`. It is written whole or not at
        all, and only its owner may read it.
        """
        from .admin.anchors import write_anchor
        from .backends.retrying import RetryingBackend

        tenant = None if all_tenants else self._tenant
        return write_anchor(
            RetryingBackend(self._log.backend), tenant, key, file, overwrite=overwrite
        )

    def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """Who did what, and when: the entries of a task or another `kind` of stream, in order.

        Includes what the audit stream says about its deletion, also when it is gone. Names, times
        and people; content only with `content=True`. Print it, or use `text()`, `jsonl()` or
        `csv()`. `NotFound` if nothing is known of it.
        """
        from .admin.audit import audit, audited

        return ops.run(self._log, audit(audited(self._tenant, kind, id), content=content))

    def health(self) -> Health:
        """Where the state is, on what engine, how durable and how large, and the oldest lease."""
        return ops.run(self._log, examine(self._log.describe(), self._tenant))

    def close(self) -> None:
        """Finish the writes in flight and release the engine. Closing twice is harmless."""
        if self._owner:
            self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"


class AsyncStore:
    """An open store for async code. Several event loops may use it at once."""

    def __init__(self, log: Log, tenant: str, *, owner: bool = True) -> None:
        self._log, self._tenant, self._owner = log, tenant, owner

    @property
    def tenant(self) -> str:
        return self._tenant

    def for_tenant(self, tenant: str) -> AsyncStore:
        """`Store.for_tenant`."""
        return AsyncStore(self._log, checked_tenant(tenant), owner=False)

    def conversation(self, id: str, *, subject: str | None = None) -> AsyncConversation:
        """`Store.conversation`, with awaited methods."""
        key = stream_key(self._tenant, "conversation", id)
        return AsyncConversation(
            self._log, key, None, None if subject is None else SubjectRegistrar(key, subject)
        )

    async def conversations(self) -> AsyncIterator[ConversationInfo]:
        """`Store.conversations` as an async iterator."""
        after = ""
        while True:
            found, after = await ops.run_async(self._log, list_conversations(self._tenant, after))
            for info in found:
                yield info
            if not after:
                return

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
        wanted = as_wanted(goal, input, agent, lease, wait, steal, ttl, restart, budget, subject)
        return AsyncTask(self._log, stream_key(self._tenant, "task", id), wanted, input, True)

    async def get_task(self, id: str) -> TaskView | None:
        """`Store.get_task`, awaited."""
        return await ops.run_async(self._log, get_task(stream_key(self._tenant, "task", id)))

    async def tasks(self, *, status: str | None = None) -> AsyncIterator[TaskInfo]:
        """`Store.tasks` as an async iterator."""
        checked_status(status)
        after = ""
        while True:
            found, after = await ops.run_async(self._log, list_tasks(self._tenant, status, after))
            for info in found:
                yield info
            if not after:
                return

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
        """`Store.run`, awaited; a plain function runs in a thread."""
        found = find_agent(agent)
        wanted = wanted_by(agent, goal, input, ttl, wait, restart, budget, subject)
        key = stream_key(self._tenant, "task", id)
        if found.is_async:
            return await run_agent_async(
                AsyncTask(self._log, key, wanted, input, True), found, found.returns
            )
        import asyncio

        return await asyncio.to_thread(
            run_agent, Task(self._log, key, wanted, input, False), found, found.returns
        )

    async def replay(
        self, agent: str | Callable[..., Any], id: str, *, version: int | None = None
    ) -> ReplayResult:
        """`Store.replay`, awaited; a plain function runs in a thread."""
        from .tasks.replay.replay import run_again_async

        return await run_again_async(
            self._log, stream_key(self._tenant, "task", id), find_agent(agent), version
        )

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
        wanted = wanted_by(agent, goal, input, ttl, None, restart, budget, subject)
        make = submitting(self._log, stream_key(self._tenant, "task", id), wanted, at)
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
        make = answering(
            self._log, stream_key(self._tenant, "task", task_id), name, value, by, question
        )
        await ops.run_until_settled_async(self._log, make)

    async def signal(
        self, task_id: str, name: str, payload: object = None, *, id: str | None = None
    ) -> bool:
        """`Store.signal`, awaited."""
        make = signalling(self._log, stream_key(self._tenant, "task", task_id), name, payload, id)
        return await ops.run_until_settled_async(self._log, make)

    async def resolve(
        self, task_id: str, step: str, *, result: object = ..., retry: bool = False
    ) -> None:
        """`Store.resolve`, awaited."""
        make = resolving(self._log, stream_key(self._tenant, "task", task_id), step, result, retry)
        await ops.run_until_settled_async(self._log, make)

    async def artifact(self, task_id: str, name: str) -> AsyncArtifact:
        """`Store.artifact`, awaited."""
        found = await ops.run_async(
            self._log, find_artifact(stream_key(self._tenant, "task", task_id), name)
        )
        return AsyncArtifact(self._log, found)

    async def model_input(self, task_id: str, step: str) -> list[Any]:
        """`Store.model_input`, awaited."""
        from .tasks.steps.model_input import read_model_input

        key = stream_key(self._tenant, "task", task_id)
        return await ops.run_until_settled_async(self._log, lambda: read_model_input(key, step))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> Coroutine[Any, Any, int]:
        """`Store.save_checkpoint`, awaited. The document is taken when this is called."""
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
        async for info in self._infos("stream", StreamInfo.of):
            yield info

    @overload
    def state(self, id: str, type: type[T]) -> AsyncState[T]: ...

    @overload
    def state(self, id: str, type: Any = Any) -> AsyncState[Any]: ...

    def state(self, id: str, type: Any = Any) -> AsyncState[Any]:
        """`Store.state`, with awaited methods."""
        return AsyncState(self._log, stream_key(self._tenant, "state", id), type)

    async def states(self) -> AsyncIterator[StateInfo]:
        """`Store.states` as an async iterator."""
        async for info in self._infos("state", StateInfo.of):
            yield info

    def memory(
        self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None
    ) -> AsyncMemory:
        """`Store.memory`, with awaited methods. `embed` may be a coroutine function."""
        from .memory.memory import AsyncMemory

        return AsyncMemory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    async def memory_namespaces(self) -> AsyncIterator[MemoryInfo]:
        """`Store.memory_namespaces` as an async iterator."""
        from .memory.model import MemoryInfo

        async for info in self._infos("memory", MemoryInfo.of):
            yield info

    async def _infos(self, kind: str, info_of: Callable[[Head], T]) -> AsyncIterator[T]:
        after = ""
        while True:
            found, after = await ops.run_async(self._log, list_streams(self._tenant, kind, after))
            for head in found:
                yield info_of(head)
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

        return await self._log.in_thread(erase, self._log, self._tenant, what, subject, reason)

    async def rekey(
        self, key: KeyLike, *, progress: Callable[[int], object] | None = None
    ) -> RekeyResult:
        """`Store.rekey`, awaited. `progress` is called in a thread."""
        from .encryption.rotation import rekey

        return await self._log.in_thread(rekey, self._log, key, progress)

    async def verify(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        anchor_key: AnchorKey | None = None,
        since: str | os.PathLike[str] | None = None,
        all_tenants: bool = False,
        progress: Callable[[VerifyProgress], object] | None = None,
    ) -> VerifyResult:
        """`Store.verify`, awaited. It runs in threads, and so does `progress`."""
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

        plain = Store(self._log, self._tenant, owner=False)
        return await asyncio.to_thread(
            plain.anchor, file, key=key, all_tenants=all_tenants, overwrite=overwrite
        )

    async def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """`Store.audit`, awaited."""
        from .admin.audit import audit, audited

        return await ops.run_async(
            self._log, audit(audited(self._tenant, kind, id), content=content)
        )

    async def health(self) -> Health:
        """`Store.health`, awaited."""
        description = await self._log.in_thread(self._log.describe)
        return await ops.run_async(self._log, examine(description, self._tenant))

    async def close(self) -> None:
        """`Store.close`, awaited."""
        if self._owner:
            await self._log.close_async()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"
