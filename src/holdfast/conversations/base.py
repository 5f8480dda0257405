"""What a conversation and its async twin share: the arguments checked, the operation behind each method."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, TypeVar

from ..backends import AppendResult, StreamKey, clock
from ..errors import Conflict, HoldfastError, LeaseHeld, NotEncrypted
from ..log import operations as ops
from ..log.codec import encode
from ..log.codec.walk import SourcedList
from ..log.ids import checked_id, stream_key
from ..log.leases import RENEWALS, new_owner
from ..log.log import Log
from ..log.operations import Operation
from ..log.stream_ops import new_append_context
from ..log.subjects import SubjectRegistrar
from ..log.validation import seconds, whole_number
from . import lifecycle, read, repair_history, turns, window, write
from .entries import Draft, MessageEntry, MessageProblem
from .messages import Message, as_message, is_instruction
from .read import FollowCursor
from .repair_history import Chapter
from .sources import Source, readers
from .stream_redaction import DraftPieces
from .sync import Mirror, Synced, digest_of, sync
from .tokens import Counter, default_counter
from .turns import Turn

IMPORT_BATCH: Final = 500
FRESH_SECONDS: Final = 5.0
"""For how long what was learned of a conversation is good for the next append without looking."""

T = TypeVar("T")

logger = logging.getLogger("holdfast")


def as_summary(value: object) -> Message:
    """A summary as a message: in the user's role, because what it repeats must not gain a system prompt's authority."""
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("a summary must be text or a message, got empty text")
        return {"role": "user", "content": f"Summary of the conversation so far:\n{value}"}
    return as_message(value)


def as_system(value: object | None) -> list[Message]:
    """A system prompt, as text, message or messages."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": value}]
    return [as_message(item) for item in value] if isinstance(value, list) else [as_message(value)]


