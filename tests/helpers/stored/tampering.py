"""What the tests of verifying share: stores as an attacker has left them, on any engine, and a
chain of their own to check ours by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

import holdfast
from holdfast.backends import Append, Backend, Head, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.log.ids import KINDS

Link = tuple[bytes, bytes]
"""Hash and body of a record."""

Change = Callable[[list[Link]], list[Link]]


def key(name: str, kind: str = "stream", tenant: str = "default") -> StreamKey:
    return StreamKey(tenant, kind, name)


def store_of(backend: Backend) -> holdfast.Store:
    return holdfast.open(backend)


def written(count: int = 6) -> MemoryBackend:
    """A store with three streams of so many events."""
    backend = MemoryBackend()
    for name in ("a", "b", "c"):
        for number in range(count):
            store_of(backend).stream(name).append(("noted", {"number": number}))
    return backend


def links(backend: Backend, stream: StreamKey) -> list[Link]:
    found: list[Link] = []
    while page := backend.read(stream, after=len(found)):
        found += [(record.hash, record.body) for record in page]
    return found


def chained(stream: StreamKey, life: bytes, bodies: list[bytes]) -> list[Link]:
    """A whole chain made anew, as somebody would who knows how, written from the description of
    it."""
    seed = sha256(b"holdfast chain 1")
    for part in (*(part.encode() for part in stream), life):
        seed.update(len(part).to_bytes(8, "big") + part)
    before, made = bytes(32), list[Link]()
    for number, body in enumerate(bodies, 1):
        text = seed.digest() + before + number.to_bytes(8, "big") + sha256(body).digest()
        before = sha256(text).digest()
        made.append((before, body))
    return made


def rebuild(
    source: Backend,
    target: Backend,
    changes: Mapping[StreamKey, Change],
    *,
    one_by_one: bool = False,
) -> None:
    """Write what is in `source` to an empty store, in the same lives, with some streams changed.

    Engines store the hashes that they are given, so that this leaves what somebody leaves who
    writes to their tables. `one_by_one` keeps the append ids too, to which encrypted records are
    bound.
    """
    tenants = [
        "$system",
        *(head.stream.id for head in source.heads(tenant="$system", kind="tenant")),
    ]
    for tenant in tenants:
        for kind in KINDS:
            for head in source.heads(tenant=tenant, kind=kind):
                new = changes.get(head.stream, lambda same: same)(links(source, head.stream))
                if one_by_one:
                    _append_each(source, target, head, new)
                elif new:
                    append = Append(
                        head.stream, 0, b"", head.incarnation, b"i" * 16, new, fields=head.fields
                    )
                    target.append([append])


def _append_each(source: Backend, target: Backend, head: Head, new: list[Link]) -> None:
    ids = [record.append_id for record in source.read(head.stream)]
    before = b""
    for number, link in enumerate(new):
        target.append(
            [
                Append(
                    head.stream,
                    number,
                    before,
                    head.incarnation,
                    ids[number],
                    [link],
                    fields=head.fields,
                )
            ]
        )
        before = link[0]


def altered(at: int, body: bytes = b'{"id":"x","type":"noted","at":0,"data":null}') -> Change:
    """Another content under the old hash."""
    return lambda old: [*old[: at - 1], (old[at - 1][0], body), *old[at:]]


def rehashed(at: int) -> Change:
    return lambda old: [*old[: at - 1], (b"\1" * 32, old[at - 1][1]), *old[at:]]


def replaced(at: int) -> Change:
    return lambda old: [*old[: at - 1], (b"\1" * 32, b"{}"), *old[at:]]


def swapped(one: int, other: int) -> Change:
    def change(old: list[Link]) -> list[Link]:
        new = list(old)
        new[one - 1], new[other - 1] = old[other - 1], old[one - 1]
        return new

    return change


def inserted(at: int) -> Change:
    return lambda old: [*old[: at - 1], (b"\1" * 32, b"{}"), *old[at - 1 :]]


def cut_out(at: int, count: int = 1) -> Change:
    return lambda old: [*old[: at - 1], *old[at - 1 + count :]]


def truncated(at: int) -> Change:
    return lambda old: old[:at]


def found(report: holdfast.types.VerifyResult) -> list[tuple[str, int | None, str]]:
    return [(problem.id, problem.version, problem.what) for problem in report.problems]
