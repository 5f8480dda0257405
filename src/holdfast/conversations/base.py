"""The base of `Conversation` and `AsyncConversation`: argument checks and operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..backends import AppendResult, StreamKey, clock
from ..errors import Conflict, HoldfastError, LeaseHeld, NotEncrypted
from ..log import operations as ops
from ..log.codec import encode
from ..log.codec.walk import SourcedList
from ..log.ids import check_id, stream_key
from ..log.leases import RENEWALS_PER_LEASE, new_owner
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.stream_ops import new_append_context
from ..log.operations.subjects import SubjectRegistrar
from ..log.validation import check_int, check_seconds
from . import lifecycle, read, repair_history, turns, window, write
from .draft_redaction import DraftRedactor
from .entries import Draft, MessageEntry, MessageProblem
from .fold import TURN_ENDED, TURN_RENEWED
from .messages import Message, as_message, is_instruction
from .read import FollowCursor
from .repair_history import SummaryRange
from .sources import ReadSource, read_listeners
from .sync import Mirror, SyncResult, digest_message, sync
from .tokens import Counter, default_counter
from .turns import Turn

if TYPE_CHECKING:
    from .json_files import ReadMessages

IMPORT_BATCH_MESSAGES: Final = 500
SNAPSHOT_SECONDS: Final = 5.0
"""How long the next append may use the snapshot of the last one instead of reading the head."""

T = TypeVar("T")

logger = logging.getLogger("holdfast")


def as_summary(value: object) -> Message:
    """Return a summary as a message.

    Text gets the user's role: repeated content must not gain the authority of a system prompt.
    """
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("a summary must be a message or text, got empty text")
        return {"role": "user", "content": f"Summary of the conversation so far:\n{value}"}
    return as_message(value)


def as_system(value: object | None) -> list[Message]:
    """Return a system prompt (text, a message or messages) as messages."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": value}]
    return [as_message(item) for item in value] if isinstance(value, list) else [as_message(value)]


