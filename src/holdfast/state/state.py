"""State documents: save a whole value; only the change is stored, and every version is kept.

A document is a stream. Each save is one event: a *keyframe* (the whole value) or a delta from the
version before it. Every event has a `StateFold` in its envelope, which names the keyframe that a
reader starts with.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

from ..backends import Head, HeadFields, StreamKey
from ..backends.clock import to_datetime
from ..errors import Conflict, CorruptRecord, Expired, NotFound, SchemaMismatch, UnsupportedVersion
from ..log import operations as ops
from ..log.codec import Undecodable, check_declared, decode, decode_as, encode, encode_as
from ..log.events import AppendContext, NewEvent, StoredEvent, new_append_context
from ..log.head_fields import is_expired
from ..log.ids import append_id
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.blobs import get_blob
from ..log.operations.retired_ids import check_not_retired, free_id
from ..log.operations.stream_ops import append_events, delete_stream, get_version
from ..log.reprs import ShortRepr
from ..log.validation import check_int, check_seconds
from .delta import BadDelta, diff, patch

KEYFRAME: Final = "state.keyframe"
SAVED: Final = "state.saved"
CLEARED: Final = "state.cleared"
EXPIRES: Final = "state.expires"

MAX_READ_RATIO: Final = 3
"""A load reads at most this many times the size of the document."""
MAX_DELTAS: Final = 10_000
"""A load reads at most this many deltas."""
RECORD_OVERHEAD_BYTES: Final = 150
"""The approximate size of a record without its data."""

T = TypeVar("T")
D = TypeVar("D")
_RAISE: Final[Any] = object()
"""Marks that the caller gave no default."""


class StateVersion(ShortRepr, msgspec.Struct, frozen=True):
    """One version of a document. Versions are ordered by `version`, never by time.

    `size` is the size of the value as JSON in bytes, 0 if it was cleared.
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
        return cls(head.stream.id, head.version, None if expires is None else to_datetime(expires))


class StateFold(msgspec.Struct, frozen=True, array_like=True):
    """The state after an event: first version to read, size of the value, bytes to read."""

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
    """Return the event that makes the document `raw`: a delta, or a keyframe if that is smaller.

    It is also a keyframe if a load would otherwise read more than `MAX_READ_RATIO` times the
    document. So before a keyframe of size v there is a keyframe with deltas of at least 3v, and the
    total is at most 1.5 times the size of the deltas alone.
    """
    whole = len(raw) + RECORD_OVERHEAD_BYTES
    if known is not None and known.raw is not None:
        delta = diff(known.raw, raw)
        read = known.fold.read + len(delta) + RECORD_OVERHEAD_BYTES
        few = known.version - known.fold.base < MAX_DELTAS
        if len(delta) < len(raw) and few and read <= MAX_READ_RATIO * whole and _is_readable(delta):
            return _new_event(SAVED, delta, StateFold(known.fold.base, len(raw), read))
    version = known.version + 1 if known else 1
    return _new_event(KEYFRAME, raw, StateFold(version, len(raw), whole))


def _is_readable(delta: bytes) -> bool:
    """Return whether a delta is within the depth limit; the delta of a deep value may not be."""
    try:
        decode(delta)
    except Undecodable:
        return False
    return True


def _new_event(type: str, data: bytes, fold: StateFold) -> tuple[NewEvent, StateFold]:
    return NewEvent(type, data, fold=_write(fold)), fold


def decode_fold(key: StreamKey, stored: StoredEvent) -> StateFold:
    """Decode and check the fold of an event."""
    envelope = stored.envelope
    if envelope.v != 1 or envelope.type not in (KEYFRAME, SAVED, CLEARED, EXPIRES):
        raise UnsupportedVersion(
            f"{key} (version {stored.version}) was written by a newer version of Holdfast; "
            "deploy that version"
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
            str(key), version=stored.version, what="it does not name a valid base version"
        )
    return fold


# -- reading ---------------------------------------------------------------------------------------


