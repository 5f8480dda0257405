"""Replaying a task: its program is run against what is recorded, and nothing is called, written or waited for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, overload

import msgspec

from ...backends import AppendResult, Head, StreamKey
from ...errors import IdReused, NotFound, Suspended
from ...log import context
from ...log import operations as ops
from ...log.codec import Undecodable, decode, decode_as
from ...log.ids import append_id
from ...log.log import Log
from ...log.operations import Operation
from ...log.reprs import Readable
from ...log.validation import whole_number
from ..agents.declare import Agent
from ..agents.run import _declared
from ..control.lifecycle import existing
from ..run.claim import TASK_TTL, as_wanted
from ..run.effects import drive, drive_async
from ..run.session import Session
from ..state.load import load
from ..state.view import Drift
from ..task import AsyncTask, Task
from .recording import Diverged, Divergence, Recording, ReplayState, is_failure

if TYPE_CHECKING:
    from ..._store import AsyncStore, Store


class ReplayResult(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """What became of a replay: how far the program and the recording agree."""

    task: str
    version: int
    """The version of the recording up to which it was replayed."""
    ended: str
    """"finished", "suspended" or "failed", as recorded; "recording ended": the program would go on; or "diverged"."""
    divergence: Divergence | None = None
    """Where the program first departs from the recording."""
    result: Any = None
    """What the program has finished with, of the type that it is annotated to return."""
    steps: list[str] = []
    """The steps that were given back, in order."""
    orphaned: list[str] = []
    """Recorded steps that the program has not asked for."""
    drift: list[Drift] = []
    """Steps whose function is another one now, or whose model is: their results were given back all the same."""
    error: BaseException | None = None
    """The exception that has ended the program, if one did."""

    @property
    def ok(self) -> bool:
        """Whether the program came as far as the recording goes, and departed from it nowhere."""
        return self.divergence is None

    def __str__(self) -> str:
        lines = [f"replay of task {self.task!r} (version {self.version}): {self.ended}"]
        found = self.divergence
        if found is not None:
            lines += [
                f"  departs in: {found.what}" + (f" ({found.step})" if found.step else ""),
                f"    recorded: {found.recorded or 'nothing'}",
                f"    asked:    {found.asked or 'nothing'}",
            ]
        if self.error is not None:
            lines.append(f"  error: {type(self.error).__name__}")
        lines.append(f"  given back: {', '.join(self.steps) or 'nothing'}")
        if self.orphaned:
            lines.append(f"  not asked for: {', '.join(self.orphaned)}")
        lines += [f"  changed since: {entry.what} of {entry.step}" for entry in self.drift]
        return "\n".join(lines)


class _ReadOnly:
    """A log that stores nothing. What is stored already, under the same id, is a repeat; anything else departs from the recording."""

    def __init__(self, log: Log, refuse: Callable[[str, str, str], Any]) -> None:
        self._log, self._refuse = log, refuse
        self._ids: dict[StreamKey, dict[bytes, list[int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def handle(self, request: ops.Request) -> Any:
        return (
            self._answer(request)
            if isinstance(request, ops.AppendRecords | ops.Delete)
            else self._log.handle(request)
        )

    async def handle_async(self, request: ops.Request) -> Any:
        if isinstance(request, ops.AppendRecords | ops.Delete):
            return await self._log.in_thread(self._answer, request)
        return await self._log.handle_async(request)

    def _answer(self, request: ops.AppendRecords | ops.Delete) -> Any:
        if isinstance(request, ops.AppendRecords) and request.id is not None:
            versions = self._stored(request.stream).get(append_id(request.id))
            if versions is not None:
                repeat = AppendResult(versions[0], versions[-1], duplicate=True)
                try:
                    self._log._compare(request, repeat)
                    return repeat
                except IdReused:
                    pass
        return self.refuse(request)

    def refuse(self, request: ops.AppendRecords | ops.Delete) -> Any:
        """Nothing is written, wherever it is asked for."""
        what = "message" if request.stream.kind == "conversation" else "write"
        deed = "delete" if isinstance(request, ops.Delete) else "append to"
        return self._refuse(request.stream.id, what, f"to {deed} {request.stream}")

    def _stored(self, stream: StreamKey) -> dict[bytes, list[int]]:
        """The versions of each append, by its id."""
        if stream not in self._ids:
            found: dict[bytes, list[int]] = {}
            after = 0
            while page := self._log.handle(ops.ReadRecords(stream, after)):
                for record in page:
                    found.setdefault(record.append_id, []).append(record.version)
                after = page[-1].version
            self._ids[stream] = found
        return self._ids[stream]


class _ReplayRun:
    """One replay: the task as the program sees it, and what becomes of it."""

    def __init__(
        self, log: Log, key: StreamKey, agent: Agent[Any, Any], found: tuple[Recording, Head]
    ) -> None:
        recording, head = found
        self._agent, self._recording = agent, recording
        self._replaying = replaying = ReplayState(recording)
        self._guard = _ReadOnly(log, replaying.new)
        wanted = as_wanted(None, None, None, agent.lease, 0.0, False, TASK_TTL, False)
        kind: type[Task] | type[AsyncTask] = AsyncTask if agent.is_async else Task
        self.task: Any = kind(cast("Log", self._guard), key, wanted, None, agent.is_async)
        session = Session(
            cast("Log", self._guard),
            recording,
            head.incarnation,
            "",
            agent.lease,
            head.now,
            agent.is_async,
        )
        session.replaying, session.opened_ended, session.run, session.suspending = (
            replaying,
            True,
            None,
            True,
        )
        self.task._session, self.task._resumed, self.task._input_type = session, False, agent.input
        self._error: BaseException | None = None

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The program runs here. No store that it uses writes anything."""
        self.task._inside()
        token = context.refusing.set(self._guard.refuse)
        context.replays += 1
        try:
            yield
        except BaseException as error:
            if not _is_an_end(error):
                raise
            self._error = error
        finally:
            context.replays -= 1
            context.refusing.reset(token)
            self.task._outside_again()

    @property
    def is_to_finish(self) -> bool:
        """Whether what the program returns is its result."""
        return self._recording.status == "running"

    def outcome(self) -> ReplayResult:
        replaying, session = self._replaying, self.task._session
        result = None
        if replaying.value is not None:
            try:
                result = decode_as(replaying.value, self._agent.returns)
            except Undecodable:
                result = decode(replaying.value)
                other = Divergence("", "result", "a result", "a result of another type")
                replaying.divergence = replaying.divergence or other
        return ReplayResult(
            task=self._recording.key.id,
            version=self._recording.version,
            ended=replaying.ended(self._error),
            divergence=replaying.divergence,
            result=result,
            steps=list(replaying.given),
            orphaned=replaying.orphaned(),
            drift=list(session.drift),
            error=self._error if is_failure(self._error) else None,
        )


