"""Sessions of the OpenAI Agents SDK in a store, and runs that wait for an approval.

    session = HoldfastSession("user-42", store)
    result = await Runner.run(agent, "What did I order?", session=session)

Each session is the conversation of the same id, so `store.conversation("user-42")` shows what was said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from .. import AsyncConversation, AsyncState, AsyncStore, Store
from ..errors import NotSerializable

try:
    from agents import (
        Agent,
        RunContextWrapper,
        RunResult,
        RunResultStreaming,
        RunState,
        SessionSettings,
    )
    from agents.items import TResponseInputItem
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.openai_agents needs the Agents SDK: pip install openai-agents"
    ) from error

if TYPE_CHECKING:
    from agents.memory import Session

__all__ = ["HoldfastSession"]

Wrapper = RunContextWrapper[Any]


class HoldfastSession:
    """A session that survives its process. Use it from any number of runs, threads and event loops.

    With `tenant`, which is given the run's context, one session object serves many tenants, each with their own items.
    """

    session_id: str
    session_settings: SessionSettings | None

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        tenant: Callable[[Wrapper], str] | None = None,
    ) -> None:
        if not isinstance(session_id, str):
            raise TypeError(
                f"HoldfastSession(session_id, store): session_id must be a str, got {type(session_id).__name__}"
            )
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                "HoldfastSession(session_id, store): store must be an open store, "
                f'like holdfast.open("agents.db"), got {type(store).__name__}'
            )
        self.session_id = session_id
        self.session_settings = coerce_session_settings(session_settings or SessionSettings())
        self._store = store.aio if isinstance(store, Store) else store
        self._tenant = tenant

    async def get_items(
        self, limit: int | None = None, *, wrapper: Wrapper | None = None
    ) -> list[TResponseInputItem]:
        """The items, oldest first; the latest `limit` of them, if given here or in the settings."""
        newest = resolve_session_limit(limit, self.session_settings)
        items = await self._chat(wrapper).messages(last=None if newest is None else max(newest, 0))
        return cast("list[TResponseInputItem]", items)

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None
    ) -> None:
        """Add items, all or none. Their ids are not looked at: models that have none give them all the same one."""
        if items:
            await self._chat(wrapper).append(*items)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Take out the newest item; no two callers get the same one."""
        return cast("TResponseInputItem | None", await self._chat(wrapper).pop())

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Begin again without items. What was said stays in the log; the conversation's `delete` removes it."""
        await self._chat(wrapper).clear()

    async def save_run(self, result: RunResult | RunResultStreaming | RunState[Any, Any]) -> bool:
        """Keep a run that waits for approvals, so that any process can go on with it. True if it waits.

        Call it with what a run returned, before anybody is asked. A run that has ended takes the place of the one that
        was kept: there is nothing left to go on with. `NotSerializable` if the store redacts, and would change one of its
        tool calls.
        """
        in_run = None if isinstance(result, RunState) else result.context_wrapper
        state = result if isinstance(result, RunState) else result.to_state()
        document = self._run_document(in_run)
        if not state.get_interruptions():
            await document.clear()
            return False
        saved = state.to_json()
        if _is_changed(saved, document._log.redaction.redact_value):
            raise NotSerializable(
                "the run",
                "a tool call in it has something to be redacted, and the SDK goes on only with calls as they were: have the "
                "tool look it up by a name. Nothing was stored",
            )
        await document.save(saved)
        return True

    async def load_run(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """The run that waits for approvals, to be approved or rejected and given to `Runner.run`; None if there is none.

        None too if that run has gone on since: the session has the result of a call that was waiting, so to approve it
        now would make that call twice. `options` are those of `RunState.from_json`, like `context_override`.
        """
        saved = await self._run_document(None).load(None)
        if saved is None:
            return None
        state = await RunState.from_json(agent, saved, **options)
        waiting = {item.call_id for item in state.get_interruptions() if item.call_id}
        done = {_settles(item) for item in await self._chat(None).messages()}
        return None if waiting & done else state

    def _chat(self, wrapper: Wrapper | None) -> AsyncConversation:
        return self._of_tenant(wrapper).conversation(self.session_id)

    def _run_document(self, wrapper: Wrapper | None) -> AsyncState[Any]:
        return self._of_tenant(wrapper).state(f"run of {self.session_id}")

    def _of_tenant(self, wrapper: Wrapper | None) -> AsyncStore:
        if self._tenant is None:
            return self._store
        if wrapper is None:
            raise TypeError(
                "this session asks the run's context for its tenant, and there is no run here; "
                "use HoldfastSession(session_id, store.for_tenant(...))"
            )
        return self._store.for_tenant(self._tenant(wrapper))


def _settles(item: dict[str, Any]) -> str | None:
    """The id of the call that an item is the result of, or of the request for approval that it answers."""
    found: str | None = item.get("call_id") if "output" in item else item.get("approval_request_id")
    return found


def _is_changed(part: Any, stored: Callable[[Any], Any]) -> bool:
    """Whether a tool call somewhere in this would be another as it is stored. The SDK keeps a hash of each, and looks at it."""
    if isinstance(part, list):
        return any(_is_changed(item, stored) for item in part)
    if not isinstance(part, dict):
        return False
    is_call = isinstance(part.get("call_id"), str) and str(part.get("type")).endswith("_call")
    return (
        stored(part) != part
        if is_call
        else any(_is_changed(item, stored) for item in part.values())
    )


def _is_a_session(session: HoldfastSession) -> Session:
    return session  # for the type checker
