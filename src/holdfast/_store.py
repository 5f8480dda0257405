"""The store: what users open, and its async twin."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from . import _operations as ops
from ._events import EventType
from ._health import Health, examine
from ._ids import checked_tenant, stream_key
from ._log import Log
from ._retention import Swept, sweep, sweep_async
from ._state import AsyncState, State
from ._streams import AsyncStream, Stream, StreamInfo, list_streams
from ._subjects import About
from .conversations import AsyncConversation, Conversation
from .conversations._lifecycle import listed
from .tasks import AsyncTask, Budget, Task, TaskInfo, TaskView
from .tasks._agents import find as find_agent
from .tasks._artifacts import Artifact, AsyncArtifact, find_artifact
from .tasks._claiming import as_wanted
from .tasks._listing import (
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
from .tasks._performing import perform, perform_async

if TYPE_CHECKING:
    from ._anchor_keys import AnchorKey
    from ._anchors import Anchor
    from ._audit import Audit
    from ._verify_report import Verified, VerifyProgress
    from ._worker import Ran
    from .encryption._erasure import Erasable, Erasure
    from .encryption._rotation import Rekeyed
    from .keys import KeyLike
    from .memory import Weights
    from .memory._embedding import Embed
    from .memory._memory import AsyncMemory, Memory
    from .tasks._checkpoint import AgentCheckpoint
    from .tasks._replay import Replay


class Store:
    """An open store. Use it from as many threads as you like; `aio` is the same store for async code.

    Leaving the `with` block, or `close()`, lets writes in flight finish and releases the engine.
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
        """The same store for another tenant, who shares the engine and none of the data. Closing a view closes nothing."""
        return Store(self._log, checked_tenant(tenant), owner=False)

    def conversation(self, id: str, *, subject: str | None = None) -> Conversation:
        """A conversation. No I/O until it is used; it exists from its first message.

        `subject`: whom it is about, so that `store.erase(subject=…)` finds it. Listed before the next message is stored.
        """
        key = stream_key(self._tenant, "conversation", id)
        return Conversation(self._log, key, None, None if subject is None else About(key, subject))

    def conversations(self) -> Iterator[Conversation]:
        """The conversations that have not expired, ordered by id, page by page."""
        after = ""
        while True:
            found, after = ops.run(self._log, listed(self._tenant, after))
            yield from map(self.conversation, found)
            if not after:
                return

    def task(
        self,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        agent: str | None = None,
        lease: float = 30.0,
        wait: float | None = None,
        steal: bool = False,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Task:
        """A task, to be entered: `with store.task(id) as task`. The same id starts it, or goes on with it. No I/O until entered.

        `goal` and `input` are what it is begun with; on an existing id they must be the same, or left out. One process works on
        it at a time: entering takes over from a dead one at once, else waits (`wait` seconds; by default one `lease`)
        and then raises `Held`; `steal=True` takes it from whoever has it. `ttl`: how long it is kept after it has
        ended. `restart=True` begins an expired id anew. `budget`: how much its model calls may use; what is given last counts.
        `subject`: whom it is about, its conversation, children and what it leaves to memory too; see `erase`. Said when it is begun.
        """
        wanted = as_wanted(goal, input, agent, lease, wait, steal, ttl, restart, budget, subject)
        return Task(self._log, stream_key(self._tenant, "task", id), wanted, input, False)

    def get_task(self, id: str) -> TaskView | None:
        """A task as it stands, to look at; None if there is none, or it has expired."""
        return ops.run(self._log, get_task(stream_key(self._tenant, "task", id)))

    def tasks(self, *, status: str | None = None) -> Iterator[TaskInfo]:
        """The tasks that have not expired, ordered by id, page by page; with `status`, those only."""
        checked_status(status)
        after = ""
        while True:
            found, after = ops.run(self._log, list_tasks(self._tenant, status, after))
            yield from found
            if not after:
                return

    def run(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | None = None,
        ttl: float | timedelta | None = TASK_TTL,
        restart: bool = False,
        budget: Budget | None = None,
        subject: str | None = None,
    ) -> Any:
        """Run an agent's task to its end here and give its result; of a task that has finished, the stored one.

        `agent` is a function that takes the task, or the name of one that is registered (`@holdfast.agent`). The result is of the
        type that the function is annotated to return. `Suspended` if it has to wait: run it again later, or let a worker.
        `budget`: how much its model calls and those of its children may use; stored, and what is given last counts.
        """
        found = find_agent(agent)
        wanted = wanted_by(agent, goal, input, ttl, wait, restart, budget, subject)
        task = Task(self._log, stream_key(self._tenant, "task", id), wanted, input, False)
        return perform(task, found, found.returns)

    def replay(self, agent: str | Callable[..., Any], id: str, *, at: int | None = None) -> Replay:
        """Run an agent against what its task has recorded, up to version `at`: nothing is called, written or waited for.

        Says where the agent first departs from the recording, if it does. See `holdfast.replay`.
        """
        from .tasks._replay import run_again

        return run_again(self._log, stream_key(self._tenant, "task", id), find_agent(agent), at)

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
        """Let a worker run an agent's task, now or `at` a time; True if the task is new.

        On a task that is there and has not ended, it lets a worker try again, also after it was given up as failed or stuck.
        `budget`: how much its model calls and those of its children may use. After `BudgetExceeded`, a larger one lets it go on.
        """
        wanted = wanted_by(agent, goal, input, ttl, None, restart, budget, subject)
        make = submitting(self._log, stream_key(self._tenant, "task", id), wanted, at)
        return ops.run_until_settled(self._log, make)

    def recover(self, *, limit: int | None = None) -> list[Ran]:
        """Run all tasks that are due, of the agents that are registered here, one after the other; what became of them.

        `holdfast worker app.py` does that all the time, several at once.
        """
        from ._worker import recover

        return recover(self, limit)

    def answer(self, task_id: str, name: str, value: object, *, by: str | None = None, ask: str | None = None) -> None:
        """Answer what a task asks under a name (`task.ask`); a worker then goes on with it. The first answer counts.

        `by` says who answers. `ask` is the id of the question that was looked at (`view.asks`): if the task has replaced it
        by another meanwhile, the answer is refused instead of being taken for the new one.
        """
        ops.run_until_settled(
            self._log, answering(self._log, stream_key(self._tenant, "task", task_id), name, value, by, ask)
        )

    def signal(self, task_id: str, name: str, payload: object = None, *, id: str | None = None) -> bool:
        """Tell a task that something happened (`task.wait_for`), now or later waited for. With `id`, telling it twice is once (False)."""
        make = signalling(self._log, stream_key(self._tenant, "task", task_id), name, payload, id)
        return ops.run_until_settled(self._log, make)

    def resolve(self, task_id: str, step: str, *, result: object = ..., retry: bool = False) -> None:
        """Settle a step that is in doubt: it was done, with this `result`; or it was not, and `retry=True` runs it again.

        `step` is its path, or its name if that is unambiguous. With `retry=True` a step that has failed is tried again too.
        """
        ops.run_until_settled(
            self._log, resolving(self._log, stream_key(self._tenant, "task", task_id), step, result, retry)
        )

    def artifact(self, task_id: str, name: str) -> Artifact:
        """A file that is attached to a task, to be read; `NotFound` if there is none of that name."""
        return Artifact(self._log, ops.run(self._log, find_artifact(stream_key(self._tenant, "task", task_id), name)))

    def prompt(self, task_id: str, step: str) -> list[Any]:
        """The messages that the model of a step saw, as they were then, whatever was rewound or summarised since.

        `step` is its path. `NotFound` if nothing is known of it, or if the conversation was deleted.
        """
        from .tasks._saw import prompt

        return ops.run_until_settled(self._log, lambda: prompt(stream_key(self._tenant, "task", task_id), step))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> int:
        """Save a checkpoint document, durably; its version. Sets `updated_at`.

        It must be the newest: if another was saved since this one was loaded or saved, or this one was made anew for a task
        that has one, `Conflict` and nothing is written. Versions: `store.state(f"checkpoint/{task_id}").history()`.
        """
        from .tasks._checkpoint import save_checkpoint

        return ops.run(self._log, save_checkpoint(self._log, self._tenant, checkpoint))

    def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None:
        """The saved checkpoint, yours to change; if none was saved, the task of this id as one; None if there is neither."""
        from .tasks._checkpoint import load_checkpoint

        return ops.run_until_settled(self._log, lambda: load_checkpoint(self._tenant, task_id))

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> Stream:
        """A stream of your own events. No I/O until it is used; it exists from its first append."""
        return Stream(self._log, stream_key(self._tenant, "stream", id), types)

    def streams(self) -> Iterator[StreamInfo]:
        """Your own streams, ordered by id, page by page."""
        return self._infos("stream")

    def state(self, id: str, type: Any = Any) -> State:
        """A document that is saved whole, of plain JSON values or of a declared type. No I/O until it is used."""
        return State(self._log, stream_key(self._tenant, "state", id), type)

    def states(self) -> Iterator[StreamInfo]:
        """Your state documents, ordered by id, page by page."""
        return self._infos("state")

    def memory(self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None) -> Memory:
        """The long-term memory of an agent, a user or a team. No I/O until it is used. `weights`: what counts in recalling.

        `embed` makes it find by meaning too: a function from a list of texts to as many vectors (`holdfast.memory.embedders`). Give it
        a `name` that changes with the model. It is called when something is recalled, never to remember. None: that of the store.
        """
        from .memory._memory import Memory

        return Memory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    def memories(self) -> Iterator[StreamInfo]:
        """The namespaces of memory, ordered by name, page by page."""
        return self._infos("memory")

    def _infos(self, kind: str) -> Iterator[StreamInfo]:
        after = ""
        while True:
            found, after = ops.run(self._log, list_streams(self._tenant, kind, after))
            yield from found
            if not after:
                return

    def sweep(
        self,
        *,
        dry_run: bool = False,
        limit: int = 1000,
        grace: float | timedelta = timedelta(days=1),
        force: bool = False,
    ) -> Swept:
        """Delete the tasks and conversations that expired longer than `grace` ago, whole. `dry_run=True` only tells.

        At most `limit`, and at most half of what is there within 24 hours, so that a wrong clock cannot empty a store;
        `force=True` lifts the latter. What living forks begin with is spared. Killed at any instant, the next sweep finishes it.
        """
        return sweep(self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force)

    def erase(
        self, what: Erasable | None = None, *, subject: str | None = None, reason: str = "erased by the program"
    ) -> Erasure:
        """Erase for good: a conversation, task, memory, document or stream; or with `subject` everything that is about one.

        Destroys the keys, so that nobody can read it any more, wherever copies of the records may be; large values, and what the
        index of memories knows, are deleted too. Reading raises `Erased` from then on; the chain still verifies, and the audit stream
        says what was erased, when and why. `NotEncrypted` if the store is in clear: there is no key to destroy.
        """
        from .encryption._erasure import erase

        return erase(self._log, self._tenant, what, subject, reason)

    def rekey(self, key: KeyLike, *, progress: Callable[[int], object] | None = None) -> Rekeyed:
        """Give an encrypted store a new key. Data keys are wrapped anew; no record is touched, and others may go on meanwhile.

        Killed at any instant, it is finished by the same call. Programs that are to go on need both keys (`key=[new, old]`) before
        this is called, and the new one after it. `progress` is called with the number of data keys done.
        """
        from .encryption._rotation import rekey

        return rekey(self._log, key, progress)

    def verify(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        anchor_key: AnchorKey | None = None,
        since: str | os.PathLike[str] | None = None,
        all_tenants: bool = False,
        progress: Callable[[VerifyProgress], object] | None = None,
    ) -> Verified:
        """Read everything and check it: chains, heads, large values. Reports what is wrong, and where; raises for nothing that is stored.

        A chain shows that records were altered, put in, moved or taken out. That the newest are gone, a stream as a whole, or that an old
        backup was put back, only an `anchor` shows (`store.anchor`), the path of its file; `anchor_key` is its key, or for Ed25519 the
        public half. `since=` in place of `anchor=` trusts what the anchor has seen, and reads only what came after.
        `AnchorRefused` if the anchor itself was altered. `progress` is called now and then, in the thread that called this.
        """
        from ._verifying import verify

        tenant = None if all_tenants else self._tenant
        return verify(self._log, tenant, anchor=anchor, anchor_key=anchor_key, since=since, progress=progress)

    def anchor(
        self,
        to: str | os.PathLike[str] | IO[str],
        *,
        key: AnchorKey | None = None,
        all_tenants: bool = False,
        overwrite: bool = False,
    ) -> Anchor:
        """Write where every stream stands now, signed, to a file (or `sys.stdout`): for `verify`, and to be kept where the store is not.

        `key`: at least 32 random bytes (HMAC-SHA256), an Ed25519 private key, or the path of a file with one of them. `AlreadyExists` if there
        is a file, unless `overwrite=True`. It is there whole or not at all, and readable by its owner alone.
        """
        from ._anchors import write_anchor
        from ._copy_reading import Steady

        tenant = None if all_tenants else self._tenant
        return write_anchor(Steady(self._log.backend), tenant, key, to, overwrite=overwrite)

    def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """Who did what when: the entries of a task, or of a stream of another `kind` ("conversation", "memory", "state", "stream"), in order.

        With what the tenant's audit stream says of its deletion, also when it is gone. Names, times and people, and no content
        unless `content=True`. `print` it, or take its `text()`, `jsonl()` or `csv()`. `NotFound` if nothing is known of it.
        """
        from ._audit import audit, audited

        return ops.run(self._log, audit(audited(self._tenant, kind, id), content=content))

    def health(self) -> Health:
        """Where the state is, on what engine, how durable, how large, and the oldest lease."""
        return ops.run(self._log, examine(self._log.describe(), self._tenant))

    def close(self) -> None:
        """Let writes in flight finish and release the engine. Closing twice is harmless."""
        if self._owner:
            self._log.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"


class AsyncStore:
    """An open store for async code, usable from several event loops at once."""

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
        return AsyncConversation(self._log, key, None, None if subject is None else About(key, subject))

    async def conversations(self) -> AsyncIterator[AsyncConversation]:
        """`Store.conversations` as an async iterator."""
        after = ""
        while True:
            found, after = await ops.run_async(self._log, listed(self._tenant, after))
            for name in found:
                yield self.conversation(name)
            if not after:
                return

    def task(
        self,
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        agent: str | None = None,
        lease: float = 30.0,
        wait: float | None = None,
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

    async def run(
        self,
        agent: str | Callable[..., Any],
        id: str,
        *,
        goal: str | None = None,
        input: object = None,
        wait: float | None = None,
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
            return await perform_async(AsyncTask(self._log, key, wanted, input, True), found, found.returns)
        import asyncio

        return await asyncio.to_thread(perform, Task(self._log, key, wanted, input, False), found, found.returns)

    async def replay(self, agent: str | Callable[..., Any], id: str, *, at: int | None = None) -> Replay:
        """`Store.replay`, awaited; a plain function runs in a thread."""
        from .tasks._replay import run_again_async

        return await run_again_async(self._log, stream_key(self._tenant, "task", id), find_agent(agent), at)

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

    async def recover(self, *, limit: int | None = None) -> list[Ran]:
        """`Store.recover`, awaited."""
        import asyncio

        from ._worker import recover

        return await asyncio.to_thread(recover, Store(self._log, self._tenant, owner=False), limit)

    async def answer(
        self, task_id: str, name: str, value: object, *, by: str | None = None, ask: str | None = None
    ) -> None:
        """`Store.answer`, awaited."""
        make = answering(self._log, stream_key(self._tenant, "task", task_id), name, value, by, ask)
        await ops.run_until_settled_async(self._log, make)

    async def signal(self, task_id: str, name: str, payload: object = None, *, id: str | None = None) -> bool:
        """`Store.signal`, awaited."""
        make = signalling(self._log, stream_key(self._tenant, "task", task_id), name, payload, id)
        return await ops.run_until_settled_async(self._log, make)

    async def resolve(self, task_id: str, step: str, *, result: object = ..., retry: bool = False) -> None:
        """`Store.resolve`, awaited."""
        make = resolving(self._log, stream_key(self._tenant, "task", task_id), step, result, retry)
        await ops.run_until_settled_async(self._log, make)

    async def artifact(self, task_id: str, name: str) -> AsyncArtifact:
        """`Store.artifact`, awaited."""
        found = await ops.run_async(self._log, find_artifact(stream_key(self._tenant, "task", task_id), name))
        return AsyncArtifact(self._log, found)

    async def prompt(self, task_id: str, step: str) -> list[Any]:
        """`Store.prompt`, awaited."""
        from .tasks._saw import prompt

        key = stream_key(self._tenant, "task", task_id)
        return await ops.run_until_settled_async(self._log, lambda: prompt(key, step))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> Coroutine[Any, Any, int]:
        """`Store.save_checkpoint`, awaited. The document is taken when this is called."""
        from .tasks._checkpoint import save_checkpoint

        return ops.run_async(self._log, save_checkpoint(self._log, self._tenant, checkpoint))

    async def load_checkpoint(self, task_id: str) -> AgentCheckpoint | None:
        """`Store.load_checkpoint`, awaited."""
        from .tasks._checkpoint import load_checkpoint

        return await ops.run_until_settled_async(self._log, lambda: load_checkpoint(self._tenant, task_id))

    def stream(self, id: str, *, types: Iterable[EventType] = ()) -> AsyncStream:
        """`Store.stream`, with awaited methods."""
        return AsyncStream(self._log, stream_key(self._tenant, "stream", id), types)

    async def streams(self) -> AsyncIterator[StreamInfo]:
        """`Store.streams` as an async iterator."""
        async for info in self._infos("stream"):
            yield info

    def state(self, id: str, type: Any = Any) -> AsyncState:
        """`Store.state`, with awaited methods."""
        return AsyncState(self._log, stream_key(self._tenant, "state", id), type)

    async def states(self) -> AsyncIterator[StreamInfo]:
        """`Store.states` as an async iterator."""
        async for info in self._infos("state"):
            yield info

    def memory(self, namespace: str, *, embed: Embed | None = None, weights: Weights | None = None) -> AsyncMemory:
        """`Store.memory`, with awaited methods. `embed` may be a coroutine function."""
        from .memory._memory import AsyncMemory

        return AsyncMemory(self._log, stream_key(self._tenant, "memory", namespace), weights, embed)

    async def memories(self) -> AsyncIterator[StreamInfo]:
        """`Store.memories` as an async iterator."""
        async for info in self._infos("memory"):
            yield info

    async def _infos(self, kind: str) -> AsyncIterator[StreamInfo]:
        after = ""
        while True:
            found, after = await ops.run_async(self._log, list_streams(self._tenant, kind, after))
            for info in found:
                yield info
            if not after:
                return

    async def sweep(
        self,
        *,
        dry_run: bool = False,
        limit: int = 1000,
        grace: float | timedelta = timedelta(days=1),
        force: bool = False,
    ) -> Swept:
        """`Store.sweep`, awaited."""
        return await sweep_async(self._log, self._tenant, dry_run=dry_run, limit=limit, grace=grace, force=force)

    async def erase(
        self, what: Erasable | None = None, *, subject: str | None = None, reason: str = "erased by the program"
    ) -> Erasure:
        """`Store.erase`, awaited."""
        from .encryption._erasure import erase

        return await self._log.in_thread(erase, self._log, self._tenant, what, subject, reason)

    async def rekey(self, key: KeyLike, *, progress: Callable[[int], object] | None = None) -> Rekeyed:
        """`Store.rekey`, awaited. `progress` is called in a thread."""
        from .encryption._rotation import rekey

        return await self._log.in_thread(rekey, self._log, key, progress)

    async def verify(
        self,
        anchor: str | os.PathLike[str] | None = None,
        *,
        anchor_key: AnchorKey | None = None,
        since: str | os.PathLike[str] | None = None,
        all_tenants: bool = False,
        progress: Callable[[VerifyProgress], object] | None = None,
    ) -> Verified:
        """`Store.verify`, awaited. It runs in threads, and so does `progress`."""
        from ._verifying import verify_async

        tenant = None if all_tenants else self._tenant
        return await verify_async(
            self._log, tenant, anchor=anchor, anchor_key=anchor_key, since=since, progress=progress
        )

    async def anchor(
        self,
        to: str | os.PathLike[str] | IO[str],
        *,
        key: AnchorKey | None = None,
        all_tenants: bool = False,
        overwrite: bool = False,
    ) -> Anchor:
        """`Store.anchor`, awaited."""
        import asyncio

        plain = Store(self._log, self._tenant, owner=False)
        return await asyncio.to_thread(plain.anchor, to, key=key, all_tenants=all_tenants, overwrite=overwrite)

    async def audit(self, id: str, *, kind: str = "task", content: bool = False) -> Audit:
        """`Store.audit`, awaited."""
        from ._audit import audit, audited

        return await ops.run_async(self._log, audit(audited(self._tenant, kind, id), content=content))

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncStore on {type(self._log.backend).__name__}, tenant {self._tenant!r}>"
