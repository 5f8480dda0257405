"""State documents: a value that is saved whole and stored as what changed, every version of it.

A document is a stream. Each save is one event: a *keyframe* (the whole value) or a delta on what was there. Every event
carries in its envelope what reading it takes (`Fold`), so that a reader goes straight to the keyframe it has to begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

from ..backends import Head, HeadFields, StreamKey
from ..backends.clock import moment
from ..errors import Conflict, CorruptRecord, Expired, NotFound, SchemaMismatch, UnsupportedVersion
from ..log import operations as ops
from ..log.blobs import get_blob
from ..log.codec import Undecodable, check_declared, decode, decode_as, encode, encode_as
from ..log.events import AppendContext, NewEvent, StoredEvent
from ..log.ids import append_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.reprs import Readable
from ..log.stream_ops import append_events, delete_stream, new_append_context
from ..log.validation import seconds, whole_number
from .delta import BadDelta, diff, patch

KEYFRAME: Final = "state.keyframe"
SAVED: Final = "state.saved"
CLEARED: Final = "state.cleared"
EXPIRES: Final = "state.expires"

READ_RATIO: Final = 3
"""A load reads at most so many times the document."""
MOST_DELTAS: Final = 10_000
"""And at most so many records."""
RECORD_BYTES: Final = 150
"""What a record takes beside its data, about."""

T = TypeVar("T")
D = TypeVar("D")
_RAISE: Final[Any] = object()
"""Stands for a default that was not given."""


class StateVersion(Readable, msgspec.Struct, frozen=True):
    """One version of a document: when it was saved and by whom. Order is by `version`, never by clock.

    `size` is that of the value as JSON, 0 if it was cleared.
    """

    version: int
    at: datetime
    by: str | None
    correlation: str | None
    size: int


class StateInfo(msgspec.Struct, frozen=True):
    """A document in a listing, with its newest version and when it expires."""

    id: str
    version: int
    expires_at: datetime | None = None

    @classmethod
    def of(cls, head: Head) -> StateInfo:
        expires = head.fields.expires_at
        return cls(head.stream.id, head.version, None if expires is None else moment(expires))


class StateFold(msgspec.Struct, frozen=True, array_like=True):
    """What holds after an event: the version that a reader begins with, the size of the value, and how much there is to read."""

    base: int
    size: int
    read: int


class KnownDocument(msgspec.Struct, frozen=True):
    """A document at a version. `raw` is its value as JSON, None if it was cleared."""

    incarnation: bytes
    version: int
    raw: bytes | None
    fold: StateFold
    expires_at: float | None = None


_fold = msgspec.json.Decoder(StateFold)
_write = msgspec.json.Encoder().encode


# -- deciding: no I/O ------------------------------------------------------------------------------


def next_event(known: KnownDocument | None, raw: bytes) -> tuple[NewEvent, StateFold]:
    """What to store so that the document becomes `raw`: what changed, or all of it if that is no more.

    All of it also when a load would otherwise read more than `READ_RATIO` times the document. A keyframe of size v then stands
    for 3v of keyframe and deltas before it, so all that is stored is at most half as much again as the deltas alone would take.
    """
    whole = len(raw) + RECORD_BYTES
    if known is not None and known.raw is not None:
        delta = diff(known.raw, raw)
        read = known.fold.read + len(delta) + RECORD_BYTES
        few = known.version - known.fold.base < MOST_DELTAS
        if len(delta) < len(raw) and few and read <= READ_RATIO * whole and _is_readable(delta):
            return _event(SAVED, delta, StateFold(known.fold.base, len(raw), read))
    version = known.version + 1 if known else 1
    return _event(KEYFRAME, raw, StateFold(version, len(raw), whole))


def _is_readable(delta: bytes) -> bool:
    """Whether a delta stays within the limit on depth, which a deep value may lead it over."""
    try:
        decode(delta)
    except Undecodable:
        return False
    return True


def _event(type: str, data: bytes, fold: StateFold) -> tuple[NewEvent, StateFold]:
    return NewEvent(type, data, fold=_write(fold)), fold


def fold_of(key: StreamKey, stored: StoredEvent) -> StateFold:
    """What an event says about reading it."""
    envelope = stored.envelope
    if envelope.v != 1 or envelope.type not in (KEYFRAME, SAVED, CLEARED, EXPIRES):
        raise UnsupportedVersion(
            f"{key} (version {stored.version}) was stored by a newer Holdfast; deploy that one"
        )
    try:
        fold = _fold.decode(envelope.fold)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        fold = StateFold(0, 0, 0)
    own = envelope.type in (KEYFRAME, CLEARED)
    if (
        min(fold.size, fold.read) < 0
        or not 0 < fold.base <= stored.version
        or own != (fold.base == stored.version)
    ):
        raise CorruptRecord(
            str(key), version=stored.version, what="it does not say what it builds on"
        )
    return fold


# -- reading ---------------------------------------------------------------------------------------


def find(key: StreamKey, known: KnownDocument | None = None) -> Operation[KnownDocument | None]:
    """The document as it is; None if there is none. What is `known` from before is not read again."""
    head = yield from _living(key)
    if head is None:
        return None
    if known is not None and known.incarnation != head.incarnation:
        known = None
    if known is not None and known.version == head.version:
        return known
    return (yield from _rebuild(key, head, head.version, known))


def at_version(key: StreamKey, version: int) -> Operation[KnownDocument]:
    """The document as it was; `NotFound` if it had no value then."""
    head = yield from _living(key)
    if head is None or not 0 < version <= head.version:
        raise NotFound(f"{key} has no version {version}; history() lists what there is")
    found = yield from _rebuild(key, head, version, None)
    if found.raw is None:
        raise NotFound(
            f"{key} has no value at version {version}, because it was cleared; history() lists what there is"
        )
    return found


def history(key: StreamKey) -> Operation[list[StateVersion]]:
    """All versions, oldest first. Their values are not looked at."""
    versions: list[StateVersion] = []
    head = yield from _living(key)
    at = 0
    while head is not None and at < head.version:
        for stored in (yield from _page(key, at, head.version)):
            fold, envelope, at = fold_of(key, stored), stored.envelope, stored.version
            if envelope.type != EXPIRES:
                versions.append(
                    StateVersion(
                        at, moment(envelope.at), envelope.by, envelope.correlation, fold.size
                    )
                )
    if head is not None:
        yield from _same_life(key, head)
    return versions


def _living(key: StreamKey) -> Operation[Head | None]:
    """The head of a document; `Expired` if its time is over."""
    head = yield from ops.head(key)
    if (
        head is not None
        and head.fields.expires_at is not None
        and head.fields.expires_at <= head.now
    ):
        raise Expired(str(key), at=head.fields.expires_at)
    return head


def _rebuild(
    key: StreamKey, head: Head, version: int, known: KnownDocument | None
) -> Operation[KnownDocument]:
    """The document at a version: its keyframe, or what is `known` if that builds on the same, and the deltas since."""
    [newest] = yield from _page(key, version - 1, version)
    fold = fold_of(key, newest)
    raw, at = None, fold.base - 1
    if known is not None and known.fold.base == fold.base:
        raw, at = known.raw, known.version
    deltas: list[tuple[int, bytes]] = []
    while at < version:
        page: Sequence[StoredEvent] = [newest]
        if at < version - 1:
            page = yield from _page(key, at, version - 1)
        for stored in page:
            at, kind = stored.version, stored.envelope.type
            if fold_of(key, stored).base != fold.base or (kind == SAVED and raw is None):
                yield from _same_life(key, head)
                raise CorruptRecord(
                    str(key), version=at, what="it does not follow from what is before it"
                )
            if kind == KEYFRAME:
                raw = yield from _data(key, stored)
            elif kind == SAVED:
                deltas.append((at, (yield from _data(key, stored))))
    yield from _same_life(key, head)
    if raw is not None:
        raw = _patched(key, fold.base, raw, deltas)
    return KnownDocument(head.incarnation, version, raw, fold, head.fields.expires_at)


def _patched(key: StreamKey, base: int, raw: bytes, deltas: Sequence[tuple[int, bytes]]) -> bytes:
    try:
        return patch(raw, [delta for _, delta in deltas])
    except BadDelta as error:
        raise CorruptRecord(str(key), version=deltas[error.index][0], what=error.what) from None
    except Undecodable as error:
        raise CorruptRecord(str(key), version=base, what=error.what) from None


def _page(key: StreamKey, after: int, last: int) -> Operation[list[StoredEvent]]:
    """One page of events up to a version that is there, unless the document was deleted meanwhile: then `Conflict`."""
    page = yield from ops.read(key, after=after, limit=last - after)
    if not page:
        raise Conflict(str(key), expected=last, actual=0)
    return page


def _same_life(key: StreamKey, head: Head) -> Operation[None]:
    """`Conflict` if what was read may belong to two lives of the document."""
    now = yield from ops.head(key)
    if now is None or now.incarnation != head.incarnation:
        raise Conflict(str(key), expected=head.version, actual=now.version if now else 0)


def _data(key: StreamKey, stored: StoredEvent) -> Operation[bytes]:
    blob = stored.envelope.blob
    return bytes(stored.envelope.data) if blob is None else (yield from get_blob(key, blob))


# -- writing ---------------------------------------------------------------------------------------


def save(
    key: StreamKey,
    raw: bytes,
    stamp: AppendContext,
    known: KnownDocument | None,
    *,
    if_version: int | None = None,
    look: bool = False,
) -> Operation[KnownDocument]:
    """Make `raw` the value. What is `known` from before spares looking: if it is out of date, the append is a `Conflict`.

    Not where more depends on it than the delta: whether there is anything to write, the version asked for, the time to live.
    """
    asked = if_version is not None and known is not None and known.version != if_version
    if look or asked or known is None or known.raw == raw or known.expires_at is not None:
        known = yield from find(key, known)
    version = known.version if known else 0
    if if_version is not None and version != if_version:
        raise Conflict(str(key), expected=if_version, actual=version)
    if known is not None and known.raw == raw:
        return known
    event, fold = next_event(known, raw)
    incarnation = known.incarnation if known else append_id(stamp.id)
    yield from _put(key, event, stamp, version, incarnation)
    return KnownDocument(incarnation, version + 1, raw, fold, known.expires_at if known else None)


def _put(
    key: StreamKey,
    event: NewEvent,
    stamp: AppendContext,
    version: int,
    incarnation: bytes,
    fields: HeadFields | None = None,
) -> Operation[None]:
    """Append at the version that was decided upon."""
    yield from append_events(
        key, [event], stamp, expected=version, incarnation=incarnation, fields=fields
    )


def rollback(key: StreamKey, version: int, stamp: AppendContext) -> Operation[KnownDocument]:
    """Save once more what was there at a version."""
    known = yield from find(key)
    old = yield from at_version(key, version)
    assert old.raw is not None
    return (
        yield from save(key, old.raw, stamp, known)
    )  # a `Conflict` if the two are from different lives


def clear(key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """Make it a document without a value; its versions stay."""
    head = yield from _living(key)
    if head is None:
        return
    [newest] = yield from _page(key, head.version - 1, head.version)
    if fold_of(key, newest).size:
        event, _ = _event(CLEARED, b"null", StateFold(head.version + 1, 0, 0))
        yield from _put(key, event, stamp, head.version, head.incarnation)


def expire(key: StreamKey, ttl: float | None, stamp: AppendContext) -> Operation[None]:
    """Set or lift the end of a document's life, by the engine's clock."""
    head = yield from ops.head(key)
    if head is None:
        raise NotFound(f"{key} was never saved, so it cannot expire; save it first")
    [newest] = yield from _page(key, head.version - 1, head.version)
    at = None if ttl is None else head.now + ttl
    fields = msgspec.structs.replace(head.fields, expires_at=at)
    event, _ = _event(EXPIRES, encode({"at": at}), fold_of(key, newest))
    yield from _put(key, event, stamp, head.version, head.incarnation, fields)


def version(key: StreamKey) -> Operation[int]:
    """The newest version, 0 if there is none."""
    head = yield from ops.head(key)
    return head.version if head else 0


# -- facades ---------------------------------------------------------------------------------------


class StateBase(Generic[T]):
    """What a document and its async twin share. `_known` is what this object last saw; it is never believed unchecked."""

    def __init__(self, log: Log, key: StreamKey, type: Any) -> None:
        check_declared(type)
        self._log, self._key, self._type = log, key, type
        self._known: KnownDocument | None = None

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def _saving(
        self, value: object, if_version: int | None
    ) -> Callable[[], Operation[KnownDocument]]:
        """What makes the operation of a save. The value is taken here: what the caller does to it later does not matter."""
        if if_version is not None:
            whole_number(if_version, "if_version")
        raw = self._log.redaction.encoded(encode_as(value, self._type), self._type)
        if self._type is not Any:
            raw = _write(
                decode(raw)
            )  # a model may write its JSON in a way of its own; equal values have equal bytes
        stamp, known, look = new_append_context(), self._known, False

        def make() -> Operation[KnownDocument]:
            nonlocal look
            self._known = (
                None  # until this is done: what could not be saved upon is not to be trusted again
            )
            operation = save(self._key, raw, stamp, known, if_version=if_version, look=look)
            look = True
            return operation

        return make

    def _rolling(self, version: int) -> Callable[[], Operation[KnownDocument]]:
        whole_number(version, "version")
        stamp = new_append_context()
        return lambda: rollback(self._key, version, stamp)

    def _looking(self, version: int | None) -> Callable[[], Operation[KnownDocument | None]]:
        if version is None:
            return lambda: find(self._key, self._known)
        whole_number(version, "version")
        return lambda: at_version(self._key, version)

    def _clearing(self) -> Callable[[], Operation[None]]:
        stamp = new_append_context()
        return lambda: clear(self._key, stamp)

    def _expiring(self, ttl: float | timedelta | None) -> Callable[[], Operation[None]]:
        after, stamp = None if ttl is None else seconds(ttl, "ttl"), new_append_context()
        return lambda: expire(self._key, after, stamp)

    def _deleting(self, reason: str) -> Callable[[], Operation[bool]]:
        why = self._log.redaction.text(reason)
        return lambda: delete_stream(self._key, new_append_context(), why)

    def _keep(self, known: KnownDocument) -> int:
        self._known = known
        return known.version

    def _loaded(self, known: KnownDocument | None, default: Any, version: int | None) -> Any:
        """The value, made anew for each caller."""
        if version is None:
            self._known = known
        if known is None or known.raw is None:
            if default is _RAISE:
                raise NotFound(
                    f"{self._key} has no value; save one first, or give a default: load(None)"
                )
            return default
        try:
            return decode_as(known.raw, self._type)
        except Undecodable as error:
            raise SchemaMismatch(
                str(self._key), version=known.version, type=SAVED, what=error.what
            ) from None


class State(StateBase[T]):
    """A document that is saved whole. Only what changed is stored, and every version stays readable."""

    def save(self, value: T, *, if_version: int | None = None) -> int:
        """Save a value, durably, and return its version. An equal value writes nothing.

        With `if_version` the document must be at that version (0: it must not exist), else `Conflict` is raised and
        nothing is written. Without it the last writer wins, and what the others saved stays in the history.
        """
        make = self._saving(value, if_version)
        if if_version is not None:
            return self._keep(ops.run(self._log, make()))
        return self._keep(ops.run_until_settled(self._log, make))

    @overload
    def load(self, *, version: int | None = None) -> T: ...

    @overload
    def load(self, default: T) -> T: ...

    @overload
    def load(self, default: D) -> T | D: ...

    def load(self, default: Any = _RAISE, *, version: int | None = None) -> Any:
        """The value: as it is, or as it was at `version`. It is a copy, yours to change.

        Where there is none (never saved, cleared or deleted) it is `default`, or `NotFound` without one.
        """
        return self._loaded(
            ops.run_until_settled(self._log, self._looking(version)), default, version
        )

    def version(self) -> int:
        """The newest version, 0 if it was never saved."""
        return ops.run(self._log, version(self._key))

    def history(self) -> list[StateVersion]:
        """Every version, oldest first."""
        return ops.run_until_settled(self._log, lambda: history(self._key))

    def rollback(self, version: int) -> int:
        """Save the value of an earlier version again, and return the new version. Nothing in between is lost."""
        return self._keep(ops.run_until_settled(self._log, self._rolling(version)))

    def clear(self) -> None:
        """Leave the document without a value. Its versions stay, and so does its id."""
        ops.run_until_settled(self._log, self._clearing())

    def expire(self, ttl: float | timedelta | None) -> None:
        """Let the document expire after `ttl`: then `load` and `save` raise `Expired`. None lifts that, and revives it."""
        ops.run_until_settled(self._log, self._expiring(ttl))

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the document with all its versions; False if there was none. The audit stream keeps the reason."""
        return ops.run_until_settled(self._log, self._deleting(reason))


