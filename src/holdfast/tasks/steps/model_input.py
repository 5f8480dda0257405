"""Record what the model saw in a model step, and read it back.

Messages of conversations are recorded as references. Other input is stored once per task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from ...backends import StreamKey
from ...conversations.base import ConversationBase as Conversation
from ...conversations.read import snapshot_at
from ...conversations.sources import ReadSource, VersionRange, read_listeners, reread_messages
from ...errors import CorruptRecord, DataProblem, NotFound
from ...log import operations as ops
from ...log.codec import Undecodable, decode, encode
from ...log.codec.walk import SourcedList
from ...log.drivers import EffectGen
from ...log.operations import Operation
from ..control.lifecycle import require_head
from ..run.frames import current_frame
from ..state import events as ev
from ..state.load import load_task

if TYPE_CHECKING:
    from ..run.session import Session


class ConversationRead:
    """One read of a conversation: all of it (`parts` is None), or some parts and their messages."""

    __slots__ = ("at", "id", "incarnation", "items", "parts")

    def __init__(
        self,
        id: str,
        incarnation: str,
        at: int,
        parts: Sequence[VersionRange | bytes] | None = None,
        items: Set[int | bytes] = frozenset(),
    ) -> None:
        self.id, self.incarnation, self.at, self.parts, self.items = (
            id,
            incarnation,
            at,
            parts,
            items,
        )


class ModelInputRecorder:
    """Records the input of a running model step: its arguments, and what the function reads."""

    __slots__ = ("_reads", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reads: list[ConversationRead] = []

    def start_gen(self, arguments: Iterable[object]) -> EffectGen[None]:
        """Start an attempt with these arguments."""
        self._reads = []
        for given in arguments:
            if isinstance(given, SourcedList):
                self.add_read(given.source, given)
            elif isinstance(given, Conversation) and self._is_in_store(given):
                read: ConversationRead | None = yield from _read_whole(given._key)
                if read is not None:
                    self._reads.append(read)

    def add_read(self, source: ReadSource | None, messages: Iterable[Any]) -> None:
        """Add messages of a conversation that the function was given or has read."""
        if (
            source is None
            or source.log is not self._session.log
            or source.key.tenant != self._session.key.tenant
        ):
            return
        try:
            parts = [
                part if isinstance(part, tuple) else encode(part)
                for part in source.to_ranges(messages)
            ]
        except DataProblem:
            return  # one of the messages cannot be stored
        if parts:
            items: set[int | bytes] = {
                *source.find_versions(messages),
                *(part for part in parts if isinstance(part, bytes)),
            }
            self._reads.append(
                ConversationRead(source.key.id, source.incarnation, source.at, parts, items)
            )

    def _is_in_store(self, conversation: Conversation) -> bool:
        session = self._session
        return conversation._log is session.log and conversation._key.tenant == session.key.tenant

    def parts(self) -> list[ev.ModelInputPart]:
        """Return the parts to store, without reads that other reads cover."""
        found: list[ev.ModelInputPart] = []
        for index, read in enumerate(self._reads):
            if any(
                _covers(other, read, place > index)
                for place, other in enumerate(self._reads)
                if place != index
            ):
                continue
            if read.parts is None:
                found.append(ev.ModelInputPart(read.id, read.incarnation, read.at))
            else:
                found += self._convert(read, read.parts)
        return found

    def _convert(
        self, read: ConversationRead, parts: Sequence[VersionRange | bytes]
    ) -> list[ev.ModelInputPart]:
        found: list[ev.ModelInputPart] = []
        for part in parts:
            if isinstance(part, bytes):
                digest = blake2b(part, digest_size=12, key=self._session.salt).hexdigest()
                stored = digest in self._session.state.texts or any(
                    other.digest == digest for other in found
                )
                found.append(
                    ev.ModelInputPart(digest=digest)
                    if stored
                    else ev.ModelInputPart(digest=digest, text=msgspec.Raw(part))
                )
            elif found and found[-1].versions:
                found[-1].versions.append(part)
            else:
                found.append(ev.ModelInputPart(read.id, read.incarnation, read.at, [part]))
        return found


def _read_whole(key: StreamKey) -> Operation[ConversationRead | None]:
    """Return a read of a whole conversation; None if it does not exist."""
    head = yield from ops.head(key)
    if head is None:
        return None
    return ConversationRead(
        key.id, head.incarnation.hex(), (yield from snapshot_at(key, head)).version
    )


def _covers(other: ConversationRead, read: ConversationRead, later: bool) -> bool:
    """Whether another read covers this one: a function may read a conversation twice."""
    if (other.id, other.incarnation) != (read.id, read.incarnation):
        return False
    if read.parts is None or other.parts is None:
        return read.parts is None and (other.parts is not None or later)
    return read.items < other.items or (read.items == other.items and later)


def _record_read(source: ReadSource, messages: Iterable[Any]) -> None:
    """Add a read to the input of the model step it happens in, if any."""
    frame = current_frame()
    if frame is not None and frame.run is not None and frame.run.model_input is not None:
        frame.run.model_input.add_read(source, messages)


read_listeners.append(_record_read)


def read_model_input(key: StreamKey, path: str) -> Operation[list[Any]]:
    """Return the messages that a step's model saw, as they were at the time."""
    head = yield from require_head(key)
    state = yield from load_task(key, end=head.version)
    step = state.steps.get(path)
    if step is None:
        raise NotFound(f"{key} has no step {path!r}")
    if not step.model_input:
        raise NotFound(
            f"the model input of step {path!r} of {key} is not recorded: it used no conversation"
        )
    found: list[Any] = []
    for part in step.model_input:
        if not part.digest:
            chat = key._replace(kind="conversation", id=part.conversation)
            found += yield from reread_messages(chat, part.incarnation, part.at, part.versions)
        else:
            try:
                text = decode(state.texts[part.digest])
            except (KeyError, Undecodable):
                text = None
            if not isinstance(text, list):
                raise CorruptRecord(
                    str(key), version=step.version, what="it references a missing text"
                )
            found += text
    return found
