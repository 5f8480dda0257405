"""What the tests of hostile servers share: every call of a backend on what somebody has planted,
and what its answers must be like."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from helpers.stored.hostile_content import attempted
from holdfast.backends import Append, Backend, Head, StreamKey, SupportsDamageListing, SupportsWatch
from holdfast.log.ids import KINDS

PAGES = 60
"""No list and no stream of these tests has as many pages: what goes on for longer goes on for
ever."""
TENANTS = ("default", "$system")


def foreign_answers(open_backend: Callable[[], Backend], streams: Iterable[StreamKey]) -> list[str]:
    """Every call of the seam that ends in an error that is not ours, shows content, does not end,
    or gives what has other types."""
    opened: list[Backend] = []
    tries = [attempted("open", lambda: opened.append(open_backend()))]
    for backend in opened:
        tries += [attempted(name, call) for name, call in _calls(backend, list(streams))]
        backend.close()
    return [foreign for foreign in tries if foreign]


def one_of_each_kind(backend: Backend) -> list[StreamKey]:
    places = [(tenant, kind) for tenant in TENANTS for kind in KINDS]
    return [
        head.stream
        for tenant, kind in places
        for head in backend.heads(tenant=tenant, kind=kind, limit=1)
    ]


def _calls(
    backend: Backend, streams: list[StreamKey]
) -> Iterator[tuple[str, Callable[[], object]]]:
    for tenant in TENANTS:
        for kind in KINDS:
            yield "heads", lambda tenant=tenant, kind=kind: _listed(backend, tenant, kind)
            yield "due", lambda tenant=tenant, kind=kind: _due(backend, tenant, kind)
            if isinstance(backend, SupportsDamageListing):
                yield (
                    "list_damaged",
                    lambda tenant=tenant, kind=kind: backend.list_damaged(tenant, kind),
                )  # type: ignore[attr-defined]
        yield "by status", lambda tenant=tenant: _listed(backend, tenant, "task", status="running")
    yield "describe", backend.describe
    for stream in streams:
        yield "read", lambda stream=stream: _read(backend, stream)
        yield "read back", lambda stream=stream: _read(backend, stream, reverse=True)
        for indexed in (True, False):
            yield "append", lambda stream=stream, indexed=indexed: _append(backend, stream, indexed)
        yield "append blindly", lambda stream=stream: _append(backend, stream, False, blind=True)
        if isinstance(backend, SupportsWatch):
            yield "watch", lambda stream=stream: backend.watch(stream, lambda: None)()  # type: ignore[attr-defined]
        yield "delete", lambda stream=stream: _delete(backend, stream)


def _read(backend: Backend, stream: StreamKey, *, reverse: bool = False) -> None:
    after = 0
    for _ in _until_the_end(f"reading {stream}"):
        page = backend.read(stream, after=after, limit=None, reverse=reverse)
        if not page:
            return
        for record in page:
            _typed(record.version, record.append_id, record.hash, record.body)
        after = page[-1].version
        if reverse and after <= 1:
            return


def _listed(backend: Backend, tenant: str, kind: str, status: str | None = None) -> None:
    after, seen = "", set[str]()
    for _ in _until_the_end(f"the list of {kind}"):
        page = backend.heads(tenant=tenant, kind=kind, status=status, after=after, limit=3)
        if not page or page[-1].stream.id in seen:  # whoever pages notices that: see `Repeating`
            return
        for head in page:
            _typed_head(head)
            seen.add(head.stream.id)
        after = page[-1].stream.id


def _due(backend: Backend, tenant: str, kind: str) -> None:
    after: tuple[float, str] | None = None
    seen = set[str]()
    for _ in _until_the_end(f"what is due of {kind}"):
        page = backend.due(tenant=tenant, kind=kind, after=after, limit=3)
        if not page or page[-1].stream.id in seen:
            return
        for head in page:
            _typed_head(head)
            seen.add(head.stream.id)
        last = page[-1]
        assert last.fields.due is not None
        after = last.fields.due, last.stream.id


def _append(backend: Backend, stream: StreamKey, indexed: bool, *, blind: bool = False) -> None:
    """After what the head says, or without a look at it."""
    head = None if blind else backend.head(stream)
    if head is not None:
        _typed_head(head)
    version, digest, incarnation = (
        (head.version, head.hash, head.incarnation) if head else (0, b"", b"l" * 16)
    )
    fields = head.fields if head else None
    new = Append(
        stream,
        version,
        digest,
        incarnation,
        (b"\xff" if indexed else b"i") * 16,
        [(b"h" * 32, b"{}")],
        fields,
    )
    other = msgspec.structs.replace(
        new, stream=StreamKey("default", "stream", "other"), expected=0, expected_hash=b""
    )
    for batch in ([new], [new, other]):
        for answer in backend.append(batch):
            if hasattr(answer, "first"):
                _typed_number(answer.first, answer.last)
            elif answer.head is not None:
                _typed_head(answer.head)


def _delete(backend: Backend, stream: StreamKey) -> None:
    head = backend.head(stream)
    if head is not None:
        backend.delete(stream, expected=head)


def _until_the_end(what: str) -> Iterator[int]:
    yield from range(PAGES)
    raise AssertionError(f"{what} never ends")


def _typed_head(head: Head) -> None:
    _typed(head.version, head.hash, head.incarnation)
    fields = head.fields
    _of(str, fields.status, fields.owner)
    _of(bytes, fields.label)
    _of(float, fields.due_at, fields.expires_at)


def _typed(version: Any, *values: Any) -> None:
    _typed_number(version)
    assert all(type(value) is bytes for value in values), [type(value) for value in values]


def _typed_number(*numbers: Any) -> None:
    assert all(type(number) is int and -(2**63) <= number < 2**63 for number in numbers), numbers


def _of(kind: type, *values: Any) -> None:
    assert all(value is None or type(value) is kind for value in values), [
        type(value) for value in values
    ]
