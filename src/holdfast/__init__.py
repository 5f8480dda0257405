"""Holdfast keeps the state of LLM agents alive: kill the process at any instant, start it again, and it goes on.

store = holdfast.open("agents.db")
orders = store.stream("orders-7")
orders.append(("order.placed", {"sku": "A1"}))
"""

from . import errors
from ._context import correlate
from ._events import Event, EventType
from ._health import Health, Lease
from ._open import aopen, open  # noqa: A004  holdfast.open is the first thing users type
from ._store import AsyncStore, Store
from ._streams import AsyncStream, Stream, StreamInfo
from .backends import Appended
from .errors import (
    Closed,
    Conflict,
    CorruptRecord,
    DataProblem,
    HeadRegressed,
    HoldfastError,
    IdReused,
    InvalidId,
    NeedsHuman,
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
    "Appended",
    "AsyncStore",
    "AsyncStream",
    "Closed",
    "Conflict",
    "CorruptRecord",
    "DataProblem",
    "Event",
    "EventType",
    "HeadRegressed",
    "Health",
    "HoldfastError",
    "IdReused",
    "InvalidId",
    "Lease",
    "NeedsHuman",
    "NotSerializable",
    "OutcomeUnknown",
    "ReadOnly",
    "Retryable",
    "SchemaMismatch",
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
]
