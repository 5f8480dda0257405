"""The health of a store: backend, durability, size, number of streams, oldest lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ..backends import CacheSize, Description
from ..backends.clock import to_datetime
from ..encryption.detect import KEYRING_STREAM
from ..log import operations as ops
from ..log.ids import COUNTED_KINDS
from ..log.operations import Operation
from ..log.reprs import html_table

MAX_COUNTED_STREAMS: Final = 10_000


class LeaseInfo(msgspec.Struct, frozen=True):
    """A lease on a stream: its owner, and when it ends."""

    stream: str
    owner: str
    until: datetime


class Health(msgspec.Struct, frozen=True):
    """Location, backend, durability, encryption and size of a store. `streams` counts by kind.

    Counting stops at 10,000 streams of a kind; `counted_all` is then False. `caches` are what this
    process keeps in memory; none of them grows beyond its limit.
    """

    location: str
    engine: str
    engine_version: str
    durability: str
    encrypted: bool
    tenant: str
    sizes: Mapping[str, int]
    streams: Mapping[str, int]
    counted_all: bool
    oldest_lease: LeaseInfo | None
    warnings: Sequence[str]
    caches: Mapping[str, CacheSize]

    def _repr_html_(self) -> str:
        rows: list[tuple[str, object]] = [
            ("backend", f"{self.engine} {self.engine_version}"),
            ("durability", self.durability),
            ("encrypted", "yes" if self.encrypted else "no"),
            ("tenant", self.tenant),
            *((f"{kind} streams", f"{count:,}") for kind, count in self.streams.items()),
            *((f"{name} bytes", f"{size:,}") for name, size in self.sizes.items()),
            *(("warning", warning) for warning in self.warnings),
        ]
        return html_table(f"Store {self.location}", rows)


def read_health(description: Description, tenant: str) -> Operation[Health]:
    """Count this tenant's streams and find its oldest lease."""
    counts: dict[str, int] = {}
    for kind in COUNTED_KINDS:
        count = yield from _count_streams(tenant, kind)
        if count:
            counts[kind] = count
    return Health(
        location=description.location,
        engine=description.engine,
        engine_version=description.version,
        durability=description.durability,
        encrypted=(yield from ops.head(KEYRING_STREAM)) is not None,
        tenant=tenant,
        sizes=description.sizes,
        streams=counts,
        counted_all=all(count < MAX_COUNTED_STREAMS for count in counts.values()),
        oldest_lease=(yield from _find_oldest_lease(tenant)),
        warnings=description.warnings,
        caches=description.caches,
    )


def _count_streams(tenant: str, kind: str) -> Operation[int]:
    count, after = 0, ""
    while count < MAX_COUNTED_STREAMS:
        page = yield from ops.heads(tenant, kind, after=after)
        if not page:
            break
        count, after = count + len(page), page[-1].stream.id
    return count


def _find_oldest_lease(tenant: str) -> Operation[LeaseInfo | None]:
    """Return the lease that ends first: of a task, or of a conversation's turn."""
    heads = list((yield from ops.due(tenant, "conversation")))
    after = ""
    # Not by due time: all tasks that wait for a worker are due.
    while page := (yield from ops.heads(tenant, "task", status="running", after=after)):
        heads += page
        after = page[-1].stream.id
        if len(heads) >= MAX_COUNTED_STREAMS:
            break
    found = [
        LeaseInfo(head.stream.id, head.fields.owner, to_datetime(head.fields.due_at))
        for head in heads
        if head.fields.owner is not None and head.fields.due_at is not None
    ]
    return min(found, key=lambda lease: lease.until, default=None)
