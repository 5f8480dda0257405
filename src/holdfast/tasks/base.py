"""The base of `Task` and `AsyncTask`: properties, and one generator behind each method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgspec

from ..backends import StreamKey
from ..errors import SchemaMismatch
from ..log.codec import Undecodable, decode, decode_as
from ..log.drivers import EffectGen
from ..log.events import new_append_context
from ..log.head_fields import TASK_TTL
from ..log.ids import stream_key
from ..log.operations import Operation
from ..log.validation import check_int
from .agents.declare import find_agent, registered_agents
from .agents.run import child_step
from .control.lifecycle import ForkRequest
from .control.requests import encode_value
from .plan import iterate_remaining
from .run.claim import OpenOptions, check_open_options, check_text
from .run.enter import EnterableTask
from .run.frames import CallFunction, Frame, current_frame
from .state import events as ev
from .state import load
from .state.view import PlanItem, Status, TaskView
from .steps.declare import UNRESOLVED, is_async
from .steps.doubt import await_gen
from .steps.identity import fingerprint
from .steps.run import call_step_gen
from .steps.usage import Usage

if TYPE_CHECKING:
    from ..memory.model import MemoryItem
    from ..memory.trust import Trust


class TaskBase(EnterableTask):
    """The properties of a task, and the generators behind its methods."""

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    # -- properties --------------------------------------------------------------------------------

    @property
    def goal(self) -> str | None:
        """The goal of the task."""
        return self._require_session().state.goal

    @property
    def input(self) -> Any:
        """The input of the task, of the type it was opened with; plain JSON values by default."""
        try:
            return decode_as(self._require_session().state.input, self._input_type)
        except Undecodable as error:
            raise SchemaMismatch(str(self._key), version=1, type="input", what=str(error)) from None

    @property
    def agent(self) -> str | None:
        """The name of the agent that runs the task."""
        return self._require_session().state.agent

    @property
    def subject(self) -> str | None:
        """Whom the task is about."""
        return self._require_session().state.subject

    @property
    def status(self) -> Status:
        """`running` inside the task's block, or how the task ended."""
        return self._require_session().state.status

    @property
    def resumed(self) -> bool:
        """Whether an earlier run started the task."""
        self._require_session().matching.consulted = True
        return self._resumed

    @property
    def cancelled(self) -> bool:
        """Whether the task was cancelled, as far as this process knows.

        This process notices a cancellation by another one within a third of the lease.
        """
        return self._require_session().state.status == "cancelled"

    @property
    def usage(self) -> Usage:
        """What the model calls of the task's steps have used so far, in all runs."""
        return self._require_session().state.usage

    @property
    def plan(self) -> list[PlanItem]:
        """All items of the plan, finished or not."""
        return deepcopy(self._require_session().state.plan)

    @property
    def result(self) -> Any:
        """The result as plain JSON values; None until the task is finished."""
        return decode(self._require_session().state.result)

    @property
    def in_doubt(self) -> list[str]:
        """The paths of the steps whose outcome is unknown."""
        session = self._require_session()
        session.matching.consulted = True
        with session.lock:
            return [
                path
                for path, step in session.state.steps.items()
                if step.in_doubt(None) and path not in session.steps.running
            ]

    def remaining(self) -> Iterator[Any]:
        """Iterate over the items of the plan that are not finished.

        Items that `replan` adds during the loop are included.

        Returns:
            An iterator of items as they are in the plan: names, or dicts with a `name`.

        Raises:
            NoTask: The task is not entered.

        Example:
            >>> for item in task.remaining():
            ...     task.step(item, execute, item)
        """
        return iterate_remaining(self._require_session())

    def _results_gen(self) -> Operation[dict[str, Any]]:
        session = self._require_session()
        session.matching.consulted = True
        with session.lock:
            session.matching.asked.update(
                path for path, step in session.state.steps.items() if step.state == "completed"
            )
        return load.load_results(
            session.state, None if session.replaying is None else session.replaying.replayed
        )

    # -- steps -------------------------------------------------------------------------------------

    def _scope(self) -> str:
        """Return the path of this task's step that the running code is in; "" outside steps."""
        inside = current_frame()
        return inside.path if inside is not None and inside.session is self._session else ""

    def _reply_gen(
        self, chat: object, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
    ) -> EffectGen[Any]:
        from .steps.reply import reply_step

        declared = reply_step(self, chat, fn)
        return call_step_gen(
            self, declared, current_frame(), declared.name, (declared.conversation, *args), kwargs
        )

    def _child_gen(
        self,
        given: str | Callable[..., Any],
        id: str,
        goal: str | None,
        input: object,
        returns: Any,
    ) -> EffectGen[Any]:
        """Return the result of a child task."""
        agent = find_agent(given)
        if registered_agents.get(agent.name) is not agent:
            raise TypeError(
                "the agent of a child must be registered, so that a worker can resume it: "
                f"@holdfast.agent({agent.name!r})"
            )
        key = self._child_key(id)
        subject = self._require_session().state.subject
        options = check_open_options(
            goal, input, agent.name, agent.lease, 0.0, False, TASK_TTL, False, subject=subject
        )
        returns = agent.returns if returns is UNRESOLVED else returns
        declared = child_step(self, agent, options, key.id, returns)
        return call_step_gen(self, declared, current_frame(), agent.name, (goal, input), {})

    def _evaluate_gen(
        self, given: Any, args: Any, kwargs: Mapping[str, Any], inside: Frame | None = None
    ) -> EffectGen[Any]:
        """Return the given value. Call a function, in the frame `inside`, and return its result."""
        if not callable(given):
            if args or kwargs:
                raise TypeError("arguments are allowed only with a function, not with a value")
            return given
        awaits = is_async(given)
        if awaits and not self._asynchronous:
            raise TypeError(
                "an async function cannot run in a synchronous task; "
                "open it with `async with store.aio.task(…)`"
            )
        value = yield CallFunction(given, args, kwargs, inside, awaits)
        if hasattr(value, "__await__"):
            value = yield from await_gen(self._require_session(), value, inside)
        return value

    def _note_gen(self, name: str, text: str, why: str | None) -> EffectGen[None]:
        session = self._require_session()
        text = check_text(text, "what")
        if why is not None:
            why = check_text(why, "why")
        session.check_active()
        scope = self._scope()
        digest = fingerprint(session.salt, (name, scope, text, why), {})
        if session.writer.needs_catch_up:
            yield from session.catch_up()
        number = session.counters.take(scope, (name, digest))
        note_id = f"{digest}/{number}"
        if session.replaying is not None:
            session.replaying.note(name, note_id)
        if note_id not in session.state.noted:
            noted = ev.Noted(note_id, text, why, scope)
            try:
                yield from session.put([(name, noted)], new_append_context())
            except BaseException:
                session.counters.release(scope, (name, digest), number)
                raise

    def _remember_gen(self, text: str, **options: Any) -> EffectGen[str]:
        from . import memory

        return memory.remember(self, text, options)

    def _relevant_memories_gen(
        self, view: TaskView, most: int, trust: Trust | None
    ) -> EffectGen[list[MemoryItem]]:
        """Return the memories of the task's agent that fit the goal."""
        from . import memory

        return memory.recall_relevant(self, view, check_int(most, "memories"), trust)

    def _child_key(self, id: str) -> StreamKey:
        child = stream_key(self._key.tenant, ev.KIND, id)
        if child == self._key:
            raise ValueError(f"id must differ from the task's own id, got {id!r}")
        return child

    def _fork_request(
        self,
        id: str,
        version: int | None,
        input: object,
        results: Mapping[str, object] | None,
        by: str | None,
    ) -> ForkRequest:
        return ForkRequest(
            self._child_key(id),
            version,
            None if input is ... else encode_value(self._log, input),
            {path: encode_value(self._log, result) for path, result in (results or {}).items()},
            by,
        )

    def _fork_options(self) -> OpenOptions:
        """Return the options for opening a fork. Its goal, input and so on are already stored."""
        return msgspec.structs.replace(
            self._options,
            goal=None,
            input=None,
            agent=None,
            budget=None,
            steal=False,
            restart=False,
        )