def load_document(
    key: StreamKey, known: KnownDocument | None = None
) -> Operation[KnownDocument | None]:
    """Return the current document; None if there is none.

    Versions up to `known` are not read again.
    """
    head = yield from _get_live_head(key)
    return None if head is None else (yield from load_at_head(key, head, known))


def load_at_head(
    key: StreamKey, head: Head, known: KnownDocument | None = None
) -> Operation[KnownDocument]:
    """Return the document at its head, even if it has expired."""
    if known is not None and known.incarnation != head.incarnation:
        known = None
    if known is not None and known.version == head.version:
        return known
    return (yield from _rebuild(key, head, head.version, known))


def load_version(key: StreamKey, version: int) -> Operation[KnownDocument]:
    """Return the document at a version. Raise `NotFound` if it had no value then."""
    head = yield from _get_live_head(key, version)
    if head is None or not 0 < version <= head.version:
        raise NotFound(f"{key} has no version {version}; history() lists its versions")
    found = yield from _rebuild(key, head, version, None)
    if found.raw is None:
        raise NotFound(
            f"{key} has no value at version {version}: it was cleared; history() lists its versions"
        )
    return found


def list_versions(key: StreamKey) -> Operation[list[StateVersion]]:
    """Return all versions, oldest first, without reading their values."""
    versions: list[StateVersion] = []
    head = yield from _get_live_head(key)
    at = 0
    while head is not None and at < head.version:
        for stored in (yield from _read_page(key, at, head.version)):
            fold, envelope, at = decode_fold(key, stored), stored.envelope, stored.version
            if envelope.type != EXPIRES:
                versions.append(
                    StateVersion(
                        at, to_datetime(envelope.at), envelope.by, envelope.correlation, fold.size
                    )
                )
    if head is not None:
        yield from _check_incarnation(key, head)
    return versions


def follow_expiries(key: StreamKey, known: KnownDocument) -> Operation[KnownDocument | None]:
    """Return a known document at its head; None if more than its expiry has changed since."""
    head = yield from ops.head(key)
    if head is None or head.incarnation != known.incarnation:
        return None
    at = known.version
    while at < head.version:
        page = yield from _read_page(key, at, head.version)
        if any(stored.envelope.type != EXPIRES for stored in page):
            return None
        at = page[-1].version
    return msgspec.structs.replace(known, version=at, expires_at=head.fields.expires_at)


def _get_live_head(key: StreamKey, upto: int | None = None) -> Operation[Head | None]:
    """Return the head of a document. Raise `Expired` if it has expired, even if it was purged."""
    head = yield from ops.head(key, upto=upto)
    if head is None:
        yield from check_not_retired(key)
    elif is_expired(head):
        raise Expired(str(key), at=head.fields.expires_at or 0.0)
    return head


def _rebuild(
    key: StreamKey, head: Head, version: int, known: KnownDocument | None
) -> Operation[KnownDocument]:
    """Return the document at a version, from its keyframe and the deltas after it.

    If `known` has the same keyframe, only the deltas after `known` are read.
    """
    [newest] = yield from _read_page(key, version - 1, version)
    fold = decode_fold(key, newest)
    raw, at = None, fold.base - 1
    if known is not None and known.fold.base == fold.base:
        raw, at = known.raw, known.version
    deltas: list[tuple[int, bytes]] = []
    while at < version:
        page: Sequence[StoredEvent] = [newest]
        if at < version - 1:
            page = yield from _read_page(key, at, version - 1)
        for stored in page:
            at, kind = stored.version, stored.envelope.type
            if decode_fold(key, stored).base != fold.base or (kind == SAVED and raw is None):
                yield from _check_incarnation(key, head)
                raise CorruptRecord(
                    str(key), version=at, what="it does not continue the version before it"
                )
            if kind == KEYFRAME:
                raw = yield from _load_raw(key, stored)
            elif kind == SAVED:
                deltas.append((at, (yield from _load_raw(key, stored))))
    yield from _check_incarnation(key, head)
    if raw is not None:
        raw = _apply_deltas(key, fold.base, raw, deltas)
    return KnownDocument(head.incarnation, version, raw, fold, head.fields.expires_at)


