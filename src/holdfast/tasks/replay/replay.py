"""Replay a task: run its agent against the recording, without calling, writing or waiting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast, overload

import msgspec

from ...backends import AppendResult, Head, StreamKey, clock
from ...errors import IdReused, NotFound, Suspended
from ...log import context
from ...log import operations as ops
from ...log.codec import Undecodable, decode, decode_as
from ...log.drivers import drive, drive_async
from ...log.head_fields import TASK_TTL
from ...log.ids import append_id
from ...log.log import Log
from ...log.operations import Operation
from ...log.reprs import ShortRepr
from ...log.validation import check_int
from ..agents.declare import Agent
from ..agents.run import _check_result_type
from ..control.lifecycle import require_head
from ..finish import finish_gen
from ..run.claim import check_open_options
from ..run.session import Session
from ..state.load import load_task
from ..state.view import Drift
from ..task import AsyncTask, Task
from .recording import Diverged, Divergence, Recording, ReplayState, is_failure

if TYPE_CHECKING:
    from ..._store import AsyncStore, Store


class ReplayResult(ShortRepr, msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay: how far the agent's code agrees with the recording."""

    task: str
    version: int
    """The last version of the recording that was used."""
    ended: str
    """How the replay ended.

    "finished", "suspended" or "failed", as recorded; "recording ended" if the code would continue;
    or "diverged".
    """
    divergence: Divergence | None = None
    """Where the code first diverges from the recording."""
    result: Any = None
    """The result of the agent, of its annotated type."""
    steps: list[str] = []
    """The steps whose recorded outcome was used, in order."""
    orphaned: list[str] = []
    """Recorded steps that the code has not requested."""
    drift: list[Drift] = []
    """Steps whose function or model has changed; their recorded results were used anyway."""
    error: BaseException | None = None
    """The exception that ended the agent, if any."""

    @property
    def ok(self) -> bool:
        """Whether the code got to the end of the recording without diverging."""
        return self.divergence is None

    def __str__(self) -> str:
        lines = [f"replay of task {self.task!r} (version {self.version}): {self.ended}"]
        divergence = self.divergence
        if divergence is not None:
            lines += [
                f"  diverges in: {divergence.what}"
                + (f" ({divergence.step})" if divergence.step else ""),
                f"    recorded:  {divergence.recorded or 'nothing'}",
                f"    requested: {divergence.asked or 'nothing'}",
            ]
        if self.error is not None:
            lines.append(f"  error: {type(self.error).__name__}")
        lines.append(f"  replayed: {', '.join(self.steps) or 'nothing'}")
        if self.orphaned:
            lines.append(f"  not requested: {', '.join(self.orphaned)}")
        lines += [f"  changed since: {entry.what} of {entry.step}" for entry in self.drift]
        return "\n".join(lines)


