"""Repair a store: rebuild everything that can be derived from the records. `Store.repair`.

- the backend's indexes, counters and catalogs;
- the fields of heads that were altered: status, label and times. A task that had not ended becomes
  due, and a worker decides how it continues;
- the memory index.

Records are never changed. Facts that are not in them are lost: leases, and the time for which an
operator scheduled a task.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..backends import Head, HeadFields, StreamKey, SupportsCheck, SupportsFieldRepair
from ..backends.retrying import RetryingBackend
from ..conversations.fold import EXPIRES as CONVERSATION_EXPIRES
from ..conversations.sliding_expiry import encode_label as encode_sliding_label
from ..errors import DataProblem, Erased
from ..log import operations as ops
from ..log.head_fields import NO_FIELDS
from ..log.log import Log
from ..log.operations import Operation
from ..log.operations.forks import convert_data
from ..log.operations.retired_ids import RETIRED_ID_KIND
from ..log.tenants import list_scopes
from ..memory.resources import get_resources
from ..state.state import EXPIRES as STATE_EXPIRES
from ..tasks.state.load import encode_label, load_task

_EXPIRY_EVENTS: Final = {"conversation": CONVERSATION_EXPIRES, "state": STATE_EXPIRES}
PAGE_EVENTS: Final = 200


class RepairResult(msgspec.Struct, frozen=True):
    """The result of a repair.

    `entries` of the backend were wrong, the fields of `heads` were derived again, and the memory
    index of `namespaces` was rebuilt. Both lists have (tenant, kind, id).
    """

    entries: int
    heads: list[StreamKey]
    namespaces: list[StreamKey]

    def __str__(self) -> str:
        parts = [
            _format_count(self.entries, "entry", "entries"),
            _format_count(len(self.heads), "head"),
            f"the memory index of {_format_count(len(self.namespaces), 'namespace')}",
        ]
        return f"rebuilt {', '.join(parts[:-1])} and {parts[-1]}"


def repair(log: Log) -> RepairResult:
    """Rebuild everything that can be derived from the records, in all tenants."""
    backend, store = log.backend, RetryingBackend(log.backend, log.timeout)
    entries = backend.rebuild() if isinstance(backend, SupportsCheck) else 0
    heads: list[StreamKey] = []
    namespaces: list[StreamKey] = []
    for tenant, kind in list_scopes(store, None):
        for listed in store.list_heads(tenant, kind):
            if kind == "memory":
                namespaces.append(listed.stream)
            if _repair_head(log, listed.stream):
                heads.append(listed.stream)
    return RepairResult(entries, heads, _repair_memory_index(log, namespaces))


async def repair_async(log: Log) -> RepairResult:
    """`repair` in a thread."""
    import asyncio

    return await asyncio.to_thread(repair, log)


def _repair_memory_index(log: Log, namespaces: list[StreamKey]) -> list[StreamKey]:
    resources = get_resources(log)
    wrong = {problem.space for problem in resources.check(namespaces)}
    if None in wrong:  # the tables as a whole
        resources.reset_index()
        wrong = set(namespaces)
    for space in namespaces:
        if space in wrong:
            resources.follower(space).rebuild()
    return [space for space in namespaces if space in wrong]


# -- heads -----------------------------------------------------------------------------------------


def _repair_head(log: Log, stream: StreamKey) -> bool:
    """Derive the fields of a head again if they were altered. Return whether that was done."""
    backend = log.backend
    try:
        head = backend.head(stream)
        if head is None or not _is_altered(log, head):
            return False
        if not isinstance(backend, SupportsFieldRepair):
            return False
        fields = ops.run(log, derive_fields(head))
    except DataProblem:
        return False  # the records themselves are damaged
    return backend.replace_fields(head, log.reader.encode_fields(stream, head.incarnation, fields))


def _is_altered(log: Log, head: Head) -> bool:
    if head.fields == NO_FIELDS:
        return True
    try:
        log.reader.decode_head(head)
    except DataProblem:
        return True
    return False


def derive_fields(head: Head) -> Operation[HeadFields]:
    """Return the fields of a head, as far as they can be derived from the records."""
    stream = head.stream
    try:
        if stream.kind == "task":
            return (yield from _derive_task_fields(head))
        if stream.kind in _EXPIRY_EVENTS:
            return (yield from _derive_expiry(stream, _EXPIRY_EVENTS[stream.kind]))
    except Erased:
        return HeadFields("erased")
    if stream.kind == RETIRED_ID_KIND:
        return HeadFields(due_at=head.now)  # the next sweep deletes blobs, if there are any left
    return NO_FIELDS


def _derive_task_fields(head: Head) -> Operation[HeadFields]:
    state = yield from load_task(head.stream)
    label = encode_label(state, any(step.in_doubt(None) for step in state.steps.values()))
    if state.ended:
        expires_at = None if state.ttl is None else state.updated_at + state.ttl
        due_at = None if state.parent is None else head.now  # its parent may not know yet
        return HeadFields(state.status, label, None, due_at, expires_at)
    if state.status in ("failed", "stuck"):
        return HeadFields(state.status, label)
    return HeadFields("pending", label, None, None if state.agent is None else head.now)


class _Expires(msgspec.Struct, frozen=True):
    """The data of an event that sets an expiry. A `ttl` starts again with each append."""

    at: float | None = None
    ttl: float | None = None


def _derive_expiry(stream: StreamKey, type: str) -> Operation[HeadFields]:
    """Return the fields that the newest event with an expiry has set."""
    before, newest = 0, None
    while page := (
        yield from ops.read(stream, after=before, limit=PAGE_EVENTS, reverse=True, decoded=True)
    ):
        newest = newest or page[0].envelope.at
        for stored in page:
            if stored.envelope.type == type:
                expires = convert_data(stream, stored, _Expires)
                if expires.ttl is None:
                    return HeadFields(expires_at=expires.at)
                label = encode_sliding_label(expires.ttl)
                return HeadFields(label=label, expires_at=newest + expires.ttl)
        before = page[-1].version
        if before == 1:
            break
    return NO_FIELDS


def _format_count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