class ConversationBase:
    """The key, what was learned of the conversation by the last append, and the operations."""

    def __init__(
        self,
        log: Log,
        key: StreamKey,
        owner: str | None = None,
        about: SubjectRegistrar | None = None,
    ) -> None:
        self._log, self._key, self._turn_holder, self._about = log, key, owner, about
        self._known: read.KnownConversation | None = None
        self._known_at = 0.0
        self._mirror: Mirror | None = None
        self._pieces = DraftPieces()

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def __holdfast_fingerprint__(self) -> str:
        """As an argument of a step, a conversation is the same whatever has been said in it since."""
        return f"conversation {self._key.id}"

    def _noting(self, make: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
        """An operation that first lists the conversation with its subject, if it has one."""
        about = self._about
        return make if about is None else lambda: about(make())

    def _owner(self) -> str | None:
        """The turn in which a write happens: that of the block this object was made for, or that of the running code."""
        return self._turn_holder or turns.holder_of(self._key, id(self._log))

    # -- writing -----------------------------------------------------------------------------------

    def _appending(
        self,
        messages: Sequence[object],
        id: str | None,
        if_version: int | None,
        meta: dict[str, Any] | None,
        pin: bool,
    ) -> Callable[[], Operation[AppendResult]]:
        if not messages:
            raise ValueError(
                'append at least one message: append({"role": "user", "content": "Hello"})'
            )
        if id is not None:
            checked_id(id, "append id")
        if if_version is not None:
            whole_number(if_version, "if_version")
        if meta is not None and type(meta) is not dict:
            raise TypeError(f"meta must be a dict of JSON values, got {type(meta).__name__}")
        new = [self._new(as_message(message), meta, pin) for message in messages]
        stamp, owner = new_append_context(), self._owner()
        if if_version is not None:
            self._known = (
                None  # the caller's version is compared with what is there, not with what was
            )
        return self._remembering(
            lambda known: write.append_messages(
                self._key, new, stamp, known=known, id=id, if_version=if_version, owner=owner
            )
        )

    def _new(self, message: Message, meta: dict[str, Any] | None, pin: bool = False) -> write.New:
        if self._log.redactor is not None:
            message, meta = self._log.redaction.value(message), self._log.redaction.value(meta)
        return write.encode_message(message, meta, pin=pin, leads=is_instruction(message))

    def _remembering(
        self,
        make: Callable[
            [read.KnownConversation | None],
            Operation[tuple[AppendResult, read.KnownConversation | None]],
        ],
    ) -> Callable[[], Operation[AppendResult]]:
        """Use what is known, unless it is old, at the first try; learn anew at the next; keep what is known after it."""
        now = clock.monotonic()
        known = self._known if now - self._known_at < FRESH_SECONDS else None

        def operation() -> Operation[AppendResult]:
            nonlocal known
            before, known, self._known = known, None, None
            answer, self._known = yield from make(before)
            self._known_at = now
            return answer

        return operation

    def _syncing(self, messages: Iterable[object]) -> Callable[[], Operation[Synced]]:
        given = [self._log.redaction.value(as_message(message)) for message in messages]
        if not given:
            raise ValueError(
                "an empty list would undo the whole conversation; if that is what you want, use clear()"
            )
        new = [self._new(message, None) for message in given]
        digests = [digest_of(message) for message in given]
        stamp, owner, mirror = new_append_context(), self._owner(), self._mirror
        stored = (
            self._log.redaction.value
        )  # what is there may have been stored before anything was redacted
        return lambda: sync(
            self._key, new, digests, stamp, mirror=mirror, owner=owner, stored=stored
        )

    def _synced(self, done: Synced) -> int:
        if done.version is not None:  # not raised by the operation, which would be run again for it
            assert self._mirror is not None
            raise Conflict(str(self._key), expected=self._mirror.version, actual=done.version)
        self._mirror = done.mirror
        if done.undone:
            logger.warning(
                "%s was rewound by sync: %d messages are live no more", self._key, done.undone
            )
        return done.appended

    def _popping(self) -> Callable[[], Operation[MessageEntry | None]]:
        stamp, owner = new_append_context(), self._owner()
        return lambda: write.pop(self._key, stamp, owner)

    def _rewinding(self, version: int) -> Callable[[], Operation[int]]:
        whole_number(version, "version")
        stamp, owner = new_append_context(), self._owner()
        return lambda: write.rewind(self._key, version, stamp, owner)

    def _drafting(self, text: str, of: str) -> Callable[[], Operation[AppendResult | None]]:
        if type(text) is not str:
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        encode(text)
        checked_id(of, "of")
        if self._log.redactor is not None:
            text = self._pieces.added(self._log.redactor, of, text)
            if not text:
                return _nothing
        stamp, owner = new_append_context(), self._owner()
        return self._remembering(
            lambda known: write.draft(self._key, of, text, stamp, known=known, owner=owner)
        )

    def _repairing(self) -> Callable[[], Operation[list[MessageProblem]]]:
        stamp, owner = new_append_context(), self._owner()
        return lambda: repair_history.repair(self._key, stamp, owner)

    def _repaired(self, problems: list[MessageProblem]) -> list[MessageProblem]:
        for problem in problems:
            logger.warning(
                "repaired %s at version %d: %s", self._key, problem.version, problem.kind
            )
        return problems

    def _chapter(self, keep_last: int) -> Operation[Chapter | None]:
        return repair_history.chapter(self._key, whole_number(keep_last, "keep_last"))

    def _summarizing(
        self, part: Chapter, message: Message
    ) -> Callable[[], Operation[MessageEntry | int]]:
        message = self._log.redaction.value(message)
        encode(message)
        stamp, owner = new_append_context(), self._owner()
        return lambda: repair_history.summarize(self._key, part, message, stamp, owner)

    def _summarized(self, part: Chapter, done: MessageEntry | int) -> MessageEntry:
        if isinstance(done, int):  # not raised by the operation, which would be run again for it
            raise Conflict(str(self._key), expected=part.known.version, actual=done)
        return done

    def _import_id(self, digest: str, pair: str | None, at: int) -> str:
        """An append id for a part of a file, so that the same file again adds nothing."""
        part = f"{digest}/{pair or ''}".encode()
        return f"import/{sha256(part).hexdigest()}/{at}"

    def _may_export(self, plaintext: bool) -> None:
        if self._log.cipher is not None and not plaintext:
            raise NotEncrypted(
                "the store is encrypted, and the file would be in clear: if you mean it, pass plaintext=True"
            )

    # -- life --------------------------------------------------------------------------------------

    def _child(self, id: str) -> StreamKey:
        child = stream_key(self._key.tenant, self._key.kind, id)
        if child == self._key:
            raise ValueError(f"id must not be the conversation's own, got {id!r}")
        return child

    def _forking(self, child: StreamKey, version: int | None) -> Callable[[], Operation[None]]:
        if version is not None:
            whole_number(version, "version")
        stamp, owner = new_append_context(), self._owner()
        return lambda: lifecycle.fork(self._key, child, version, stamp, owner)

    def _expiring(self, ttl: float | timedelta | None) -> Callable[[], Operation[None]]:
        after = None if ttl is None else seconds(ttl, "ttl")
        stamp, owner = new_append_context(), self._owner()
        self._known = None  # it holds the fields as they were
        return lambda: lifecycle.expire(self._key, after, stamp, owner)

    def _deleting(self, reason: str) -> Callable[[], Operation[bool]]:
        self._known = self._mirror = None
        owner, why = self._owner(), self._log.redaction.text(reason)
        return lambda: lifecycle.delete(self._key, new_append_context(), why, owner)

    # -- reading -----------------------------------------------------------------------------------

    def _entries(
        self, last: int | None, after: int
    ) -> Operation[tuple[list[MessageEntry], Source | None]]:
        if last is not None:
            whole_number(last, "last")
        whole_number(after, "after")
        known = yield from read.learn(self._key)
        found = yield from read.newest(self._key, known, last)
        source = Source(self._key, known, found) if known else None
        return [entry for entry in found if entry.version > after] if after else found, source

    def _as_messages(self, found: tuple[list[MessageEntry], Source | None]) -> list[Any]:
        entries, source = found
        return self._was_read(SourcedList([entry.message for entry in entries], source))

    def _as_entries(self, found: tuple[list[MessageEntry], Source | None]) -> list[MessageEntry]:
        self._as_messages(found)
        return found[0]

    def _was_read(self, messages: SourcedList) -> SourcedList:
        """Tell whoever wants to know, which is a step that calls a model."""
        if messages.source is not None:
            messages.source.log = self._log
            for reader in readers:
                reader(messages.source, messages)
        return messages

    def _count(self) -> Operation[int]:
        known = yield from read.learn(self._key)
        return known.fold.count if known else 0

    def _version(self) -> Operation[int]:
        known = yield from read.learn(self._key)
        return known.version if known else 0

    def _drafts(self) -> Operation[list[Draft]]:
        known = yield from read.learn(self._key)
        return (yield from read.drafts(self._key, known)) if known else []

    def _window(
        self, max_tokens: int, system: object | None, counter: Counter | None
    ) -> Operation[SourcedList]:
        whole_number(max_tokens, "max_tokens", 1)
        return window.window(self._key, max_tokens, as_system(system), counter or default_counter())

    def _cursor(self, after: int, timeout: float | timedelta | None) -> FollowCursor:
        return FollowCursor(
            self._key,
            whole_number(after, "after"),
            None if timeout is None else seconds(timeout, "timeout"),
        )

    # -- turns -------------------------------------------------------------------------------------

    def _new_turn(self, lease: float | timedelta) -> Turn:
        return Turn(new_owner(), seconds(lease, "lease", 0.001))

    def _beginning(self, turn: Turn, gone: str | None) -> Callable[[], Operation[LeaseHeld | None]]:
        stamp = new_append_context()
        return lambda: turns.begin(self._key, turn, stamp, gone)

    def _ending(self, turn: Turn) -> Callable[[], Operation[bool]]:
        stamp = new_append_context()
        self._known = None
        return lambda: turns.end(self._key, turn, stamp)

    def _not_ended(self, error: Exception) -> None:
        """Not a reason to fail: what was said in the turn is stored, and the turn ends by itself."""
        logger.warning(
            "the turn on %s could not be given back (%s)", self._key, type(error).__name__
        )

    def _waiting(self, wait: float | timedelta | None) -> Callable[[LeaseHeld], float]:
        """How long to pause before asking again; raises `LeaseHeld` when the time is up."""
        deadline = None if wait is None else clock.monotonic() + seconds(wait, "wait")
        pause = turns.FIRST_PAUSE / 2

        def next_pause(held: LeaseHeld) -> float:
            nonlocal pause
            if pause < turns.FIRST_PAUSE:
                logger.info("waiting for the turn on %s", self._key)
            if deadline is not None and clock.monotonic() >= deadline:
                raise held
            pause = min(pause * 2, turns.LONGEST_PAUSE)
            return pause if deadline is None else min(pause, max(deadline - clock.monotonic(), 0))

        return next_pause

    @contextmanager
    def _inside(self, turn: Turn) -> Iterator[None]:
        """The turn as this code's own, renewed until the end."""
        heart = self._log.heartbeat
        heart.keep(turn.owner, turn.lease / RENEWALS, lambda: self._renew(turn))
        leave = turns.enter(self._key, id(self._log), turn.owner)
        self._known = None
        try:
            yield
        finally:
            leave()
            heart.release(turn.owner)

    def _renew(self, turn: Turn) -> None:
        try:
            if not ops.run_until_settled(
                self._log, lambda: turns.renew(self._key, turn, new_append_context())
            ):
                self._log.heartbeat.release(turn.owner)
        except HoldfastError as error:
            logger.warning(
                "the turn on %s could not be renewed (%s)", self._key, type(error).__name__
            )


def _nothing() -> Operation[None]:
    yield from ()
