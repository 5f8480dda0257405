"""What `store.health()` answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ..backends import Description
from ..backends.clock import moment
from ..encryption.detect import RING
from ..log import operations as ops
from ..log.ids import COUNTED
from ..log.operations import Operation

COUNT_LIMIT: Final = 10_000


class LeaseInfo(msgspec.Struct, frozen=True):
    """A claim on a stream: by whom, and until when."""

    stream: str
    owner: str
    until: datetime


class Health(msgspec.Struct, frozen=True):
    """Where the state is, on what, how safe, whether encrypted, and how large. `streams` counts those of this tenant by kind.

    Counting stops at 10,000 streams of a kind; `counted_all` then is False.
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


def examine(description: Description, tenant: str) -> Operation[Health]:
    """Count this tenant's streams and find its oldest lease."""
    counts: dict[str, int] = {}
    for kind in COUNTED:
        count = yield from _count(tenant, kind)
        if count:
            counts[kind] = count
    return Health(
        location=description.location,
        engine=description.engine,
        engine_version=description.version,
        durability=description.durability,
        encrypted=(yield from ops.head(RING)) is not None,
        tenant=tenant,
        sizes=description.sizes,
        streams=counts,
        counted_all=all(count < COUNT_LIMIT for count in counts.values()),
        oldest_lease=(yield from _oldest_lease(tenant)),
        warnings=description.warnings,
    )


def _count(tenant: str, kind: str) -> Operation[int]:
    count, after = 0, ""
    while count < COUNT_LIMIT:
        page = yield from ops.heads(tenant, kind, after=after)
        if not page:
            break
        count, after = count + len(page), page[-1].stream.id
    return count


def _oldest_lease(tenant: str) -> Operation[LeaseInfo | None]:
    """The lease that ends first: of a task, or of a conversation's turn."""
    heads = list((yield from ops.due(tenant, "conversation")))
    after = ""
    # Not those that are due: so are all that wait for a worker.
    while page := (yield from ops.heads(tenant, "task", status="running", after=after)):
        heads += page
        after = page[-1].stream.id
        if len(heads) >= COUNT_LIMIT:
            break
    found = [
        LeaseInfo(head.stream.id, head.fields.owner, moment(head.fields.due_at))
        for head in heads
        if head.fields.owner is not None and head.fields.due_at is not None
    ]
    return min(found, key=lambda lease: lease.until, default=None)
