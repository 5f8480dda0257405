"""PydanticAI's `ConversationStore` on conversations of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage

from ... import AsyncConversation, AsyncStore, Store
from ...errors import Conflict
from ...types import MessageEntry

_MESSAGE: Final[TypeAdapter[ModelMessage]] = TypeAdapter(ModelMessage)
_RECORD: Final = TypeAdapter(ConversationRecord)
_OURS: Final = "pydantic_ai"
"""The key in a message's meta for the data that PydanticAI keeps besides messages."""
NOTE: Final = {"kind": "note"}
"""The message of a change that adds no message: a fork, a branch, a deletion."""

KEPT_CONVERSATIONS: Final = 100
"""How many of the conversations that were read last are kept in memory."""


class HoldfastConversationStore(ConversationStore):
    """Stores PydanticAI conversations as conversations of the same id.

    A save is one atomic append: the new messages, and the record in their meta. A fork, a branch
    and a deletion append a note, because they add no message. Deleted conversations keep their
    messages, which forks may use; `store.conversation(id).delete()` removes them.

    Example:
        >>> conversations = HoldfastConversationStore(store)
        >>> talk = await conversations.load("user-42") or Conversation(conversation_id="user-42")
        >>> result = await agent.run("Hello", conversation=talk)
        >>> await conversations.save(result)
    """

    def __init__(self, store: Store | AsyncStore) -> None:
        if not isinstance(store, Store | AsyncStore):
            raise TypeError(
                "HoldfastConversationStore(store): store must be an open store, "
                f'like holdfast.open("agents.db"), got {type(store).__name__}'
            )
        self._store = store.aio if isinstance(store, Store) else store
        self._found: dict[str, dict[str, ConversationEntry]] = {}

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        record, _ = await self._load(conversation_id)
        origin = None if record is None else record.forked_from
        loaded = {conversation_id}
        while origin is not None and origin not in loaded:  # a fork uses the entries of its origin
            loaded.add(origin)
            above, _ = await self._load(origin)
            origin = None if above is None else above.forked_from
        return record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        records = []
        async for info in self._store.conversations():
            newest = await self._store.conversation(info.id).entries(last=1)
            record = _read_record(newest)
            if record is not None and (scope is None or record.scope == scope):
                records.append(record)
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        stored, version = await self._load(record.conversation_id)
        if stored is None and version:
            await self._check_ours(record.conversation_id)
        revision = None if stored is None else stored.revision
        head_id = record.head_id
        known = head_id is None or any(entry.id == head_id for entry in new_entries)
        if revision != expected_revision or not (known or await self._find(str(head_id))):
            raise ConversationConflict(record.conversation_id)
        messages = [_MESSAGE.dump_python(entry.message, mode="json") for entry in new_entries]
        meta = {
            "entries": [[entry.id, entry.parent_id] for entry in new_entries],
            "record": _RECORD.dump_python(record, mode="json"),
        }
        await self._append(record.conversation_id, messages or [NOTE], meta, version)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        stored, version = await self._load(conversation_id)
        if stored is None or stored.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        await self._append(conversation_id, [NOTE], {"entries": [], "record": None}, version)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        entry = await self._find(entry_id)
        if entry is None:
            raise LookupError(f"there is no entry {entry_id!r} in the store")
        return entry

    async def _append(
        self, conversation_id: str, messages: list[Any], meta: dict[str, Any], version: int
    ) -> None:
        try:
            await self._chat(conversation_id).append(
                *messages, meta={_OURS: meta}, if_version=version
            )
        except Conflict:
            raise ConversationConflict(conversation_id) from None

    async def _check_ours(self, conversation_id: str) -> None:
        newest = await self._chat(conversation_id).entries(last=1)
        if newest and _OURS not in newest[0].meta:
            raise ValueError(
                f"conversation {conversation_id!r} must be one that PydanticAI wrote, got another;"
                " use another conversation_id"
            )

    async def _load(self, conversation_id: str) -> tuple[ConversationRecord | None, int]:
        """Read a conversation. Return its record, if any, and its version."""
        chat = self._chat(conversation_id)
        version = await chat.version()
        messages = [entry for entry in await chat.entries() if entry.version <= version]
        found: dict[str, ConversationEntry] = {}
        batch: list[Any] = []
        place = 0
        for message in messages:
            entries = message.meta.get(_OURS, {}).get("entries", [])
            place, batch = (place + 1 if entries == batch else 0), entries
            if place < len(entries):
                entry_id, parent_id = entries[place]
                value = _MESSAGE.validate_python(message.message)
                found[entry_id] = ConversationEntry(id=entry_id, parent_id=parent_id, message=value)
        self._found.pop(conversation_id, None)
        self._found[conversation_id] = found  # the newest is the last
        while len(self._found) > KEPT_CONVERSATIONS:
            del self._found[next(iter(self._found))]
        return _read_record(messages), version

    async def _find(self, entry_id: str) -> ConversationEntry | None:
        """Return an entry. If it was not read lately, search all conversations."""
        for found in self._found.values():
            if entry_id in found:
                return found[entry_id]
        async for info in self._store.conversations():
            await self._load(info.id)
            if entry_id in self._found[info.id]:
                return self._found[info.id][entry_id]
        return None

    def _chat(self, conversation_id: str) -> AsyncConversation:
        return self._store.conversation(conversation_id)


def _read_record(entries: Sequence[MessageEntry]) -> ConversationRecord | None:
    """Return the newest record of a conversation; None if it has none, or was deleted."""
    record = entries[-1].meta.get(_OURS, {}).get("record") if entries else None
    return None if record is None else _RECORD.validate_python(record)