def _apply_deltas(
    key: StreamKey, base: int, raw: bytes, deltas: Sequence[tuple[int, bytes]]
) -> bytes:
    try:
        return patch(raw, [delta for _, delta in deltas])
    except BadDelta as error:
        raise CorruptRecord(str(key), version=deltas[error.index][0], what=error.what) from None
    except Undecodable as error:
        raise CorruptRecord(str(key), version=base, what=error.what) from None


def _read_page(key: StreamKey, after: int, last: int) -> Operation[list[StoredEvent]]:
    """Read one page of events up to `last`. Raise `Conflict` if the document was deleted."""
    page = yield from ops.read(key, after=after, limit=last - after)
    if not page:
        raise Conflict(str(key), expected=last, actual=0)
    return page


def _check_incarnation(key: StreamKey, head: Head) -> Operation[None]:
    """Raise `Conflict` if the events may come from two incarnations of the document."""
    now = yield from ops.head(key, upto=head.version)
    if now is None or now.incarnation != head.incarnation:
        raise Conflict(str(key), expected=head.version, actual=now.version if now else 0)


def _load_raw(key: StreamKey, stored: StoredEvent) -> Operation[bytes]:
    blob = stored.envelope.blob
    return bytes(stored.envelope.data) if blob is None else (yield from get_blob(key, blob))


# -- writing ---------------------------------------------------------------------------------------


def save_document(
    key: StreamKey,
    raw: bytes,
    stamp: AppendContext,
    known: KnownDocument | None,
    *,
    if_version: int | None = None,
    refresh: bool = False,
) -> Operation[KnownDocument]:
    """Make `raw` the value. Raise `Conflict` if `known` is out of date.

    A `known` document saves a read. It is checked first if more than the delta depends on it:
    whether there is anything to write, `if_version`, or the expiry.
    """
    differs = if_version is not None and known is not None and known.version != if_version
    if refresh or differs or known is None or known.raw == raw or known.expires_at is not None:
        known = yield from load_document(key, known)
    version = known.version if known else 0
    if if_version is not None and version != if_version:
        raise Conflict(str(key), expected=if_version, actual=version)
    if known is not None and known.raw == raw:
        return known
    saved, _ = yield from append_value(key, raw, stamp, known)
    return saved


def append_value(
    key: StreamKey,
    raw: bytes,
    stamp: AppendContext,
    known: KnownDocument | None,
    fields: HeadFields | None = None,
) -> Operation[tuple[KnownDocument, float]]:
    """Append a value as the version after `known`. Return the document and the backend's time."""
    event, fold = next_event(known, raw)
    version, incarnation, expires_at = (
        (known.version, known.incarnation, known.expires_at)
        if known
        else (0, append_id(stamp.id), None)
    )
    answer = yield from append_events(
        key, [event], stamp, expected=version, incarnation=incarnation, fields=fields
    )
    if fields is not None:
        expires_at = fields.expires_at
    return KnownDocument(incarnation, version + 1, raw, fold, expires_at), answer.now or stamp.at


def restore_version(key: StreamKey, version: int, stamp: AppendContext) -> Operation[KnownDocument]:
    """Save the value of an earlier version again."""
    known = yield from load_document(key)
    old = yield from load_version(key, version)
    assert old.raw is not None
    # Raises `Conflict` if the two are from different incarnations.
    return (yield from save_document(key, old.raw, stamp, known))


def clear_document(key: StreamKey, stamp: AppendContext) -> Operation[None]:
    """Remove the value of a document; its versions stay."""
    head = yield from _get_live_head(key)
    if head is None:
        return
    [newest] = yield from _read_page(key, head.version - 1, head.version)
    if decode_fold(key, newest).size:
        event, _ = _new_event(CLEARED, b"null", StateFold(head.version + 1, 0, 0))
        yield from append_events(
            key, [event], stamp, expected=head.version, incarnation=head.incarnation
        )


