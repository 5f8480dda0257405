"""A sliding expiry: a conversation expires some time after its last message.

The time to live is in the label of the stream's head, so that an append knows it without a read.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..backends import HeadFields, StreamKey
from ..errors import CorruptRecord
from ..log.head_fields import slide_expiry
from .read import ConversationSnapshot


class ConversationLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The label of a conversation. `ttl` is its sliding time to live in seconds."""

    ttl: Annotated[float, msgspec.Meta(ge=0.0, lt=1e11)] | None = None


_read_label = msgspec.json.Decoder(ConversationLabel).decode


def encode_label(ttl: float | None) -> bytes | None:
    """Return the label for a sliding time to live; None if the expiry doesn't slide."""
    return None if ttl is None else msgspec.json.encode(ConversationLabel(ttl))


def slide_fields(key: StreamKey, snapshot: ConversationSnapshot, at: float) -> HeadFields | None:
    """Return the head fields with the expiry moved by an append at our time `at`.

    Returns None if the expiry stays, because it does not slide or is late enough.
    """
    fields, now = snapshot.fields, snapshot.now_at(at)
    if fields.label is None or fields.expires_at is None:
        return None
    try:
        ttl = _read_label(fields.label).ttl
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CorruptRecord(str(key), what="its label is not that of a conversation") from None
    expires_at = fields.expires_at if ttl is None else slide_expiry(fields.expires_at, now, ttl)
    if expires_at == fields.expires_at:
        return None
    return msgspec.structs.replace(fields, expires_at=expires_at)