class _ReadOnlyLog:
    """A log that stores nothing. A write with a stored id is a repeat; any other one diverges."""

    def __init__(self, log: Log, refuse: Callable[[str, str, str], Any]) -> None:
        self._log, self._refuse = log, refuse
        self._ids: dict[StreamKey, dict[bytes, list[int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def handle(self, request: ops.Request) -> Any:
        return (
            self._answer_write(request)
            if isinstance(request, ops.AppendRecords | ops.Delete)
            else self._log.handle(request)
        )

    async def handle_async(self, request: ops.Request) -> Any:
        if isinstance(request, ops.AppendRecords | ops.Delete):
            return await self._log.run_in_thread(self._answer_write, request)
        return await self._log.handle_async(request)

    def _answer_write(self, request: ops.AppendRecords | ops.Delete) -> Any:
        if isinstance(request, ops.AppendRecords) and request.id is not None:
            versions = self._append_versions(request.stream).get(append_id(request.id))
            if versions is not None:
                repeat = AppendResult(versions[0], versions[-1], duplicate=True)
                try:
                    self._log._check_same_events(request, repeat)
                    return repeat
                except IdReused:
                    pass
        return self.refuse(request)

    def refuse(self, request: ops.AppendRecords | ops.Delete) -> Any:
        """Reject a write to any store."""
        what = "message" if request.stream.kind == "conversation" else "write"
        action = "delete" if isinstance(request, ops.Delete) else "append to"
        return self._refuse(request.stream.id, what, f"to {action} {request.stream}")

    def _append_versions(self, stream: StreamKey) -> dict[bytes, list[int]]:
        """Return the versions of a stream's appends, by append id."""
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
    """One replay: the task that the agent gets, and the outcome."""

    def __init__(
        self, log: Log, key: StreamKey, agent: Agent[Any, Any], recording: Recording, head: Head
    ) -> None:
        self._agent, self._recording = agent, recording
        self._replaying = replaying = ReplayState(recording)
        self._guard = _ReadOnlyLog(log, replaying.require_recorded)
        options = check_open_options(None, None, None, agent.lease, 0.0, False, TASK_TTL, False)
        kind: type[Task] | type[AsyncTask] = AsyncTask if agent.is_async else Task
        self.task: Any = kind(cast("Log", self._guard), key, options, None, agent.is_async)
        session = Session(
            cast("Log", self._guard),
            recording,
            head.incarnation,
            "",
            agent.lease,
            head.now,
            clock.monotonic(),
            agent.is_async,
        )
        session.replaying = replaying
        session.was_ended = session.suspension.is_pending = True
        self.task._session, self.task._resumed, self.task._input_type = session, False, agent.input
        self._error: BaseException | None = None

    @contextmanager
    def run_program(self) -> Iterator[None]:
        """Run the agent in this block. None of the stores that it uses writes anything."""
        self.task._enter_frame()
        token = context.write_refuser.set(self._guard.refuse)
        context.active_replays += 1
        try:
            yield
        except BaseException as error:
            if not _ends_program(error):
                raise
            self._error = error
        finally:
            context.active_replays -= 1
            context.write_refuser.reset(token)
            self.task._exit_frame()
            self.task._session.block.leave()

    @property
    def records_result(self) -> bool:
        """Whether the return value of the agent is its result."""
        return self._recording.status == "running"

    def outcome(self) -> ReplayResult:
        """Return the result of the replay."""
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
            ended=replaying.conclude(self._error),
            divergence=replaying.divergence,
            result=result,
            steps=list(replaying.replayed),
            orphaned=replaying.orphaned(),
            drift=list(session.matching.drift),
            error=self._error if is_failure(self._error) else None,
        )


def _ends_program(error: BaseException) -> bool:
    """Whether an error, or a group of errors, ended the agent or was raised to stop it.

    Any other error interrupts the replay itself.
    """
    parts = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts:
        return all(map(_ends_program, parts))
    return isinstance(error, Exception | Suspended | Diverged)


def _load_recording(key: StreamKey, version: int | None) -> Operation[tuple[Recording, Head]]:
    """Load the recording of a task, up to a version."""
    head = yield from require_head(key)
    if version is not None and not 1 <= check_int(version, "version") <= head.version:
        raise NotFound(f"there is no version {version} of {key}")
    recording = Recording(key)
    yield from load_task(key, version, recording)
    return recording, head


def replay_agent(
    log: Log, key: StreamKey, agent: Agent[Any, Any], version: int | None
) -> ReplayResult:
    """Replay the task of a synchronous agent."""
    if agent.is_async:
        raise TypeError(f"agent {agent.name!r} is async; use `await store.aio.replay(…)`")
    declared = _check_result_type(agent)
    run = _ReplayRun(log, key, agent, *ops.run(log, _load_recording(key, version)))
    with run.run_program():
        value = agent.fn(run.task)
        if run.records_result:
            drive(log, finish_gen(run.task, value, (), {}, declared))
    return run.outcome()


async def replay_agent_async(
    log: Log, key: StreamKey, agent: Agent[Any, Any], version: int | None
) -> ReplayResult:
    """Replay the task of any agent. A synchronous agent runs in a thread."""
    if not agent.is_async:
        import asyncio

        return await asyncio.to_thread(replay_agent, log, key, agent, version)
    declared = _check_result_type(agent)
    run = _ReplayRun(log, key, agent, *await ops.run_async(log, _load_recording(key, version)))
    with run.run_program():
        value = await agent.fn(run.task)
        if run.records_result:
            await drive_async(log, finish_gen(run.task, value, (), {}, declared))
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
    """Run an agent against the recording of its task, without calling, writing or waiting.

    The agent gets the recorded results, failures, answers and plans. The result says where the
    agent first diverges from them. The task is only read, and may have any status, even running.

    Args:
        agent: The agent, or its name.
        id: The task's id.
        store: The store. With an async store, await the result.
        version: Use the recording up to this version.
    """
    return store.replay(agent, id, version=version)