def set_expiry(key: StreamKey, ttl: float | None, stamp: AppendContext) -> Operation[None]:
    """Set or remove the expiry of a document, by the backend's clock."""
    head = yield from ops.head(key)
    if head is None:
        yield from check_not_retired(key)  # a purged document cannot be restored
        raise NotFound(f"{key} does not exist, so it cannot expire; save it first")
    [newest] = yield from _read_page(key, head.version - 1, head.version)
    at = None if ttl is None else head.now + ttl
    known = KnownDocument(head.incarnation, head.version, None, decode_fold(key, newest))
    yield from append_expiry(key, at, stamp, known)


def append_expiry(
    key: StreamKey, at: float | None, stamp: AppendContext, known: KnownDocument
) -> Operation[KnownDocument]:
    """Append the time when a document expires, as the version after `known`."""
    event, _ = _new_event(EXPIRES, encode({"at": at}), known.fold)
    yield from append_events(
        key,
        [event],
        stamp,
        expected=known.version,
        incarnation=known.incarnation,
        fields=HeadFields(expires_at=at),
    )
    return msgspec.structs.replace(known, version=known.version + 1, expires_at=at)


def delete_document(key: StreamKey, stamp: AppendContext, reason: str) -> Operation[bool]:
    """Delete a document and free its id. Return False if there was nothing to do."""
    deleted = yield from delete_stream(key, stamp, reason)
    freed = yield from free_id(key, msgspec.structs.replace(stamp, id=stamp.id + 1))
    return deleted or freed


# -- facades ---------------------------------------------------------------------------------------


class StateBase(Generic[T]):
    """The base of `State` and `AsyncState`.

    `_known` is the document that this object last saw. It is always checked before it is used.
    """

    def __init__(self, log: Log, key: StreamKey, type: Any) -> None:
        check_declared(type)
        self._log, self._key, self._type = log, key, type
        self._known: KnownDocument | None = None

    @property
    def id(self) -> str:
        return self._key.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._key.id!r}>"

    def _prepare_save(
        self, value: object, if_version: int | None
    ) -> Callable[[], Operation[KnownDocument]]:
        """Encode the value as it is now. Return a factory for the operation."""
        if if_version is not None:
            check_int(if_version, "if_version")
        raw = self._log.redaction.redact_json(encode_as(value, self._type), self._type)
        if self._type is not Any:
            raw = _write(decode(raw))  # a model may have its own JSON form; equal values must match
        stamp, known, refresh = new_append_context(), self._known, False

        def make() -> Operation[KnownDocument]:
            nonlocal refresh
            self._known = None  # until the save succeeds
            operation = save_document(
                self._key, raw, stamp, known, if_version=if_version, refresh=refresh
            )
            refresh = True
            return operation

        return make

    def _prepare_rollback(self, version: int) -> Callable[[], Operation[KnownDocument]]:
        check_int(version, "version")
        stamp = new_append_context()
        return lambda: restore_version(self._key, version, stamp)

    def _prepare_load(self, version: int | None) -> Callable[[], Operation[KnownDocument | None]]:
        if version is None:
            return lambda: load_document(self._key, self._known)
        check_int(version, "version")
        return lambda: load_version(self._key, version)

    def _prepare_clear(self) -> Callable[[], Operation[None]]:
        stamp = new_append_context()
        return lambda: clear_document(self._key, stamp)

    def _prepare_expire(self, ttl: float | timedelta | None) -> Callable[[], Operation[None]]:
        after, stamp = None if ttl is None else check_seconds(ttl, "ttl"), new_append_context()
        return lambda: set_expiry(self._key, after, stamp)

    def _prepare_delete(self, reason: str, by: str | None) -> Callable[[], Operation[bool]]:
        why = self._log.redaction.redact_text(reason)
        return lambda: delete_document(self._key, new_append_context(by), why)

    def _keep(self, known: KnownDocument) -> int:
        self._known = known
        return known.version

    def _decode_loaded(self, known: KnownDocument | None, default: Any, version: int | None) -> Any:
        """Decode the value. Each caller gets a copy of its own."""
        if version is None:
            self._known = known
        if known is None or known.raw is None:
            if default is _RAISE:
                raise NotFound(
                    f"{self._key} has no value; save one first, or pass a default: load(None)"
                )
            return default
        try:
            return decode_as(known.raw, self._type)
        except Undecodable as error:
            raise SchemaMismatch(
                str(self._key), version=known.version, type=SAVED, what=error.what
            ) from None


