"""The fields of a head: how they are stored, with a checksum, and when a stream expires.

The fields (status, label, owner, times) are in no record, so the hash chain does not cover them.
The log stores

    label = H(seed, all other fields, label) | label

where `seed` binds it to the incarnation of its stream. In an encrypted store, the label is
encrypted instead, with the other fields as associated data (`encryption.cipher`). Every stream gets
a checksum when it is created, even without fields. So `verify` notices if all fields are removed:
only a stream whose copy is unfinished has no checksum.
"""

from __future__ import annotations

import struct
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from ..backends import HeadFields, HeadSummary
from ..errors import CorruptRecord
from . import chain

CHECKSUM_BYTES: Final = 16
NO_FIELDS: Final = HeadFields()
ALTERED: Final = "the fields of its head (status, label, owner or times) were altered"
NO_CHECKSUM: Final = "its head has no checksum: it was altered, or copying it was not finished"

_pack_time = struct.Struct(">Bd").pack


def pack_fields(fields: HeadFields) -> bytes:
    """Return all fields except the label as bytes. Different fields give different bytes."""
    return (
        _pack_text(fields.status)
        + _pack_text(fields.owner)
        + (b"\0" if fields.due_at is None else _pack_time(1, fields.due_at))
        + (b"\0" if fields.expires_at is None else _pack_time(1, fields.expires_at))
    )


def _pack_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    raw = text.encode()
    return b"\1" + len(raw).to_bytes(4, "big") + raw


def pack_label(label: bytes | None) -> bytes:
    """Return a label as bytes. None and an empty label differ."""
    return b"" if label is None else b"\1" + label


def unpack_label(packed: bytes) -> bytes | None:
    return packed[1:] if packed else None


def encode_fields(seed: bytes, fields: HeadFields) -> HeadFields:
    """Return the fields as they are stored in an unencrypted store."""
    packed = pack_label(fields.label)
    label = _compute_checksum(seed, fields, packed) + packed
    return HeadFields(fields.status, label, fields.owner, fields.due_at, fields.expires_at)


def decode_fields(head: HeadSummary) -> HeadFields:
    """Return the fields of a stored, unencrypted head; `CorruptRecord` if they were altered."""
    fields = head.fields
    if fields.label is None:
        if fields != NO_FIELDS:
            raise CorruptRecord(str(head.stream), what=ALTERED)
        return fields
    checksum, label = fields.label[:CHECKSUM_BYTES], fields.label[CHECKSUM_BYTES:]
    if checksum != _compute_checksum(chain.seed(head.stream, head.incarnation), fields, label):
        raise CorruptRecord(str(head.stream), what=ALTERED)
    return HeadFields(
        fields.status, unpack_label(label), fields.owner, fields.due_at, fields.expires_at
    )


def _compute_checksum(seed: bytes, fields: HeadFields, label: bytes) -> bytes:
    return blake2b(seed + pack_fields(fields) + label, digest_size=CHECKSUM_BYTES).digest()


# -- expiry --------------------------------------------------------------------------------------

TASK_TTL: Final = timedelta(days=7)
"""How long a task is kept after it has ended, unless the caller says otherwise."""
SLACK_SHARE: Final = 100
"""An expiry is moved 1/N of the time to live further than necessary, so that most appends need not
move it again: on some backends, a move costs extra requests."""


def is_expired(head: HeadSummary) -> bool:
    """Return whether a stream has expired, by the clock of its backend."""
    return head.fields.expires_at is not None and head.fields.expires_at <= head.now


def slide_expiry(expires_at: float | None, now: float, ttl: float) -> float:
    """Return when a stream expires after an append at `now`: at least `ttl` later.

    The current time is kept as long as it is late enough:

    >>> slide_expiry(None, 1000.0, 100.0)
    1100.0
    >>> slide_expiry(1100.0, 1010.0, 100.0)
    1111.0
    >>> slide_expiry(1111.0, 1010.5, 100.0)
    1111.0

    With a shorter time to live, it becomes earlier:

    >>> slide_expiry(9000.0, 1010.0, 100.0)
    1110.0
    """
    latest = now + ttl + ttl / SLACK_SHARE
    if expires_at is None or expires_at > latest:
        return now + ttl
    return expires_at if expires_at >= now + ttl else latest
