"""Streams that expire, and a backend with a clock that can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast import Store
from holdfast.admin import purge_expired
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Cursor,
    Description,
    Head,
    HeadFields,
    Record,
    StreamKey,
)
from holdfast.backends import VersionMismatch as Refused
from holdfast.log import operations as ops
from holdfast.log.codec import encode
from holdfast.log.events import NewEvent, new_append_context
from holdfast.log.operations.retired_ids import get_retired_at
from holdfast.log.operations.stream_ops import append_events, audit_key

LARGE = "x" * 100_000

HOUR, DAY = 3600.0, 86400.0


class Wrapped:
    """Any backend, with a clock that can be put wrong, and with something to do around each
    write."""

    def __init__(self, inner: Backend) -> None:
        self.inner, self.ahead = inner, 0.0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | Refused]:
        self.before()
        answers = self.inner.append(batch)
        self.after()
        return [
            self._shifted(answer)
            if isinstance(answer, AppendResult)
            else Refused(answer.head and self._shifted(answer.head))
            for answer in answers
        ]

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self.before()
        done = self.inner.delete(stream, expected=expected)
        self.after()
        return done

    def find_append(self, stream: StreamKey, id: bytes) -> tuple[int, int] | None:
        return self.inner.find_append(stream, id)

    def read(
        self, stream: StreamKey, *, after: int = 0, limit: int | None = None, reverse: bool = False
    ) -> Sequence[Record]:
        return self.inner.read(stream, after=after, limit=limit, reverse=reverse)

    def head(self, stream: StreamKey) -> Head | None:
        head = self.inner.head(stream)
        return head and self._shifted(head)

    def heads(
        self,
        *,
        tenant: str,
        kind: str,
        status: str | None = None,
        after: str = "",
        limit: int = 500,
    ) -> Sequence[Head]:
        return list(
            map(
                self._shifted,
                self.inner.heads(tenant=tenant, kind=kind, status=status, after=after, limit=limit),
            )
        )

    def due(
        self,
        *,
        tenant: str,
        kind: str,
        before: float | None = None,
        after: Cursor | None = None,
        limit: int = 100,
    ) -> Sequence[Head]:
        return list(
            map(
                self._shifted,
                self.inner.due(tenant=tenant, kind=kind, before=before, after=after, limit=limit),
            )
        )

    def describe(self) -> Description:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()

    def _shifted(self, seen: Any) -> Any:
        return msgspec.structs.replace(seen, now=seen.now + self.ahead)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def key_of(kind: str, id: str, tenant: str = "default") -> StreamKey:
    return StreamKey(tenant, kind, id)


def plant(
    store: Store, kind: str, id: str, ttl: float | None, *events: tuple[str, Any], **fields: Any
) -> StreamKey:
    """A stream as the engine of its kind would leave it, which expires `ttl` seconds from now."""
    key, stamp = key_of(kind, id, store.tenant), new_append_context()
    head = ops.run(store._log, ops.head(audit_key(store.tenant)))
    now = head.now if head else stamp.at
    new = [NewEvent(name, encode(data)) for name, data in events or ((f"{kind}.created", {}),)]
    times = HeadFields(expires_at=None if ttl is None else now + ttl, **fields)
    ops.run(store._log, append_events(key, new, stamp, fields=times))
    return key


def fill(store: Store, living: int, expired: int, kind: str = "conversation") -> None:
    for number in range(living):
        plant(store, kind, f"living {number:04}", None)
    for number in range(expired):
        plant(store, kind, f"expired {number:04}", -1)


def there(store: Store, *kinds: str) -> set[str]:
    backend = store._log.backend
    heads = [
        head
        for kind in kinds or purge_expired.SWEPT_KINDS
        for head in backend.heads(tenant=store.tenant, kind=kind)
    ]
    return {head.stream.id for head in heads}


def ids(swept: Sequence[Any]) -> list[str]:
    return [stream.id for stream in swept]


def closed(store: Store, kind: str, id: str) -> float | None:
    return ops.run(store._log, get_retired_at(key_of(kind, id, store.tenant)))


def audited(store: Store) -> list[tuple[str, str]]:
    stored = ops.run(store._log, ops.read(audit_key(store.tenant), decoded=True))
    return [(event.envelope.data["id"], event.envelope.data["reason"]) for event in stored]