class State(StateBase[T]):
    """A document that is saved whole. Only the change is stored; every version stays readable."""

    def save(self, value: T, *, if_version: int | None = None) -> int:
        """Save a value durably. Saving an equal value writes nothing.

        Without `if_version` the last writer wins, and the history keeps what the others saved.

        Args:
            value: The whole new value, of the declared type.
            if_version: Save only if the document is at this version; 0 means it must not exist.

        Returns:
            The version of the document with this value.

        Raises:
            Conflict: The document is not at `if_version`. Nothing was written.
            Expired: The document has expired.
            NotSerializable: The value would come back from JSON changed.

        Example:
            version = state.save({"step": 3}, if_version=2)
        """
        make = self._prepare_save(value, if_version)
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
        """Return a copy of the value.

        Args:
            default: What to return if there is no value: never saved, cleared or deleted.
            version: Return the value as of this version instead of the newest.

        Raises:
            NotFound: There is no value and no default, or no such version.
            Expired: The document has expired.

        Example:
            settings = state.load({"theme": "dark"})
        """
        return self._decode_loaded(
            ops.run_until_settled(self._log, self._prepare_load(version)), default, version
        )

    def version(self) -> int:
        """Return the newest version; 0 if the document does not exist."""
        return ops.run(self._log, get_version(self._key))

    def history(self) -> list[StateVersion]:
        """Return every version, oldest first."""
        return ops.run_until_settled(self._log, lambda: list_versions(self._key))

    def rollback(self, version: int) -> int:
        """Save the value of an earlier version again. Return the new version; the others stay."""
        return self._keep(ops.run_until_settled(self._log, self._prepare_rollback(version)))

    def clear(self) -> None:
        """Remove the value. The versions of the document stay."""
        ops.run_until_settled(self._log, self._prepare_clear())

    def expire(self, ttl: float | timedelta | None) -> None:
        """Let the document expire after `ttl`; then `load` and `save` raise `Expired`.

        `None` removes the expiry and makes an expired document usable again, until it is purged
        (`store.sweep`).
        """
        ops.run_until_settled(self._log, self._prepare_expire(ttl))

    def delete(self, *, reason: str = "deleted by the program", by: str | None = None) -> bool:
        """Delete the document with all its versions and free its id. Return False if there is none.

        The audit stream keeps the reason.
        """
        return ops.run_until_settled(self._log, self._prepare_delete(reason, by))


class AsyncState(StateBase[T]):
    """A `State` whose methods are awaited."""

    def save(self, value: T, *, if_version: int | None = None) -> Coroutine[Any, Any, int]:
        """`State.save`, awaited. The value is copied when this is called, not when it is awaited.

        If it is cancelled, the value may still be stored. Repeating the call is harmless.
        """
        return self._run_save(self._prepare_save(value, if_version), once=if_version is not None)

    async def _run_save(self, make: Callable[[], Operation[KnownDocument]], *, once: bool) -> int:
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
        return self._decode_loaded(
            await ops.run_until_settled_async(self._log, self._prepare_load(version)),
            default,
            version,
        )

    async def version(self) -> int:
        """`State.version`, awaited."""
        return await ops.run_async(self._log, get_version(self._key))

    async def history(self) -> list[StateVersion]:
        """`State.history`, awaited."""
        return await ops.run_until_settled_async(self._log, lambda: list_versions(self._key))

    async def rollback(self, version: int) -> int:
        """`State.rollback`, awaited."""
        return self._keep(
            await ops.run_until_settled_async(self._log, self._prepare_rollback(version))
        )

    async def clear(self) -> None:
        """`State.clear`, awaited."""
        await ops.run_until_settled_async(self._log, self._prepare_clear())

    async def expire(self, ttl: float | timedelta | None) -> None:
        """`State.expire`, awaited."""
        await ops.run_until_settled_async(self._log, self._prepare_expire(ttl))

    async def delete(
        self, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`State.delete`, awaited."""
        return await ops.run_until_settled_async(self._log, self._prepare_delete(reason, by))
