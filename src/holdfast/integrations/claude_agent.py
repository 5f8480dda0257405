"""Sessions of the Claude Agent SDK, kept in a store, so that any machine can resume them.

    options = ClaudeAgentOptions(session_store=HoldfastSessionStore(store), resume=session_id)
    async for message in query(prompt="And the second one?", options=options):
        ...

A session is a conversation: its messages are the lines of the transcript, as the SDK hands them
over. The id of that conversation is `claude/PROJECT/SESSION`; transcripts of subagents are in
`claude-subagent/PROJECT/SESSION/SUBPATH`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, unquote

from .. import AsyncConversation, AsyncStore, Conflict, Store
from ..errors import Expired, IdReused, NotSerializable
from ..log.codec import encode
from ..log.validation import check_seconds
from .listing import join_id, list_ids

try:
    from claude_agent_sdk import fold_session_summary
except ImportError as error:
    raise ImportError(
        "holdfast.integrations.claude_agent needs the Claude Agent SDK, in a version with session "
        "stores (0.2 or newer): pip install -U claude-agent-sdk"
    ) from error

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

    from ..redact import Redactor
    from ..types import AppendResult, MessageEntry

__all__ = ["HoldfastSessionStore"]

Message = dict[str, Any]

SESSION: Final = "claude"
SUBAGENT: Final = "claude-subagent"
KNOWN_SESSIONS: Final = 128
"""For up to this many sessions, a process remembers which entries are stored."""

# Two kinds of messages are not entries of the SDK.
OURS: Final = "holdfast-"
SUMMARY: Final = "holdfast-summary"
"""The last message of each append to a session: what listings show, as of that entry."""
NO_SUMMARY: Final[Message] = {"type": SUMMARY, "data": {}}
WRAPPED: Final = "holdfast-json"
"""An entry that is valid JSON only for the SDK, with half an emoji for example, as text."""


class HoldfastSessionStore:
    """A `SessionStore` of the Claude Agent SDK on a Holdfast store.

    Each call of `append` is atomic. An entry with a `uuid` is stored once, even if the SDK repeats
    it from another process. Any number of sessions, tasks and processes may use it.
    """

    def __init__(
        self,
        store: Store | AsyncStore,
        *,
        ttl: float | timedelta | None = None,
        subject: str | None = None,
    ) -> None:
        """Keep sessions in `store`; in those of a tenant with `store.for_tenant("acme")`.

        Args:
            store: An open store.
            ttl: Let each transcript expire this long after its last entry.
            subject: The person or customer that the sessions are about, for `store.erase`.
        """
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                "HoldfastSessionStore(store): store must be an open store, "
                f'like holdfast.open("agents.db"), got {type(store).__name__}'
            )
        self._store = store.aio if isinstance(store, Store) else store
        self._ttl = None if ttl is None else check_seconds(ttl, "ttl")
        self._subject = subject
        self._known: OrderedDict[str, _Transcript] = OrderedDict()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Store the entries that are not stored yet, in one append, durably."""
        if not entries:
            return
        chat = self._conversation(_conversation_id(key))
        known, checked, taken = self._known.get(chat.id), False, False
        while True:
            if known is None:
                known, checked = await self._read_known(chat), True
            new = known.leave_out_stored(entries)
            if len(new) < len(entries) and not checked:
                # Repeats are rare. Before an entry is left out, check that it is still stored: the
                # session may have been deleted and started again by another process.
                known = None
                continue
            if not new:
                return
            summary = None if "subpath" in key else _fold_summary(known.summary, key, new)
            # The uuid is the append id. Only one append can follow a version, so a version can name
            # an append without uuid, or one of an entry that an operator has removed.
            name = next((uuid for uuid in map(_uuid, new) if uuid), "")
            if taken or not name:
                name = f"{name} after {known.version}"
            try:
                messages = _as_messages(new, summary, chat._log.redaction.redactor)
                result = await _append_messages(chat, messages, id=name, if_version=known.version)
            except (Conflict, IdReused) as error:
                known, taken = None, isinstance(error, IdReused)
                continue
            if result.duplicate:  # stored by an earlier call whose outcome was unknown
                self._known.pop(chat.id, None)
            else:
                known.add(new, result.last, summary)
            return

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries, in order; None if there are none, or if they have expired."""
        chat = self._conversation(_conversation_id(key))
        try:
            messages = await chat.messages()
        except Expired:
            return None
        return _as_entries(messages) or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, with the time of the last entry of each."""
        return [
            {"session_id": session, "mtime": _milliseconds(newest)}
            for session, newest in await self._read_newest_of_each(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of a project's sessions, as of the last entry of each."""
        return [
            {"session_id": session, "mtime": _milliseconds(newest), "data": summary}
            for session, newest in await self._read_newest_of_each(project_key)
            if (summary := _summary_in(newest.message)) is not None
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with the transcripts of its subagents, or one of these only.

        If it is interrupted, call it again: the session itself is deleted last.
        """
        for other in [] if "subpath" in key else await self.list_subkeys(key):
            await self._delete(_conversation_id({**key, "subpath": other}))
        await self._delete(_conversation_id(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths that a session has entries under."""
        found = await list_ids(self._store, SUBAGENT, key["project_key"], key["session_id"])
        return [unquote(subpath) for subpath in found]

    # -- conversations -----------------------------------------------------------------------------

    def _conversation(self, id: str) -> AsyncConversation:
        return self._store.conversation(id, subject=self._subject)

    async def _read_known(self, chat: AsyncConversation) -> _Transcript:
        """Read which entries are stored. A new session gets its expiry before any entry."""
        version = await chat.version()  # read first: entries appended later are a conflict
        stored = await chat.entries()
        if self._ttl is not None and all(entry.message == NO_SUMMARY for entry in stored):
            await chat.append(NO_SUMMARY, id="created")
            if (await chat.view()).expires_at is None:
                await chat.expire(self._ttl, sliding=True)
            version, stored = await chat.version(), await chat.entries()
        known = self._known[chat.id] = _Transcript(version, stored)
        self._known.move_to_end(chat.id)
        while len(self._known) > KNOWN_SESSIONS:
            self._known.popitem(last=False)
        return known

    async def _delete(self, id: str) -> None:
        self._known.pop(id, None)
        await self._store.conversation(id).delete(reason="deleted by the Claude Agent SDK")

    async def _read_newest_of_each(self, project_key: str) -> list[tuple[str, MessageEntry]]:
        """Return each session of a project with its newest message, which has its summary."""
        found = []
        for session in map(unquote, await list_ids(self._store, SESSION, project_key)):
            key: SessionKey = {"project_key": project_key, "session_id": session}
            try:
                newest = await self._conversation(_conversation_id(key)).entries(last=1)
            except Expired:
                continue  # since it was listed
            if newest and newest[0].message != NO_SUMMARY:
                found.append((session, newest[0]))
        return found


class _Transcript:
    """What this process knows of a stored transcript: its version, its uuids and its summary."""

    def __init__(self, version: int, stored: Sequence[MessageEntry]) -> None:
        self.version = version
        self.summary = _summary_in(stored[-1].message) if stored else None
        entries = _as_entries(entry.message for entry in stored)
        self._uuids = {uuid for uuid in map(_uuid, entries) if uuid}

    def leave_out_stored(self, entries: Iterable[SessionStoreEntry]) -> list[SessionStoreEntry]:
        """Return the entries that are not stored, each of them once."""
        new: list[SessionStoreEntry] = []
        seen: set[str] = set()
        for entry in entries:
            uuid = _uuid(entry)
            if uuid is None or (uuid not in self._uuids and uuid not in seen):
                new.append(entry)
            if uuid is not None:
                seen.add(uuid)
        return new

    def add(
        self, entries: Iterable[SessionStoreEntry], version: int, summary: Message | None
    ) -> None:
        self._uuids.update(uuid for uuid in map(_uuid, entries) if uuid)
        if version > self.version:  # a concurrent call may have read further
            self.version, self.summary = version, summary


def _conversation_id(key: SessionKey) -> str:
    names = [key["project_key"], key["session_id"]]
    if "subpath" in key:
        return f"{join_id(SUBAGENT, *names)}/{quote(key['subpath'])}"
    return join_id(SESSION, *names)


def _uuid(entry: SessionStoreEntry) -> str | None:
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid else None


def _milliseconds(entry: MessageEntry) -> int:
    return int(entry.at.timestamp() * 1000)


def _fold_summary(
    before: Message | None, key: SessionKey, entries: list[SessionStoreEntry]
) -> Message:
    previous: SessionSummaryEntry | None = (
        None if before is None else {"session_id": key["session_id"], "mtime": 0, "data": before}
    )
    return fold_session_summary(previous, key, entries)["data"]


# -- entries as messages of a conversation ---------------------------------------------------------


def _as_messages(
    entries: Iterable[SessionStoreEntry], summary: Message | None, redactor: Redactor | None
) -> list[Message]:
    messages = [
        _wrap(entry, redactor)
        if str(entry.get("type")).startswith(OURS) or not entry
        else dict(entry)
        for entry in entries
    ]
    return messages if summary is None else [*messages, {"type": SUMMARY, "data": summary}]


async def _append_messages(
    chat: AsyncConversation, messages: list[Message], *, id: str, if_version: int
) -> AppendResult:
    try:
        return await chat.append(*messages, id=id, if_version=if_version)
    except NotSerializable:
        redactor = chat._log.redaction.redactor
        fitting = [
            message if _is_storable(message) else _wrap(message, redactor) for message in messages
        ]
        if messages[-1]["type"] == SUMMARY:
            fitting[-1] = {**fitting[-1], "type": SUMMARY}
        return await chat.append(*fitting, id=id, if_version=if_version)


def _is_storable(message: Message) -> bool:
    try:
        encode(message)
    except NotSerializable:
        return False
    return True


def _wrap(message: Mapping[str, Any], redactor: Redactor | None) -> Message:
    """Return a message with any JSON as ASCII text, which can contain half an emoji too.

    It is redacted first: in a text, the store would find only some of the secret fields.
    """
    whole = dict(message)
    if redactor is not None:
        whole = redactor.value(whole)
    return {"type": WRAPPED, "json": json.dumps(whole)}


def _as_entries(messages: Iterable[Message]) -> list[SessionStoreEntry]:
    found = [
        json.loads(message["json"]) if message.get("type") == WRAPPED else message
        for message in messages
        if message.get("type") != SUMMARY
    ]
    return cast("list[SessionStoreEntry]", found)


def _summary_in(message: Message) -> Message | None:
    """Return the summary in a message; None if there is none, or it is not about an entry."""
    if message.get("type") != SUMMARY:
        return None
    whole = json.loads(message["json"]) if "json" in message else message
    return whole["data"] or None


def _is_a_session_store(store: HoldfastSessionStore) -> SessionStore:
    return store  # for the type checker