class AsyncState(StateBase[T]):
    """A `State` whose methods are awaited."""

    def save(self, value: T, *, if_version: int | None = None) -> Coroutine[Any, Any, int]:
        """`State.save`, awaited. The value is copied when this is called, not when it is awaited.

        If cancelled while the write is under way, it may have been stored. Repeating it is harmless.
        """
        return self._saved(self._saving(value, if_version), once=if_version is not None)

    async def _saved(self, make: Callable[[], Operation[KnownDocument]], *, once: bool) -> int:
        if once:
            return self._keep(await ops.run_async(self._log, make()))
        return self._keep(await ops.run_until_settled_async(self._log, make))

    @overload
    async def load(self, *, version: int | None = None) -> T: ...

    @overload
    async def load(self, default: T) -> T: ...

    @overload
    async def load(self, default: D) -> T | D: ...

    async def load(self, default: Any = _RAISE, *, version: int | None = None) -> Any:
        """`State.load`, awaited."""
        return self._loaded(
            await ops.run_until_settled_async(self._log, self._looking(version)), default, version
        )

    async def version(self) -> int:
        """`State.version`, awaited."""
        return await ops.run_async(self._log, version(self._key))

    async def history(self) -> list[StateVersion]:
        """`State.history`, awaited."""
        return await ops.run_until_settled_async(self._log, lambda: history(self._key))

    async def rollback(self, version: int) -> int:
        """`State.rollback`, awaited."""
        return self._keep(await ops.run_until_settled_async(self._log, self._rolling(version)))

    async def clear(self) -> None:
        """`State.clear`, awaited."""
        await ops.run_until_settled_async(self._log, self._clearing())

    async def expire(self, ttl: float | timedelta | None) -> None:
        """`State.expire`, awaited."""
        await ops.run_until_settled_async(self._log, self._expiring(ttl))

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`State.delete`, awaited."""
        return await ops.run_until_settled_async(self._log, self._deleting(reason))
