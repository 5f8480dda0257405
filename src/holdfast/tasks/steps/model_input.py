"""What a model saw: pointers into conversations, and what was beside their messages, kept once per task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from ...backends import StreamKey
from ...conversations.base import ConversationBase as Conversation
from ...conversations.read import known_at
from ...conversations.sources import Range, Source, read_again, readers
from ...errors import CorruptRecord, DataProblem, NotFound
from ...log import operations as ops
from ...log.blobs import incarnation_hex
from ...log.codec import Undecodable, decode, encode
from ...log.codec.walk import SourcedList
from ...log.operations import Operation
from ..control.lifecycle import existing
from ..run.effects import RunOperation, Script
from ..run.frames import current_frame
from ..state import events as ev
from ..state.load import load

if TYPE_CHECKING:
    from ..run.session import Session


class ConversationRead:
    """One look at a conversation: all of it (`told` is None), or what was read of it, and each message of that."""

    __slots__ = ("at", "id", "items", "incarnation", "told")

    def __init__(
        self,
        id: str,
        incarnation: str,
        at: int,
        told: Sequence[Range | bytes] | None = None,
        items: Set[int | bytes] = frozenset(),
    ) -> None:
        self.id, self.incarnation, self.at, self.told, self.items = id, incarnation, at, told, items


class ModelInputRecorder:
    """What the model of a running step sees: what it is given, and what the function reads while it runs."""

    __slots__ = ("_reads", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reads: list[ConversationRead] = []

    def look(self, arguments: Iterable[object]) -> Script[None]:
        """An attempt begins, with these arguments."""
        self._reads = []
        for given in arguments:
            if isinstance(given, SourcedList):
                self.read(given.source, given)
            elif isinstance(given, Conversation) and self._is_ours(given):
                read: ConversationRead | None = yield RunOperation(partial(_at_all, given._key))
                if read is not None:
                    self._reads.append(read)

    def read(self, source: Source | None, messages: Iterable[Any]) -> None:
        """Messages of a conversation were given to the function, or read by it."""
        if (
            source is None
            or source.log is not self._session.log
            or source.key.tenant != self._session.key.tenant
        ):
            return
        try:
            told = [
                part if isinstance(part, tuple) else encode(part) for part in source.told(messages)
            ]
        except DataProblem:
            return  # something is among them that cannot be given back
        if told:
            items: set[int | bytes] = {
                *source.versions(messages),
                *(part for part in told if isinstance(part, bytes)),
            }
            self._reads.append(
                ConversationRead(source.key.id, source.incarnation, source.at, told, items)
            )

    def _is_ours(self, conversation: Conversation) -> bool:
        session = self._session
        return conversation._log is session.log and conversation._key.tenant == session.key.tenant

    def parts(self) -> list[ev.ModelInputPart]:
        """What is to be stored."""
        found: list[ev.ModelInputPart] = []
        for place, read in enumerate(self._reads):
            if any(_shows(other, read, later) for later, other in self._others(place)):
                continue
            if read.told is None:
                found.append(ev.ModelInputPart(read.id, read.incarnation, read.at))
            else:
                found += self._parts_of(read, read.told)
        return found

    def _others(self, place: int) -> list[tuple[bool, ConversationRead]]:
        return [(index > place, other) for index, other in enumerate(self._reads) if index != place]

    def _parts_of(
        self, read: ConversationRead, told: Sequence[Range | bytes]
    ) -> list[ev.ModelInputPart]:
        found: list[ev.ModelInputPart] = []
        for part in told:
            if isinstance(part, bytes):
                digest = blake2b(part, digest_size=12, key=self._session.salt).hexdigest()
                known = digest in self._session.state.texts or any(
                    one.digest == digest for one in found
                )
                found.append(
                    ev.ModelInputPart(digest=digest)
                    if known
                    else ev.ModelInputPart(digest=digest, text=msgspec.Raw(part))
                )
            elif found and found[-1].versions:
                found[-1].versions.append(part)
            else:
                found.append(ev.ModelInputPart(read.id, read.incarnation, read.at, [part]))
        return found


def _at_all(key: StreamKey) -> Operation[ConversationRead | None]:
    """A look at the whole of a conversation, if there is one."""
    head = yield from ops.head(key)
    if head is None:
        return None
    return ConversationRead(
        key.id, incarnation_hex(head.incarnation), (yield from known_at(key, head)).version
    )


def _shows(other: ConversationRead, read: ConversationRead, later: bool) -> bool:
    """Whether another look shows all that this one does: a function may look twice, at more or less."""
    if (other.id, other.incarnation) != (read.id, read.incarnation):
        return False
    if read.told is None or other.told is None:
        return read.told is None and (other.told is not None or later)
    return read.items < other.items or (read.items == other.items and later)


def _heard(source: Source, messages: Iterable[Any]) -> None:
    """A conversation was read, here: if in a step that calls a model, then that model sees it."""
    frame = current_frame()
    if frame is not None and frame.run is not None and frame.run.model_input is not None:
        frame.run.model_input.read(source, messages)


readers.append(_heard)


def read_model_input(key: StreamKey, path: str) -> Operation[list[Any]]:
    """The messages that the model of a step saw, as they were then."""
    yield from existing(key)
    state = yield from load(key)
    step = state.steps.get(path)
    if step is None:
        raise NotFound(f"{key} has no step {path!r}")
    if not step.model_input:
        raise NotFound(
            f"what the model of step {path!r} of {key} saw is not known: no conversation was in it"
        )
    found: list[Any] = []
    for part in step.model_input:
        if not part.digest:
            chat = key._replace(kind="conversation", id=part.conversation)
            found += yield from read_again(chat, part.incarnation, part.at, part.versions)
        else:
            try:
                text = decode(state.texts[part.digest])
            except (KeyError, Undecodable):
                text = None
            if not isinstance(text, list):
                raise CorruptRecord(
                    str(key), version=step.version, what="it names a text that is not there"
                )
            found += text
    return found
