"""The events of a conversation, and the fold: a digest of the state that each event carries.

The state of a conversation is derived from its events. To read the newest messages without starting
at version 1, every event carries its writer's knowledge in its envelope: *at version `seen` there
were `count` live messages, and the event at version `marks` has the pins and the summary*. To get
the state at a version, take the fold of the event at that version and apply the few events after
`seen`. The fold is never the only copy of a fact.

Versions count the events of the conversation. In a fork they continue from the fork point: the
first event of a fork at version 7 has version 8. `base` is that 7; the version of the record in the
stream is lower by `base`.
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
TURN_BEGAN: Final = "turn.started"
TURN_RENEWED: Final = "turn.renewed"
TURN_ENDED: Final = "turn.ended"

SILENT_EVENTS: Final = frozenset(
    {FORKED, EXPIRES, DRAFTED, TURN_BEGAN, TURN_RENEWED, TURN_ENDED, SUMMARIZED}
)
"""Events that do not change the messages."""

MAX_PINS: Final = 1000
EMPTY_FIELDS: Final = HeadFields()


class Marks(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions of the pinned messages and the summary, and the last version that it covers."""

    pins: Sequence[int] = ()
    summary: int = 0
    covers: int = 0


class ConversationFold(msgspec.Struct, frozen=True, array_like=True):
    """The state at version `seen`. `own`, if set, has the marks that apply from this event on."""

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
    """A message that belongs after the one at version `after`, or before all others (0)."""

    after: int
    message: dict[str, Any]
    why: str


class Replaced(msgspec.Struct, frozen=True):
    """A replacement of the message at `version`, whose original stays in the event log."""

    version: int
    message: dict[str, Any]
    why: str


class Summarized(msgspec.Struct, frozen=True):
    """A summary of the messages from version `first` to `last`, including the previous summary."""

    first: int
    last: int
    message: dict[str, Any]


class Ancestor(msgspec.Struct, frozen=True):
    """An ancestor of a fork: the conversation, in one incarnation, with the messages up to `upto`.

    Its record versions are lower by `base`.
    """

    id: str
    incarnation: str
    base: int
    upto: int


class ConversationBranched(msgspec.Struct, frozen=True):
    """The first event of a fork: its parent, and the ancestors with its messages, nearest first."""

    parent: str
    at: int
    ancestors: list[Ancestor]


class Drafted(msgspec.Struct, frozen=True):
    """A piece of an answer that is still being streamed."""

    of: str
    text: str


NO_MARKS: Final = b",null]"
"""How an encoded fold without marks of its own ends."""

encode_fold = msgspec.json.encode
_FOLD_DECODER = msgspec.json.Decoder(ConversationFold)


def decode_fold(
    stream: StreamKey, version: int, envelope: Envelope | PlainEnvelope
) -> ConversationFold:
    """Decode the fold of an event."""
    try:
        fold = _FOLD_DECODER.decode(envelope.fold)
        if 0 <= fold.base <= fold.seen < fold.base + version and min(fold.count, fold.marks) >= 0:
            return fold
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    raise CorruptRecord(
        str(stream), version=version, what="the fold of the conversation is not valid"
    )


def decode_payload(stream: StreamKey, version: int, data: Any, shape: type[Any]) -> Any:
    """Decode an event's data as the struct of its type."""
    try:
        return msgspec.convert(data, shape)
    except msgspec.ValidationError:
        raise CorruptRecord(
            str(stream), version=version, what="its data does not fit its type"
        ) from None


def advance_fold(
    fold: ConversationFold, version: int, type: str, data: Any, own: Marks | None
) -> ConversationFold:
    """Return the state after one more event."""
    count = fold.count
    if type in (APPENDED, INSERTED):
        count += 1
    elif type == REMOVED:
        count -= 1
    elif type == REWOUND:
        count = data["left"]
    return ConversationFold(version, count, fold.base, version if own is not None else fold.marks)