def _is_an_end(error: BaseException) -> bool:
    """Whether the program has ended by itself or was stopped, also in a group of tasks; else somebody interrupts the replay."""
    parts = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts:
        return all(map(_is_an_end, parts))
    return isinstance(error, Exception | Suspended | Diverged)


def _recorded(key: StreamKey, version: int | None) -> Operation[tuple[Recording, Head]]:
    """What is recorded of a task, up to a version."""
    head = yield from existing(key)
    if version is not None and not 1 <= whole_number(version, "version") <= head.version:
        raise NotFound(f"there is no version {version} of {key}")
    recording = Recording(key)
    yield from load(key, version, recording)
    return recording, head


def run_again(
    log: Log, key: StreamKey, agent: Agent[Any, Any], version: int | None
) -> ReplayResult:
    """Replay the task of a plain agent."""
    if agent.is_async:
        raise TypeError(f"agent {agent.name!r} is async; use `await store.aio.replay(…)`")
    declared = _declared(agent)
    run = _ReplayRun(log, key, agent, ops.run(log, _recorded(key, version)))
    with run.inside():
        value = agent.fn(run.task)
        if run.is_to_finish:
            drive(log, run.task._finishing(value, (), {}, declared))
    return run.outcome()


async def run_again_async(
    log: Log, key: StreamKey, agent: Agent[Any, Any], version: int | None
) -> ReplayResult:
    """`run_again`, awaited, for any agent; a plain one runs in a thread."""
    if not agent.is_async:
        import asyncio

        return await asyncio.to_thread(run_again, log, key, agent, version)
    declared = _declared(agent)
    run = _ReplayRun(log, key, agent, await ops.run_async(log, _recorded(key, version)))
    with run.inside():
        value = await agent.fn(run.task)
        if run.is_to_finish:
            await drive_async(log, run.task._finishing(value, (), {}, declared))
    return run.outcome()


@overload
def replay(
    agent: str | Callable[..., Any], id: str, *, store: Store, version: int | None = None
) -> ReplayResult: ...


@overload
def replay(
    agent: str | Callable[..., Any], id: str, *, store: AsyncStore, version: int | None = None
) -> Coroutine[Any, Any, ReplayResult]: ...


def replay(
    agent: str | Callable[..., Any],
    id: str,
    *,
    store: Store | AsyncStore,
    version: int | None = None,
) -> Any:
    """Run an agent against what its task has recorded, up to `version`: nothing is called, written or waited for.

    Recorded results, failures, answers and plans are given back, and the first place where the agent departs from them is told.
    The task is only read, whatever its state and whoever works on it. With an async store it is awaited.
    """
    return store.replay(agent, id, version=version)
