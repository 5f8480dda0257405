"""Holdfast keeps the state of LLM agents alive: kill the process at any instant, start it again, and it goes on.

store = holdfast.open("agents.db")
chat = store.conversation("support-42")
chat.append({"role": "user", "content": "Hello"})
"""

from . import errors
from ._context import correlate
from ._events import Event, EventType
from ._health import Health, Lease
from ._open import aopen, open  # noqa: A004  holdfast.open is the first thing users type
from ._state import AsyncState, State, StateVersion
from ._store import AsyncStore, Store
from ._streams import AsyncStream, Stream, StreamInfo
from .backends import Appended
from .conversations import (
    AsyncConversation,
    Conversation,
    ConversationInfo,
    Draft,
    Entry,
    Imported,
    Problem,
    text_counter,
)
from .errors import (
    AlreadyExists,
    BudgetExceeded,
    Closed,
    Conflict,
    CorruptFile,
    CorruptRecord,
    DataProblem,
    Expired,
    HasForks,
    HeadRegressed,
    Held,
    HoldfastError,
    IdReused,
    InvalidId,
    LeaseLost,
    NeedsHuman,
    NotFound,
    NotSerializable,
    OutcomeUnknown,
    ReadOnly,
    Retryable,
    SchemaMismatch,
    StorageFull,
    TooLarge,
    Unavailable,
    UnsupportedFilesystem,
    UnsupportedVersion,
)

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Appended",
    "AsyncConversation",
    "AsyncState",
    "AsyncStore",
    "AsyncStream",
    "BudgetExceeded",
    "Closed",
    "Conflict",
    "Conversation",
    "ConversationInfo",
    "CorruptFile",
    "CorruptRecord",
    "DataProblem",
    "Draft",
    "Entry",
    "Event",
    "EventType",
    "Expired",
    "HasForks",
    "HeadRegressed",
    "Health",
    "Held",
    "HoldfastError",
    "IdReused",
    "Imported",
    "InvalidId",
    "Lease",
    "LeaseLost",
    "NeedsHuman",
    "NotFound",
    "NotSerializable",
    "OutcomeUnknown",
    "Problem",
    "ReadOnly",
    "Retryable",
    "SchemaMismatch",
    "State",
    "StateVersion",
    "StorageFull",
    "Store",
    "Stream",
    "StreamInfo",
    "TooLarge",
    "Unavailable",
    "UnsupportedFilesystem",
    "UnsupportedVersion",
    "aopen",
    "correlate",
    "errors",
    "open",
    "text_counter",
]
