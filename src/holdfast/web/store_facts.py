"""The store page: health, how its size grows, workers, deletions, and a verification on demand."""

from __future__ import annotations

import threading
from collections import deque
from datetime import datetime, timezone
from itertools import islice
from time import monotonic
from typing import Any, Final, Literal

import msgspec

from .. import Health, HoldfastError, Store
from ..log import operations as ops
from ..log.operations.stream_ops import audit_key
from ..types import WorkerInfo

SAMPLE_SECONDS: Final = 60.0
MAX_SAMPLES: Final = 1440
MAX_WORKERS: Final = 100
MAX_DELETIONS: Final = 20


class SizeSample(msgspec.Struct, frozen=True):
    """How large the store was at a time."""

    at: datetime
    bytes: int


class DeletedStream(msgspec.Struct, frozen=True):
    """A stream that was deleted, or whose keys were destroyed."""

    at: datetime
    what: str
    kind: str
    id: str
    reason: str
    by: str | None


class Verification(msgspec.Struct, frozen=True):
    """The verification that someone started last."""

    status: Literal["never", "running", "ok", "problems", "failed"] = "never"
    at: datetime | None = None
    by: str | None = None
    records: int = 0
    streams: int = 0
    problems: list[str] = []


class StoreFacts(msgspec.Struct, frozen=True):
    """What the store page shows."""

    health: Health
    growth: list[SizeSample]
    workers: list[WorkerInfo]
    deletions: list[DeletedStream]
    verification: Verification


class StoreMonitor:
    """Samples the size of a store while its dashboard is used, and verifies it on demand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._samples: deque[SizeSample] = deque(maxlen=MAX_SAMPLES)
        self._sampled_at: float | None = None
        self._lock = threading.Lock()
        self._verification = Verification()

    def sample(self) -> None:
        """Note the size of the store, at most once a minute."""
        with self._lock:
            now = monotonic()
            if self._sampled_at is not None and now - self._sampled_at < SAMPLE_SECONDS:
                return
            self._sampled_at = now
        try:
            sizes = self._store._log.backend.describe().sizes
        except HoldfastError:  # unreachable now: the next page tries again
            return
        if sizes:
            self._samples.append(SizeSample(datetime.now(timezone.utc), sum(sizes.values())))

    def read(self) -> StoreFacts:
        self.sample()
        health, growth = self._store.health(), list(self._samples)
        size = sum(health.sizes.values())
        if growth and (len(growth) > 1 or growth[-1].bytes != size):
            growth.append(SizeSample(datetime.now(timezone.utc), size))  # it ends with the present
        return StoreFacts(
            health,
            growth,
            list(islice(self._store.workers(), MAX_WORKERS)),
            self._list_deletions(),
            self._verification,
        )

    def _list_deletions(self) -> list[DeletedStream]:
        stream = audit_key(self._store.tenant)
        page = ops.run(
            self._store._log, ops.read(stream, limit=MAX_DELETIONS, reverse=True, decoded=True)
        )
        found = []
        for stored in page:
            envelope = stored.envelope
            data: Any = envelope.data
            facts = data if isinstance(data, dict) else {}
            found.append(
                DeletedStream(
                    datetime.fromtimestamp(envelope.at, timezone.utc),
                    envelope.type,
                    str(facts.get("kind", "")),
                    str(facts.get("id", "")),
                    str(facts.get("reason", "")),
                    envelope.by,
                )
            )
        return found

    def start_verification(self, by: str | None) -> bool:
        """Verify the store in a thread. Return False if that is being done already."""
        with self._lock:
            if self._verification.status == "running":
                return False
            self._verification = Verification("running", datetime.now(timezone.utc), by)
        threading.Thread(
            target=self._verify, args=(by,), name="holdfast-verify", daemon=True
        ).start()
        return True

    def _verify(self, by: str | None) -> None:
        try:
            result = self._store.verify()
        except Exception as error:  # also if the store is closed meanwhile
            found = Verification("failed", datetime.now(timezone.utc), by, problems=[str(error)])
        else:
            found = Verification(
                "ok" if result.ok else "problems",
                datetime.now(timezone.utc),
                by,
                result.records,
                result.streams,
                [str(problem) for problem in result.problems[:20]],
            )
        self._verification = found


def draw_growth(samples: list[SizeSample], width: int = 640, height: int = 120) -> list[str]:
    """Return the points of the growth curve as "x,y", from the oldest to the newest sample."""
    if len(samples) < 2:
        return []
    first, last = samples[0].at, samples[-1].at
    span = (last - first).total_seconds() or 1.0
    most = max(sample.bytes for sample in samples) or 1
    return [
        f"{(sample.at - first).total_seconds() / span * width:.1f},"
        f"{height - sample.bytes / most * (height - 8):.1f}"
        for sample in samples
    ]
