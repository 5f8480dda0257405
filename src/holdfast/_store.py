"""The store that `holdfast.open` returns: `Store`, and `AsyncStore` for async code."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

from .backends import Head, StreamKey
from .log import operations as ops
from .log.events import Event, EventType
from .log.head_fields import TASK_TTL
from .log.ids import COUNTED_KINDS, check_tenant, stream_key
from .log.log import Log
from .log.operations.stream_ops import list_streams
from .log.operations.subjects import SubjectRegistrar

if TYPE_CHECKING:
    from .admin.anchors import Anchor, AnchorKey
    from .admin.audit import Audit
    from .admin.erasure import Erasable, EraseResult
    from .admin.health import Health
    from .admin.purge_expired import SweepResult
    from .admin.repair import RepairResult
    from .admin.verify.report import VerifyProgress, VerifyResult
    from .conversations import AsyncConversation, Conversation, ConversationInfo
    from .encryption.rotation import RekeyResult
    from .keys import KeyLike
    from .memory import Weights
    from .memory.memory import AsyncMemory, Memory
    from .memory.model import MemoryInfo
    from .memory.vectors.embedding import Embed
    from .notify.listing import UndeliveredNotification
    from .state.state import AsyncState, State, StateInfo
    from .streams.stream import AsyncStream, Stream, StreamInfo
    from .tasks import AsyncTask, Budget, Task, TaskInfo, TaskView
    from .tasks.artifacts import Artifact, AsyncArtifact
    from .tasks.checkpoint import AgentCheckpoint
    from .tasks.replay.replay import ReplayResult
    from .worker.registry import WorkerInfo
    from .worker.worker import RunResult

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound="AgentCheckpoint")


Page = ops.Operation[tuple[list[T], str]]
"""An operation that returns a page and where the next one starts; "" after the last page."""


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
        if kind not in COUNTED_KINDS:
            raise ValueError(f"kind must be one of {', '.join(COUNTED_KINDS)}, got {kind!r}")
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
        """Return this store for another tenant, over the same connection.

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
        from .conversations import Conversation

        key = stream_key(self._tenant, "conversation", id)
        return Conversation(
            self._log, key, None, None if subject is None else SubjectRegistrar(key, subject)
        )

    def conversations(self, *, after: str = "") -> Iterator[ConversationInfo]:
        """Yield the conversations that have not expired, ordered by id, read page by page.

        `after` continues a listing: it is the id of the last conversation that was read.
        """
        from .conversations.lifecycle import list_conversations

        return self._iterate(lambda after: list_conversations(self._tenant, after), after)

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
        timeout: float | timedelta | None = None,
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
            lease: How long the claim lasts unless it is renewed, in seconds or as a timedelta.
                After that, another process may take over.
            wait: How long to wait for a live owner. None: one `lease`.
            steal: Take the task from its owner, even if the owner is alive.
            ttl: How long to keep the task after it has ended. None: forever.
            restart: Start an expired id again.
            budget: The limit for its model calls. The most recent budget applies.
            subject: The customer or person it is about, with its conversation, children and
                memories. Resume contexts quote its memories only for the same subject; see also
                `erase`.
            timeout: The time limit of the whole task, in seconds or as a timedelta, counted over
                all runs and waits from its first start. The task then fails with `TaskTimeout`, and
                its steps can no longer write. The most recent timeout applies.

        Returns:
            The task, not entered yet.

        Raises:
            ValueError: An argument is out of range.
            LeaseHeld: On entering: another process has it.
            ReplayMismatch: On entering: a different goal or input is recorded.
            Expired: On entering: its time to live is over.

        Example:
            >>> with store.task("claim-42", goal="Settle claim 42") as task:
            ...     task.step("read", read_claim, 42)
            ...     task.finish("settled")
        """
        from .tasks import Task
        from .tasks.run.claim import check_open_options

        options = check_open_options(
            goal, input, agent, lease, wait, steal, ttl, restart, budget, subject, timeout
        )
        return Task(self._log, self._task_key(id), options, input, False)

    def get_task(self, id: str) -> TaskView | None:
        """Return the current state of a task; None if there is none, or it has expired."""
        from .tasks.state.load import load_view

        return ops.run(self._log, load_view(self._task_key(id)))

    def tasks(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        since: float | datetime | None = None,
        error: str | None = None,
        after: str = "",
    ) -> Iterator[TaskInfo]:
        """Yield the tasks that have not expired, ordered by id, read page by page.

        Args:
            status: Only tasks with this status.
            agent: Only tasks of the agent with this name.
            since: Only tasks whose newest event is of this time or later, as Unix seconds or a
                datetime with a time zone. Reads that event of each task.
            error: Only tasks that failed, or are in doubt, because of an exception whose type or
                message contains this text, ignoring case. Reads these tasks.
            after: Continue a listing after the task with this id.

        Raises:
            ValueError: An argument is out of range.

        Example:
            >>> [task.id for task in store.tasks(status="failed", error="KeyError")]
            ['claim-42']
        """
        from .tasks.control.find import check_task_filter, find_tasks

        wanted = check_task_filter(status, agent, since, error)
        return self._iterate(lambda after: find_tasks(self._tenant, wanted, after), after)

    def wait(self, id: str, *, timeout: float | timedelta | None = None) -> TaskView:
        """Wait until a task has ended, and return it: finished, cancelled, failed or stuck.

        A task that is retried, waits for a person or is in doubt has not ended. PostgreSQL and
        Redis report the end; other stores are polled, less and less often.

        Args:
            id: The task's id.
            timeout: How long to wait, in seconds or as a timedelta. None: forever.

        Returns:
            The task. `status`, `result` and `error` say how it ended.

        Raises:
            WaitTimeout: The task has not ended in time.
            NotFound: There is no such task, or it was deleted.

        Example:
            >>> store.wait("claim-42", timeout=60).result
            'settled'
        """
        from .tasks.run.follow import EndWaiter

        return EndWaiter(self._task_key(id), timeout).wait(self._log)

    def follow(
        self,
        task_id: str,
        *,
        after: int = 0,
        timeout: float | timedelta | None = None,
        until_end: bool = True,
    ) -> Iterator[Event]:
        """Yield the events of a task as they are recorded, from version `after` + 1 on.

        Args:
            task_id: The task's id.
            after: The version of the last event that you have seen, even in an earlier process. No
                event is skipped or repeated.
            timeout: End when no event has come for this long, in seconds or as a timedelta.
            until_end: End when the task has ended: finished, cancelled, failed or stuck. If
                False, continue: a failed task may be retried.

        Returns:
            An iterator of `Event` objects; `event.version` is the cursor for `after`.

        Raises:
            NotFound: There is no such task, or it was deleted.

        Example:
            >>> for event in store.follow("claim-42", after=last_seen):
            ...     print(event.type)
        """
        from .tasks.run.follow import TaskFollower, follow_task

        follower = TaskFollower(self._task_key(task_id), after, timeout, until_end)
        return follow_task(self._log, follower)

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
            subject: The customer or person it is about, as for `task`.

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
        from .tasks import Task
        from .tasks.agents.declare import find_agent
        from .tasks.agents.run import run_agent
        from .tasks.control.requests import agent_open_options

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
        from .tasks.agents.declare import find_agent
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
        timeout: float | timedelta | None = None,
        by: str | None = None,
    ) -> bool:
        """Queue an agent's task for a worker, now or `at` a time.

        A task that has not finished may be submitted again: a worker then retries it, even if it is
            failed or stuck, as after `retry`.

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
            subject: The customer or person it is about, as for `task`.
            timeout: The time limit of the whole task, as for `task`. Submitting it again
                restarts the time. Default: what the agent declares.
            by: Who submits it, for the audit; default: the actor of `holdfast.correlate`.

        Returns:
            True if the task is new.

        Raises:
            ReplayMismatch: The id exists with a different agent, goal or input.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.submit("claims", "claim-42", input={"claim": 42})
            True
        """
        from .tasks.control.requests import agent_open_options, prepare_submit

        options = agent_open_options(
            agent, goal, input, ttl, None, restart, budget, subject, timeout
        )
        make = prepare_submit(self._log, self._task_key(id), options, at, by)
        return ops.run_until_settled(self._log, make)

    def retry(
        self,
        task_id: str,
        *,
        budget: Budget | None = None,
        timeout: float | timedelta | None = None,
        by: str | None = None,
    ) -> None:
        """Queue a failed or stuck task again. A worker then retries it.

        Finished steps keep their results, and earlier failures no longer count.

        Args:
            task_id: The task.
            budget: A new limit for its model calls, after `BudgetExceeded`.
            timeout: A new time limit from now on, after `TaskTimeout`.
            by: Who does it, for the audit; default: the actor of `holdfast.correlate`.

        Raises:
            NotFound: There is no such task.
            TaskEnded: The task has finished or was cancelled.
            LeaseHeld: A process is running it.
            ValueError: The task has no agent, so workers can't run it.

        Example:
            >>> store.retry("claim-42", by="ann")
        """
        from .tasks.control.requests import prepare_retry

        make = prepare_retry(self._task_key(task_id), budget, timeout, by)
        ops.run_until_settled(self._log, make)

    def run_due(self, *, limit: int | None = None) -> list[RunResult]:
        """Run all due tasks of the agents registered here, one by one, and return the results.

        `holdfast worker URL app.py` does this continuously, several tasks at once.
        """
        from .worker.worker import run_due

        return run_due(self, limit)

    def workers(self) -> Iterator[WorkerInfo]:
        """Yield the registered workers of this tenant: what they run, where, and their status.

        `holdfast worker` registers itself, and so does `Worker(register=True)`. A worker that was
        killed is shown as "lost" for a day.
        """
        from .worker.registry import list_workers

        return self._iterate(lambda after: list_workers(self._tenant, after))

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
            by: The person who answers; default: the actor of `holdfast.correlate`.
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
        from .tasks.control.requests import prepare_answer

        ops.run_until_settled(
            self._log, prepare_answer(self._log, self._task_key(task_id), name, value, by, question)
        )

    def signal(
        self,
        task_id: str,
        name: str,
        payload: object = None,
        *,
        id: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Send a signal to a task. It is delivered to `task.wait_for(name)`, now or later.

        Args:
            task_id: The task.
            name: The name of the signal.
            payload: The data of the signal, of the type that the task waits for.
            id: Your own id for it: a signal sent twice with the same id is delivered once.
            by: Who sends it, for the audit; default: the actor of `holdfast.correlate`.

        Returns:
            False if a signal with this `id` was sent before.

        Raises:
            NotFound: There is no such task.
            TaskEnded: The task has finished or was cancelled.

        Example:
            >>> store.signal("order-7", "paid", {"amount": 30}, id="webhook-123")
            True
        """
        from .tasks.control.requests import prepare_signal

        make = prepare_signal(self._log, self._task_key(task_id), name, payload, id, by)
        return ops.run_until_settled(self._log, make)

    def resolve(
        self,
        task_id: str,
        step: str,
        *,
        result: object = ...,
        retry: bool = False,
        by: str | None = None,
        override: bool = False,
    ) -> None:
        """Resolve a step whose outcome is unknown: it was done, or it has to run again.

        The first resolution counts.

        Args:
            task_id: The task.
            step: The step's path, or its name if only one step has it.
            result: The step was done, and this is its return value.
            retry: The step was not done, so run it again. This also retries a failed step.
            by: Who resolved it, recorded with the time. Default: the actor of `holdfast.correlate`.
            override: Replace an earlier resolution. Possible until the task has continued with it.

        Raises:
            NotFound: The task has no such step in doubt.
            AlreadyResolved: The step was resolved before.
            TypeError: The result doesn't have the type that the step declares.
            LeaseHeld: The step is running now.
            TaskEnded: The task has finished or was cancelled.
            ValueError: Neither or both of `result` and `retry` are given.

        Example:
            >>> store.resolve("claim-42", "pay", result="receipt-9")
        """
        from .tasks.control.requests import prepare_resolve

        key = self._task_key(task_id)
        make = prepare_resolve(self._log, key, step, result, retry, by, override)
        ops.run_until_settled(self._log, make)

    def notifications(self, *, status: str | None = None) -> Iterator[UndeliveredNotification]:
        """Yield the notifications that a hook has not received: "retrying", or "dead" ones."""
        from .notify.listing import list_undelivered

        return self._iterate(list_undelivered(self._tenant, status))

    def redeliver(self, id: str | None = None, *, task: str | None = None) -> int:
        """Deliver dead notifications again, and retry the others now. Workers deliver them.

        Args:
            id: Only the notification with this id, for all hooks that have not received it.
            task: Only those of this task.

        Returns:
            The number of notifications.
        """
        from .notify.listing import redeliver

        return redeliver(self._log, self._tenant, id, task)

    def artifact(self, task_id: str, name: str) -> Artifact:
        """Return a file attached to a task, for reading; `NotFound` if there is none."""
        from .tasks.artifacts import Artifact, find_artifact

        return Artifact(self._log, ops.run(self._log, find_artifact(self._task_key(task_id), name)))

    def model_input(self, task_id: str, step: str) -> list[Any]:
        """Return the exact messages that a step sent to its model. `step` is its path.

        They are found even if they were rewound or summarized since. Raises `NotFound` if the step
        recorded no messages, or the conversation was deleted.
        """
        from .tasks.steps.model_input import read_model_input

        return ops.run_until_settled(
            self._log, lambda: read_model_input(self._task_key(task_id), step)
        )

    def save_checkpoint(
        self, checkpoint: AgentCheckpoint, *, ttl: float | timedelta | None = TASK_TTL
    ) -> int:
        """Save a checkpoint document durably, with all its attributes. Sets `updated_at`.

        All versions are in `store.state(f"checkpoint/{task_id}").history()`.

        Args:
            checkpoint: The document. It may be saved again and again.
            ttl: How long to keep it after this save, in seconds or as a timedelta. A repeated save
                may keep it one hundredth longer. None: until it is deleted.

        Returns:
            The version of the document.

        Raises:
            Conflict: Another checkpoint was saved after this one was loaded. Nothing was written.
            NotSerializable: A value would come back from JSON changed.
            TypeError: It is the checkpoint of a task, which is read-only.

        Example:
            >>> checkpoint = AgentCheckpoint("agent-01", "claim-42")
            >>> store.save_checkpoint(checkpoint, ttl=timedelta(days=30))
            1
        """
        from .tasks.checkpoint import save_checkpoint

        return ops.run(self._log, save_checkpoint(self._log, self._tenant, checkpoint, ttl))

    @overload
    def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None: ...

    @overload
    def load_checkpoint(self, task_id: str, *, type: type[C]) -> C | None: ...

    def load_checkpoint(self, task_id: str, *, type: Any = None) -> Any:
        """Return the saved checkpoint, or else a read-only one made from the task of this id.

        Args:
            task_id: The task.
            type: The class to load it as: a dataclass that extends `AgentCheckpoint`.

        Returns:
            The checkpoint, or None if there is neither, or it has expired.

        Raises:
            SchemaMismatch: The stored document does not fit the class.

        Example:
            >>> loaded = store.load_checkpoint("claim-42")
            >>> checkpoint = loaded or AgentCheckpoint("agent-01", "claim-42")
        """
        from .tasks.checkpoint import prepare_load

        return ops.run_until_settled(self._log, prepare_load(self._tenant, task_id, type))

    def delete_checkpoint(
        self, task_id: str, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """Delete a saved checkpoint with all its versions. Return False if there is none.

        The task of this id, if there is one, stays. The audit stream keeps `reason` and `by`.
        """
        from .tasks.checkpoint import prepare_delete

        return ops.run_until_settled(
            self._log, prepare_delete(self._log, self._tenant, task_id, reason, by)
        )

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
        from .streams.stream import Stream

        return Stream(self._log, stream_key(self._tenant, "stream", id), types)

    def streams(self, *, kind: str = "stream", after: str = "") -> Iterator[StreamInfo]:
        """Yield your own streams that have not expired, ordered by id, read page by page.

        With another `kind`, yield the store's streams of that kind: "task", "conversation",
        "memory", "state", "subject", "notification", "blob" or "audit". `after` continues a
        listing: it is the id of the last stream that was read.
        """
        from .streams.stream import StreamInfo

        return map(StreamInfo.of, self._iterate(self._list_heads(kind), after))

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
        from .state.state import State

        return State(self._log, stream_key(self._tenant, "state", id), type)

    def states(self) -> Iterator[StateInfo]:
        """Yield the state documents that have not expired, ordered by id, read page by page."""
        from .state.state import StateInfo

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

    def memory_namespaces(self, *, after: str = "") -> Iterator[MemoryInfo]:
        """Yield the memory namespaces that have not expired, ordered by name, page by page.

        `after` continues a listing: it is the last name that was read.
        """
        from .memory.model import MemoryInfo

        return map(MemoryInfo.of, self._iterate(self._list_heads("memory"), after))

    def _iterate(self, list_page: Callable[[str], Page[T]], after: str = "") -> Iterator[T]:
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
        by: str | None = None,
    ) -> SweepResult:
        """Purge the tasks, conversations, state documents and streams that expired `grace` ago.

        If the process dies, the next sweep finishes the work. A conversation with forks that still
        exist is spared.

        Args:
            dry_run: Only report what would be purged.
            limit: The maximum number to purge.
            grace: How long to keep expired data, in seconds or as a timedelta.
            force: Lift the limit that protects against a wrong clock: at most 100 streams, or half
                of the store if that is more, within 24 hours.
            by: Who does it, for the audit stream.

        Returns:
            The purged and the spared streams.

        Raises:
            ValueError: An argument is out of range.

        Example:
            >>> store.sweep(grace=timedelta(days=7)).deleted
        """
        from .admin.purge_expired import sweep

        return sweep(
            self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force, by=by
        )

    def erase(
        self,
        what: Erasable | None = None,
        *,
        subject: str | None = None,
        reason: str = "erased by the program",
        by: str | None = None,
    ) -> EraseResult:
        """Erase data permanently: one object of the store, or all data about a subject.

        The keys are destroyed, so the records can no longer be read. Backups made before still
        contain the keys. Blobs and the memory index are deleted too. Reading raises `Erased` from
        then on. The hash chain stays valid, and the audit stream records what was erased, when and
        why.

        Args:
            what: A conversation, task, memory, state document or stream.
            subject: The person the data is about, in place of `what`.
            reason: Why, for the audit stream.
            by: Who does it, for the audit stream; default: the actor of `holdfast.correlate`.

        Returns:
            The erased streams and memories.

        Raises:
            NotEncrypted: The store is not encrypted, so there is no key to destroy.
            TypeError: Neither or both of `what` and `subject` are given.

        Example:
            >>> store.erase(subject="person-7", reason="asked for by mail")
        """
        from .admin.erasure import erase

        return erase(self._log, self._tenant, what, subject, reason, by)

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

    def repair(self) -> RepairResult:
        """Rebuild everything that can be derived from the records, in all tenants.

        That is what `verify` reports as `index` or `head`: indexes, counters, the fields of heads
        and the memory index. Records are never changed: restore damaged ones from a backup. Back up
        the store first, and verify it afterwards.

        Example:
            >>> store.repair().entries
            0
        """
        from .admin.repair import repair

        return repair(self._log)

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
        store = RetryingBackend(self._log.backend, self._log.timeout)
        return write_anchor(store, tenant, key, file, overwrite=overwrite)

    def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """Return the audit trail of a task or another `kind` of stream: who did what, and when.

        Entries of the audit stream about its deletion are included, even if the stream is gone.
        Entries have names, times and people; content only with `content=True`. Print the result, or
        use `text()`, `jsonl()` or `csv()`. Raises `NotFound` if there are no entries.
        """
        from .admin.audit import audited_key, load_audit

        return ops.run(self._log, load_audit(audited_key(self._tenant, kind, id), content=content))

    def health(self) -> Health:
        """Return the backend, location, durability and size of the store, and its oldest lease."""
        from .admin.health import read_health

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
        from .conversations import AsyncConversation

        key = stream_key(self._tenant, "conversation", id)
        return AsyncConversation(
            self._log, key, None, None if subject is None else SubjectRegistrar(key, subject)
        )

    def conversations(self, *, after: str = "") -> AsyncIterator[ConversationInfo]:
        """`Store.conversations` as an async iterator."""
        from .conversations.lifecycle import list_conversations

        return self._iterate(lambda after: list_conversations(self._tenant, after), after)

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
        timeout: float | timedelta | None = None,
    ) -> AsyncTask:
        """`Store.task`, to be entered with `async with`."""
        from .tasks import AsyncTask
        from .tasks.run.claim import check_open_options

        options = check_open_options(
            goal, input, agent, lease, wait, steal, ttl, restart, budget, subject, timeout
        )
        return AsyncTask(self._log, self._task_key(id), options, input, True)

    async def get_task(self, id: str) -> TaskView | None:
        """`Store.get_task`, awaited."""
        from .tasks.state.load import load_view

        return await ops.run_async(self._log, load_view(self._task_key(id)))

    def tasks(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        since: float | datetime | None = None,
        error: str | None = None,
        after: str = "",
    ) -> AsyncIterator[TaskInfo]:
        """`Store.tasks` as an async iterator."""
        from .tasks.control.find import check_task_filter, find_tasks

        wanted = check_task_filter(status, agent, since, error)
        return self._iterate(lambda after: find_tasks(self._tenant, wanted, after), after)

    async def wait(self, id: str, *, timeout: float | timedelta | None = None) -> TaskView:
        """`Store.wait`, awaited."""
        from .tasks.run.follow import EndWaiter

        return await EndWaiter(self._task_key(id), timeout).wait_async(self._log)

    def follow(
        self,
        task_id: str,
        *,
        after: int = 0,
        timeout: float | timedelta | None = None,
        until_end: bool = True,
    ) -> AsyncIterator[Event]:
        """`Store.follow` as an async iterator."""
        from .tasks.run.follow import TaskFollower, follow_task_async

        follower = TaskFollower(self._task_key(task_id), after, timeout, until_end)
        return follow_task_async(self._log, follower)

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
        from .tasks import AsyncTask, Task
        from .tasks.agents.declare import find_agent
        from .tasks.agents.run import run_agent, run_agent_async
        from .tasks.control.requests import agent_open_options

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
        from .tasks.agents.declare import find_agent
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
        timeout: float | timedelta | None = None,
        by: str | None = None,
    ) -> bool:
        """`Store.submit`, awaited."""
        from .tasks.control.requests import agent_open_options, prepare_submit

        options = agent_open_options(
            agent, goal, input, ttl, None, restart, budget, subject, timeout
        )
        make = prepare_submit(self._log, self._task_key(id), options, at, by)
        return await ops.run_until_settled_async(self._log, make)

    async def retry(
        self,
        task_id: str,
        *,
        budget: Budget | None = None,
        timeout: float | timedelta | None = None,
        by: str | None = None,
    ) -> None:
        """`Store.retry`, awaited."""
        from .tasks.control.requests import prepare_retry

        make = prepare_retry(self._task_key(task_id), budget, timeout, by)
        await ops.run_until_settled_async(self._log, make)

    async def run_due(self, *, limit: int | None = None) -> list[RunResult]:
        """`Store.run_due`, awaited."""
        import asyncio

        from .worker.worker import run_due

        return await asyncio.to_thread(run_due, Store(self._log, self._tenant, owner=False), limit)

    def workers(self) -> AsyncIterator[WorkerInfo]:
        """`Store.workers` as an async iterator."""
        from .worker.registry import list_workers

        return self._iterate(lambda after: list_workers(self._tenant, after))

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
        from .tasks.control.requests import prepare_answer

        make = prepare_answer(self._log, self._task_key(task_id), name, value, by, question)
        await ops.run_until_settled_async(self._log, make)

    async def signal(
        self,
        task_id: str,
        name: str,
        payload: object = None,
        *,
        id: str | None = None,
        by: str | None = None,
    ) -> bool:
        """`Store.signal`, awaited."""
        from .tasks.control.requests import prepare_signal

        make = prepare_signal(self._log, self._task_key(task_id), name, payload, id, by)
        return await ops.run_until_settled_async(self._log, make)

    async def resolve(
        self,
        task_id: str,
        step: str,
        *,
        result: object = ...,
        retry: bool = False,
        by: str | None = None,
        override: bool = False,
    ) -> None:
        """`Store.resolve`, awaited."""
        from .tasks.control.requests import prepare_resolve

        key = self._task_key(task_id)
        make = prepare_resolve(self._log, key, step, result, retry, by, override)
        await ops.run_until_settled_async(self._log, make)

    def notifications(self, *, status: str | None = None) -> AsyncIterator[UndeliveredNotification]:
        """`Store.notifications`, for async code."""
        from .notify.listing import list_undelivered

        return self._iterate(list_undelivered(self._tenant, status))

    async def redeliver(self, id: str | None = None, *, task: str | None = None) -> int:
        """`Store.redeliver`, awaited."""
        from .notify.listing import redeliver

        return await self._log.run_in_thread(redeliver, self._log, self._tenant, id, task)

    async def artifact(self, task_id: str, name: str) -> AsyncArtifact:
        """`Store.artifact`, awaited."""
        from .tasks.artifacts import AsyncArtifact, find_artifact

        record = await ops.run_async(self._log, find_artifact(self._task_key(task_id), name))
        return AsyncArtifact(self._log, record)

    async def model_input(self, task_id: str, step: str) -> list[Any]:
        """`Store.model_input`, awaited."""
        from .tasks.steps.model_input import read_model_input

        key = self._task_key(task_id)
        return await ops.run_until_settled_async(self._log, lambda: read_model_input(key, step))

    def save_checkpoint(
        self, checkpoint: AgentCheckpoint, *, ttl: float | timedelta | None = TASK_TTL
    ) -> Coroutine[Any, Any, int]:
        """`Store.save_checkpoint`, awaited. The document is copied when this is called."""
        from .tasks.checkpoint import save_checkpoint

        return ops.run_async(self._log, save_checkpoint(self._log, self._tenant, checkpoint, ttl))

    @overload
    async def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None: ...

    @overload
    async def load_checkpoint(self, task_id: str, *, type: type[C]) -> C | None: ...

    async def load_checkpoint(self, task_id: str, *, type: Any = None) -> Any:
        """`Store.load_checkpoint`, awaited."""
        from .tasks.checkpoint import prepare_load

        return await ops.run_until_settled_async(
            self._log, prepare_load(self._tenant, task_id, type)
        )

    async def delete_checkpoint(
        self, task_id: str, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`Store.delete_checkpoint`, awaited."""
        from .tasks.checkpoint import prepare_delete

        return await ops.run_until_settled_async(
            self._log, prepare_delete(self._log, self._tenant, task_id, reason, by)
        )

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> AsyncStream:
        """`Store.stream`, with awaited methods."""
        from .streams.stream import AsyncStream

        return AsyncStream(self._log, stream_key(self._tenant, "stream", id), types)

    async def streams(self, *, kind: str = "stream", after: str = "") -> AsyncIterator[StreamInfo]:
        """`Store.streams` as an async iterator."""
        from .streams.stream import StreamInfo

        async for head in self._iterate(self._list_heads(kind), after):
            yield StreamInfo.of(head)

    @overload
    def state(self, id: str, type: type[T]) -> AsyncState[T]: ...

    @overload
    def state(self, id: str, type: Any = Any) -> AsyncState[Any]: ...

    def state(self, id: str, type: Any = Any) -> AsyncState[Any]:
        """`Store.state`, with awaited methods."""
        from .state.state import AsyncState

        return AsyncState(self._log, stream_key(self._tenant, "state", id), type)

    async def states(self) -> AsyncIterator[StateInfo]:
        """`Store.states` as an async iterator."""
        from .state.state import StateInfo

        async for head in self._iterate(self._list_heads("state")):
            yield StateInfo.of(head)

    def memory(
        self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None
    ) -> AsyncMemory:
        """`Store.memory`, with awaited methods. `embed` may be a coroutine function."""
        from .memory.memory import AsyncMemory

        return AsyncMemory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    async def memory_namespaces(self, *, after: str = "") -> AsyncIterator[MemoryInfo]:
        """`Store.memory_namespaces` as an async iterator."""
        from .memory.model import MemoryInfo

        async for head in self._iterate(self._list_heads("memory"), after):
            yield MemoryInfo.of(head)

    async def _iterate(
        self, list_page: Callable[[str], Page[T]], after: str = ""
    ) -> AsyncIterator[T]:
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
        by: str | None = None,
    ) -> SweepResult:
        """`Store.sweep`, awaited."""
        from .admin.purge_expired import sweep_async

        return await sweep_async(
            self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force, by=by
        )

    async def erase(
        self,
        what: Erasable | None = None,
        *,
        subject: str | None = None,
        reason: str = "erased by the program",
        by: str | None = None,
    ) -> EraseResult:
        """`Store.erase`, awaited."""
        from .admin.erasure import erase

        return await self._log.run_in_thread(
            erase, self._log, self._tenant, what, subject, reason, by
        )

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

    async def repair(self) -> RepairResult:
        """`Store.repair`, awaited. It runs in a thread."""
        from .admin.repair import repair_async

        return await repair_async(self._log)

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
        from .admin.health import read_health

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
