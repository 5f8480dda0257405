"""Sessions for the OpenAI Agents SDK, kept in a store, and saved runs that wait for approval.

    session = HoldfastSession("user-42", store)
    result = await Runner.run(agent, "What did I order?", session=session)

A session is the conversation with the same id: `store.conversation("user-42")` reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

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

from ... import AsyncConversation, AsyncState, AsyncStore, Store
from ...errors import NotSerializable

if TYPE_CHECKING:
    from agents.memory import Session

Wrapper = RunContextWrapper[Any]


class HoldfastSession:
    """A durable session, usable from any number of runs, threads and event loops.

    `tenant`, a function from the run's context to a tenant, lets one session object serve many.
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
                "HoldfastSession(session_id, store): session_id must be a str, "
                f"got {type(session_id).__name__}"
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
        """Return the items, oldest first; only the newest if `limit` or the settings limit them."""
        newest = resolve_session_limit(limit, self.session_settings)
        items = await self._chat(wrapper).messages(last=None if newest is None else max(newest, 0))
        return cast("list[TResponseInputItem]", items)

    async def get_items_at(
        self, version: int, limit: int | None = None, *, wrapper: Wrapper | None = None
    ) -> list[TResponseInputItem]:
        """Return the items that are no newer than a version of the conversation."""
        newest = resolve_session_limit(limit, self.session_settings)
        entries = [
            entry for entry in await self._chat(wrapper).entries() if entry.version <= version
        ]
        first = 0 if newest is None else max(len(entries) - max(newest, 0), 0)
        return cast("list[TResponseInputItem]", [entry.message for entry in entries[first:]])

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: Wrapper | None = None
    ) -> None:
        """Add items atomically. Item ids are ignored: some models give all items the same id."""
        if items:
            await self._chat(wrapper).append(*items)

    async def pop_item(self, *, wrapper: Wrapper | None = None) -> TResponseInputItem | None:
        """Remove and return the newest item; two callers never get the same one."""
        return cast("TResponseInputItem | None", await self._chat(wrapper).pop())

    async def clear_session(self, *, wrapper: Wrapper | None = None) -> None:
        """Clear the session. The log keeps the items; the conversation's `delete` removes them."""
        await self._chat(wrapper).clear()

    async def save_run(self, result: RunResult | RunResultStreaming | RunState[Any, Any]) -> bool:
        """Save a run that waits for approvals, so that any process can resume it.

        Call it with the result of a run before you ask for approval. If that run has ended, the
        saved run is removed.

        Returns:
            True if the run waits for approvals.

        Raises:
            NotSerializable: The store's redaction would change one of the run's tool calls.
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
                "redaction would change a tool call, and the SDK resumes only unchanged calls; "
                "let the tool look the secret up by name. Nothing was stored",
            )
        await document.save(saved)
        return True

    async def load_run(self, agent: Agent[Any], **options: Any) -> RunState[Any, Any] | None:
        """Load the run that waits for approvals. Approve or reject, then pass it to `Runner.run`.

        Returns None if no run waits, or if the run has been resumed already: then the session has
        the result of a call that was waiting, and approving the call again would repeat it.
        `options` are passed to `RunState.from_json`, for example `context_override`.
        """
        saved = await self._run_document(None).load(None)
        if saved is None:
            return None
        state = await RunState.from_json(agent, saved, **options)
        waiting = {item.call_id for item in state.get_interruptions() if item.call_id}
        done = {_answered_call(item) for item in await self._chat(None).messages()}
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
                "this session takes its tenant from the run's context, but there is no run here; "
                "use HoldfastSession(session_id, store.for_tenant(...))"
            )
        return self._store.for_tenant(self._tenant(wrapper))


def _answered_call(item: dict[str, Any]) -> str | None:
    """Return the id of the call or approval request that an item answers."""
    found: str | None = item.get("call_id") if "output" in item else item.get("approval_request_id")
    return found


def _is_changed(part: Any, redact: Callable[[Any], Any]) -> bool:
    """Return whether redaction changes a tool call in `part`: the SDK checks a hash of each."""
    if isinstance(part, list):
        return any(_is_changed(item, redact) for item in part)
    if not isinstance(part, dict):
        return False
    is_call = isinstance(part.get("call_id"), str) and str(part.get("type")).endswith("_call")
    return (
        redact(part) != part
        if is_call
        else any(_is_changed(item, redact) for item in part.values())
    )


def _is_a_session(session: HoldfastSession) -> Session:
    return session  # for the type checker