class ConversationBase:
    """The key of a conversation, the snapshot after the last append, and the operations.

    `_prepare_...` methods check arguments and return a function that makes the operation, because
    an operation that meets a conflict is made and run again. `..._gen` methods are operations.
    """

    def __init__(
        self,
        log: Log,
        key: StreamKey,
        owner: str | None = None,
        subject: SubjectRegistrar | None = None,
    ) -> None:
        self._log, self._key, self._turn_owner, self._subject = log, key, owner, subject
        self._snapshot: read.ConversationSnapshot | None = None
        self._snapshot_at = 0.0
        self._mirror: Mirror | None = None
        self._draft_redactor = DraftRedactor()

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def __holdfast_fingerprint__(self) -> str:
        """Identify a conversation as a step's argument, independent of its messages."""
        return f"conversation {self._key.id}"

    def _with_subject(self, make: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
        """Return an operation that first registers the conversation's subject, if it has one."""
        subject = self._subject
        return make if subject is None else lambda: subject(make())

    def _current_owner(self) -> str | None:
        """Return the owner of the turn in which a write happens.

        It is the turn that this object was created for, or that of the calling code.
        """
        return self._turn_owner or turns.find_owner(self._key, id(self._log))

    # -- writing -----------------------------------------------------------------------------------

    def _prepare_append(
        self,
        messages: Sequence[object],
        id: str | None,
        if_version: int | None,
        meta: dict[str, Any] | None,
        pin: bool,
    ) -> Callable[[], Operation[AppendResult]]:
        if not messages:
            raise ValueError(
                "messages must not be empty; append at least one:"
                ' append({"role": "user", "content": "Hello"})'
            )
        if id is not None:
            check_id(id, "append id")
        if if_version is not None:
            check_int(if_version, "if_version")
        if meta is not None and type(meta) is not dict:
            raise TypeError(f"meta must be a dict of JSON values, got {type(meta).__name__}")
        new = [self._encode(as_message(message), meta, pin) for message in messages]
        stamp, owner = new_append_context(), self._current_owner()
        if if_version is not None:
            self._snapshot = None  # compare the caller's version with the stored one, not with ours
        return self._with_snapshot(
            lambda snapshot: write.append_messages(
                self._key, new, stamp, snapshot=snapshot, id=id, if_version=if_version, owner=owner
            )
        )

    def _encode(
        self, message: Message, meta: dict[str, Any] | None, pin: bool = False
    ) -> write.NewMessage:
        if self._log.redactor is not None:
            message, meta = (
                self._log.redaction.redact_value(message),
                self._log.redaction.redact_value(meta),
            )
        return write.encode_message(message, meta, pin=pin, leads=is_instruction(message))

    def _with_snapshot(
        self,
        make: Callable[
            [read.ConversationSnapshot | None],
            Operation[tuple[AppendResult, read.ConversationSnapshot | None]],
        ],
    ) -> Callable[[], Operation[AppendResult]]:
        """Pass the snapshot to the first attempt if it is fresh, and keep the append's new one.

        A retry gets no snapshot and reads the stream head.
        """
        now = clock.monotonic()
        fresh = self._snapshot if now - self._snapshot_at < SNAPSHOT_SECONDS else None

        def operation() -> Operation[AppendResult]:
            nonlocal fresh
            before, fresh, self._snapshot = fresh, None, None
            result, self._snapshot = yield from make(before)
            self._snapshot_at = now
            return result

        return operation

    def _prepare_sync(self, messages: Iterable[object]) -> Callable[[], Operation[SyncResult]]:
        given = [self._log.redaction.redact_value(as_message(message)) for message in messages]
        if not given:
            raise ValueError(
                "messages must not be empty: sync would undo the whole conversation;"
                " use clear() for that"
            )
        new = [self._encode(message, None) for message in given]
        digests = [digest_message(message) for message in given]
        stamp, owner, mirror = new_append_context(), self._current_owner(), self._mirror
        # Stored messages may date from before redaction was enabled.
        redact = self._log.redaction.redact_value
        return lambda: sync(
            self._key, new, digests, stamp, mirror=mirror, owner=owner, redact=redact
        )

    def _finish_sync(self, result: SyncResult) -> int:
        if result.version is not None:  # raised here: a conflict in the operation is retried
            assert self._mirror is not None
            raise Conflict(str(self._key), expected=self._mirror.version, actual=result.version)
        self._mirror = result.mirror
        if result.undone:
            logger.warning("sync rewound %s: undid %d messages", self._key, result.undone)
        return result.appended

    def _prepare_pop(self) -> Callable[[], Operation[MessageEntry | None]]:
        stamp, owner = new_append_context(), self._current_owner()
        return lambda: write.pop(self._key, stamp, owner)

    def _prepare_rewind(self, version: int) -> Callable[[], Operation[int]]:
        check_int(version, "version")
        stamp, owner = new_append_context(), self._current_owner()
        return lambda: write.rewind(self._key, version, stamp, owner)

    def _prepare_draft(self, text: str, of: str) -> Callable[[], Operation[AppendResult | None]]:
        if type(text) is not str:
            raise TypeError(f"text must be a str, got {type(text).__name__}")
        encode(text)
        check_id(of, "of")
        if self._log.redactor is not None:
            text = self._draft_redactor.add(self._log.redactor, of, text)
            if not text:
                return _do_nothing_gen
        stamp, owner = new_append_context(), self._current_owner()
        return self._with_snapshot(
            lambda snapshot: write.append_draft(
                self._key, of, text, stamp, snapshot=snapshot, owner=owner
            )
        )

    def _prepare_repair(self) -> Callable[[], Operation[list[MessageProblem]]]:
        stamp, owner = new_append_context(), self._current_owner()
        return lambda: repair_history.append_repairs(self._key, stamp, owner)

    def _log_repairs(self, problems: list[MessageProblem]) -> list[MessageProblem]:
        for problem in problems:
            logger.warning(
                "repaired %s at version %d: %s", self._key, problem.version, problem.kind
            )
        return problems

    def _summary_range_gen(self, keep_last: int) -> Operation[SummaryRange | None]:
        return repair_history.load_summary_range(self._key, check_int(keep_last, "keep_last"))

    def _prepare_summary(
        self, part: SummaryRange, message: Message
    ) -> Callable[[], Operation[MessageEntry | int]]:
        message = self._log.redaction.redact_value(message)
        encode(message)
        stamp, owner = new_append_context(), self._current_owner()
        return lambda: repair_history.append_summary(self._key, part, message, stamp, owner)

    def _finish_summary(self, part: SummaryRange, result: MessageEntry | int) -> MessageEntry:
        if isinstance(result, int):  # raised here: a conflict in the operation is retried
            raise Conflict(str(self._key), expected=part.snapshot.version, actual=result)
        return result

    def _import_batches(
        self, file: ReadMessages, pair: str | None
    ) -> Iterator[tuple[list[dict[str, Any]], str]]:
        """Yield batches of a file with append ids, so that importing it again adds nothing."""
        digest = sha256(f"{file.digest}/{pair or ''}".encode()).hexdigest()
        for start in range(0, len(file.messages), IMPORT_BATCH_MESSAGES):
            batch = file.messages[start : start + IMPORT_BATCH_MESSAGES]
            yield batch, f"import/{digest}/{start}"

    def _check_export(self, plaintext: bool) -> None:
        if self._log.cipher is not None and not plaintext:
            raise NotEncrypted(
                "the store is encrypted, but the file would not be; pass plaintext=True to write it"
            )

    # -- forks, expiry, deletion -------------------------------------------------------------------

    def _fork_key(self, id: str) -> StreamKey:
        key = stream_key(self._key.tenant, self._key.kind, id)
        if key == self._key:
            raise ValueError(f"id must not be the conversation's own, got {id!r}")
        return key

    def _prepare_fork(self, child: StreamKey, version: int | None) -> Callable[[], Operation[None]]:
        if version is not None:
            check_int(version, "version")
        stamp, owner = new_append_context(), self._current_owner()
        return lambda: lifecycle.fork_conversation(self._key, child, version, stamp, owner)

    def _prepare_expire(self, ttl: float | timedelta | None) -> Callable[[], Operation[None]]:
        after = None if ttl is None else check_seconds(ttl, "ttl")
        stamp, owner = new_append_context(), self._current_owner()
        self._snapshot = None  # it has the old expiry
        return lambda: lifecycle.set_expiry(self._key, after, stamp, owner)

    def _prepare_delete(self, reason: str) -> Callable[[], Operation[bool]]:
        self._snapshot = self._mirror = None
        owner, why = self._current_owner(), self._log.redaction.redact_text(reason)
        return lambda: lifecycle.delete_conversation(self._key, new_append_context(), why, owner)

    # -- reading -----------------------------------------------------------------------------------

    def _entries_gen(
        self, last: int | None, after: int
    ) -> Operation[tuple[list[MessageEntry], ReadSource | None]]:
        if last is not None:
            check_int(last, "last")
        check_int(after, "after")
        snapshot = yield from read.load_snapshot(self._key)
        found = yield from read.read_newest(self._key, snapshot, last)
        source = ReadSource(self._key, snapshot, found) if snapshot else None
        return [entry for entry in found if entry.version > after] if after else found, source

    def _as_messages(self, found: tuple[list[MessageEntry], ReadSource | None]) -> list[Any]:
        entries, source = found
        return self._report_read(SourcedList([entry.message for entry in entries], source))

    def _as_entries(
        self, found: tuple[list[MessageEntry], ReadSource | None]
    ) -> list[MessageEntry]:
        self._as_messages(found)
        return found[0]

    def _report_read(self, messages: SourcedList) -> SourcedList:
        """Notify the listeners, such as the step that sends the messages to a model."""
        if messages.source is not None:
            messages.source.log = self._log
            for listener in read_listeners:
                listener(messages.source, messages)
        return messages

    def _count_gen(self) -> Operation[int]:
        snapshot = yield from read.load_snapshot(self._key)
        return snapshot.fold.count if snapshot else 0

    def _version_gen(self) -> Operation[int]:
        snapshot = yield from read.load_snapshot(self._key)
        return snapshot.version if snapshot else 0

    def _drafts_gen(self) -> Operation[list[Draft]]:
        snapshot = yield from read.load_snapshot(self._key)
        return (yield from read.read_drafts(self._key, snapshot)) if snapshot else []

    def _window_gen(
        self, max_tokens: int, system: object | None, counter: Counter | None
    ) -> Operation[SourcedList]:
        check_int(max_tokens, "max_tokens", 1)
        return window.read_window(
            self._key, max_tokens, as_system(system), counter or default_counter()
        )

    def _new_cursor(self, after: int, timeout: float | timedelta | None) -> FollowCursor:
        return FollowCursor(
            self._key,
            check_int(after, "after"),
            None if timeout is None else check_seconds(timeout, "timeout"),
        )

    # -- turns -------------------------------------------------------------------------------------

    def _new_turn(self, lease: float | timedelta) -> Turn:
        return Turn(new_owner(), check_seconds(lease, "lease", 0.001))

    def _prepare_turn_start(
        self, turn: Turn, dead_owner: str | None
    ) -> Callable[[], Operation[LeaseHeld | None]]:
        stamp = new_append_context()
        return lambda: turns.start_turn(self._key, turn, stamp, dead_owner)

    def _prepare_turn_end(self, turn: Turn) -> Callable[[], Operation[bool]]:
        stamp = new_append_context()
        self._snapshot = None
        return lambda: turns.change_turn(self._key, turn, TURN_ENDED, stamp)

    def _log_release_failure(self, error: Exception) -> None:
        """Log it instead of failing: the messages of the turn are stored, and its lease expires."""
        logger.warning("cannot release the turn on %s (%s)", self._key, type(error).__name__)

    def _turn_pauses(self, wait: float | timedelta | None) -> Callable[[LeaseHeld], float]:
        """Return a function that gives the pause before the next try to take the turn.

        It raises the given `LeaseHeld` when `wait` is over.
        """
        deadline = None if wait is None else clock.monotonic() + check_seconds(wait, "wait")
        pause = turns.FIRST_PAUSE_SECONDS / 2

        def next_pause(held: LeaseHeld) -> float:
            nonlocal pause
            if pause < turns.FIRST_PAUSE_SECONDS:
                logger.info("waiting for the turn on %s", self._key)
            if deadline is not None and clock.monotonic() >= deadline:
                raise held
            pause = min(pause * 2, turns.MAX_PAUSE_SECONDS)
            return pause if deadline is None else min(pause, max(deadline - clock.monotonic(), 0))

        return next_pause

    @contextmanager
    def _hold_turn(self, turn: Turn) -> Iterator[None]:
        """Make the turn that of the calling code, and renew it until the end of the block."""
        heart = self._log.heartbeat
        heart.add(turn.owner, turn.lease / RENEWALS_PER_LEASE, lambda: self._renew(turn))
        leave = turns.enter_turn(self._key, id(self._log), turn.owner)
        self._snapshot = None
        try:
            yield
        finally:
            leave()
            heart.remove(turn.owner)

    def _renew(self, turn: Turn) -> None:
        try:
            if not ops.run_until_settled(
                self._log,
                lambda: turns.change_turn(self._key, turn, TURN_RENEWED, new_append_context()),
            ):
                self._log.heartbeat.remove(turn.owner)
        except HoldfastError as error:
            logger.warning("cannot renew the turn on %s (%s)", self._key, type(error).__name__)


def _do_nothing_gen() -> Operation[None]:
    yield from ()
