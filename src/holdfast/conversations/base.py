"""The base of `Conversation` and `AsyncConversation`: argument checks and operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..backends import AppendResult, StreamKey, clock
from ..errors import Conflict, LeaseHeld, NotEncrypted
from ..log.codec import encode
from ..log.codec.walk import SourcedList
from ..log.events import new_append_context
from ..log.ids import check_id, stream_key
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.subjects import SubjectRegistrar
from ..log.validation import check_int, check_seconds
from . import lifecycle, read, repair_history, turns, window, write
from .draft_redaction import DraftRedactor
from .entries import Draft, MessageEntry, MessageProblem
from .fold import TURN_ENDED
from .history import HistoryCache, load_history
from .messages import Message, as_message, is_instruction
from .read import FollowCursor
from .repair_history import SummaryRange
from .sources import ReadSource, read_listeners
from .sync import Mirror, SyncResult, digest_message, sync
from .tokens import Counter, default_counter

if TYPE_CHECKING:
    from .json_files import ReadMessages

IMPORT_BATCH_MESSAGES: Final = 500

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
    """The base of both facades: a conversation's key, its last snapshot, and its operations.

    `_prepare_...` methods check arguments and return a function that makes the operation, because
    after a conflict the operation is made and run again. `..._gen` methods are operations.
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
        """Return the lease owner of the turn that a write belongs to; None outside a turn.

        It is the turn that this object was created for, or else the one that the calling code is
        in.
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
            self._snapshot = None  # compare the caller's version with the stored one
        return self._with_snapshot(
            lambda snapshot: write.append_messages(
                self._key, new, stamp, snapshot=snapshot, id=id, if_version=if_version, owner=owner
            )
        )

    def _prepare_plain_append(self, messages: Sequence[object]) -> write.PlainAppend | None:
        """Return the direct append of these messages; None if they need `append_messages`."""
        log, snapshot, now = self._log, self._snapshot, clock.monotonic()
        if (
            snapshot is None
            or now - self._snapshot_at >= read.SNAPSHOT_SECONDS
            or self._subject is not None
            or log.redactor is not None
            or not log.knows_position(self._key)
            or self._turn_owner is not None
            or turns.get_entered()
        ):
            return None
        plain = write.new_plain_append(self._key, messages, snapshot, now)
        if plain is not None:
            self._snapshot = None
        return plain

    def _finish_plain_append(self, plain: write.PlainAppend, answer: AppendResult) -> AppendResult:
        result, self._snapshot = plain.finish(answer)
        self._snapshot_at = plain.now
        return result

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
        """Give the first attempt the last snapshot, if it is fresh, and keep the append's new one.

        A retry gets no snapshot, so it reads the stream head.
        """
        now = clock.monotonic()
        fresh = self._snapshot if now - self._snapshot_at < read.SNAPSHOT_SECONDS else None

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
        """Yield the messages in batches with append ids, so that a second import adds nothing."""
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

    def _prepare_expire(
        self, ttl: float | timedelta | None, sliding: bool
    ) -> Callable[[], Operation[None]]:
        after = None if ttl is None else check_seconds(ttl, "ttl")
        if sliding and after is None:
            raise ValueError("ttl must be seconds or a timedelta if sliding is True, got None")
        stamp, owner = new_append_context(), self._current_owner()
        self._snapshot = None  # it has the old expiry
        return lambda: lifecycle.set_expiry(self._key, after, sliding, stamp, owner)

    def _prepare_delete(self, reason: str, by: str | None = None) -> Callable[[], Operation[bool]]:
        self._snapshot = self._mirror = None
        owner, why = self._current_owner(), self._log.redaction.redact_text(reason)
        return lambda: lifecycle.delete_conversation(self._key, new_append_context(by), why, owner)

    # -- reading -----------------------------------------------------------------------------------

    def _messages_gen(self, last: int | None) -> Operation[SourcedList]:
        if last is not None:
            check_int(last, "last")
        cache = self._log.attachment(HistoryCache)
        current = yield from load_history(cache, self._key, last)
        if current is None:
            return SourcedList([], None)
        snapshot, history = current
        if history is not None:
            messages, versions = history.copy_messages(last), history.versions
            versions = versions if last is None else versions[len(versions) - len(messages) :]
        else:
            found = yield from read.read_newest(self._key, snapshot, last)
            messages, versions = [entry.message for entry in found], [e.version for e in found]
        return SourcedList(messages, ReadSource(self._key, snapshot, list(messages), versions))

    def _entries_gen(
        self, last: int | None, after: int
    ) -> Operation[tuple[list[MessageEntry], ReadSource | None]]:
        if last is not None:
            check_int(last, "last")
        check_int(after, "after")
        snapshot = yield from read.load_snapshot(self._key)
        found = yield from read.read_newest(self._key, snapshot, last)
        source = None
        if snapshot is not None:
            messages, versions = [entry.message for entry in found], [e.version for e in found]
            source = ReadSource(self._key, snapshot, messages, versions)
        return [entry for entry in found if entry.version > after] if after else found, source

    def _as_entries(
        self, found: tuple[list[MessageEntry], ReadSource | None]
    ) -> list[MessageEntry]:
        entries, source = found
        self._report_read(SourcedList([entry.message for entry in entries], source))
        return entries

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

    def _new_cursor(
        self, after: int, timeout: float | timedelta | None, drafts: bool = False
    ) -> FollowCursor:
        return FollowCursor(
            self._key,
            check_int(after, "after"),
            None if timeout is None else check_seconds(timeout, "timeout"),
            drafts,
        )

    # -- turns -------------------------------------------------------------------------------------

    def _needs_no_turn(self) -> bool:
        """Return whether the calling code is in a turn already."""
        return self._current_owner() is not None

    def _prepare_turn_start(
        self, turn: turns.Turn, dead_owner: str | None
    ) -> Callable[[], Operation[LeaseHeld | None]]:
        stamp = new_append_context()
        return lambda: turns.start_turn(self._key, turn, stamp, dead_owner)

    def _prepare_turn_end(self, turn: turns.Turn) -> Callable[[], Operation[bool]]:
        stamp = new_append_context()
        self._snapshot = None
        return lambda: turns.change_turn(self._key, turn, TURN_ENDED, stamp)


def _do_nothing_gen() -> Operation[None]:
    yield from ()
