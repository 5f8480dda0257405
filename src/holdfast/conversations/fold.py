"""What a conversation's events mean, and the little that each of them says about the whole.

A conversation is a fold over its events. To read its newest messages nobody should have to begin at version 1, so
every event carries in its envelope what its writer knew: *at version `seen` there were `count` live messages, and what
is pinned and summarised stands at version `marks`*. The state at any version is then that of the event there,
brought forward over the few events in between; nothing here is ever the only copy of a fact.

Versions are those of the conversation. In a fork they go on from where it was taken: the first event of a fork at
version 7 has version 8. `base` is that 7; a record's own version is less by `base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..backends import HeadFields, StreamKey
from ..errors import CorruptRecord
from ..log.events import Envelope, PlainEnvelope

APPENDED: Final = "message.appended"
INSERTED: Final = "message.inserted"
REPLACED: Final = "message.replaced"
REMOVED: Final = "message.removed"
REWOUND: Final = "conversation.rewound"
SUMMARIZED: Final = "conversation.summarized"
FORKED: Final = "conversation.forked"
BRANCHED: Final = "conversation.branched"
EXPIRES: Final = "conversation.expires"
DRAFTED: Final = "answer.drafted"
TURN_BEGAN: Final = "turn.began"
TURN_RENEWED: Final = "turn.renewed"
TURN_ENDED: Final = "turn.ended"

SILENT: Final = frozenset(
    {FORKED, EXPIRES, DRAFTED, TURN_BEGAN, TURN_RENEWED, TURN_ENDED, SUMMARIZED}
)
"""Events after which the messages are what they were."""

MAX_PINS: Final = 1000
NO_FIELDS: Final = HeadFields()


class Marks(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a window needs from anywhere in the history: the pinned messages, and the summary with where its range ends."""

    pins: Sequence[int] = ()
    summary: int = 0
    covers: int = 0


class ConversationFold(msgspec.Struct, frozen=True, array_like=True):
    """What holds at version `seen`. `own`: the marks from the event that carries this on."""

    seen: int = 0
    count: int = 0
    base: int = 0
    marks: int = 0
    own: Marks | None = None


class Rewound(msgspec.Struct, frozen=True):
    """Everything after version `to` is undone; `left` messages are live."""

    to: int
    left: int


class Removed(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    why: str = "popped"


class Inserted(msgspec.Struct, frozen=True):
    """A message that belongs after the one at version `after`; 0: before all others."""

    after: int
    message: dict[str, Any]
    why: str


class Replaced(msgspec.Struct, frozen=True):
    """Another form of the message at `version`, whose original stays in the log."""

    version: int
    message: dict[str, Any]
    why: str


class Summarized(msgspec.Struct, frozen=True):
    """A summary of the messages from version `first` to `last`, the summary before it included."""

    first: int
    last: int
    message: dict[str, Any]


class Ancestor(msgspec.Struct, frozen=True):
    """Where the messages up to version `upto` are: in that life of another conversation, whose base is `base`."""

    id: str
    incarnation: str = msgspec.field(name="life")
    base: int
    upto: int


class ConversationBranched(msgspec.Struct, frozen=True):
    """The first event of a fork: what it was taken from, and where its messages are, nearest first."""

    parent: str
    at: int
    ancestors: list[Ancestor]


class Drafted(msgspec.Struct, frozen=True):
    """A piece of an answer that is still being streamed."""

    of: str
    text: str


_encode = msgspec.json.encode
_fold = msgspec.json.Decoder(ConversationFold)


def fold_of(
    stream: StreamKey, version: int, envelope: Envelope | PlainEnvelope
) -> ConversationFold:
    """What an event says about the whole."""
    try:
        fold = _fold.decode(envelope.fold)
        if 0 <= fold.base <= fold.seen < fold.base + version and min(fold.count, fold.marks) >= 0:
            return fold
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise CorruptRecord(
        str(stream), version=version, what="it does not say where the conversation stands"
    )


def encoded(fold: ConversationFold) -> bytes:
    return _encode(fold)


def payload(stream: StreamKey, version: int, data: Any, shape: type[Any]) -> Any:
    """An event's data as what its type says it is."""
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(stream), version=version, what="its data is not what its type says"
        ) from None


def forward(
    fold: ConversationFold, version: int, type: str, data: Any, own: Marks | None
) -> ConversationFold:
    """What holds after one more event."""
    count = fold.count
    if type in (APPENDED, INSERTED):
        count += 1
    elif type == REMOVED:
        count -= 1
    elif type == REWOUND:
        count = data["left"]
    return ConversationFold(version, count, fold.base, version if own is not None else fold.marks)
