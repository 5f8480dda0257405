"""What the tests of verifying share: stores as an attacker has left them, on any engine, and a
chain of their own to check ours by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple

import holdfast
from holdfast.backends import Append, Backend, Head, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.log.ids import KINDS


class Link(NamedTuple):
    """A record without its version."""

    hash: bytes
    body: bytes
    append_id: bytes = b"i" * 16


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
        found += [Link(record.hash, record.body, record.append_id) for record in page]
    return found


def chained(
    stream: StreamKey, incarnation: bytes, bodies: list[bytes], ids: Sequence[bytes] = ()
) -> list[Link]:
    """A whole chain made anew, as somebody would who knows how, written from the description of
    it."""
    seed = sha256(b"holdfast chain 1")
    for part in (*(part.encode() for part in stream), incarnation):
        seed.update(len(part).to_bytes(8, "big") + part)
    before, made = bytes(32), list[Link]()
    for number, body in enumerate(bodies, 1):
        append_id = ids[number - 1] if ids else b"i" * 16
        place = before + number.to_bytes(8, "big") + append_id
        before = sha256(seed.digest() + place + sha256(body).digest()).digest()
        made.append(Link(before, body, append_id))
    return made


def rebuild(source: Backend, target: Backend, changes: Mapping[StreamKey, Change]) -> None:
    """Write the streams of `source` to an empty store, in the same incarnations, some changed.

    Backends store the hashes that they are given, so the result is the same as if an attacker had
    written to their tables.
    """
    tenants = [
        "$system",
        *(head.stream.id for head in source.heads(tenant="$system", kind="tenant")),
    ]
    for tenant in tenants:
        for kind in KINDS:
            for head in source.heads(tenant=tenant, kind=kind):
                new = changes.get(head.stream, lambda same: same)(links(source, head.stream))
                _append_each(target, head, new)


def _append_each(target: Backend, head: Head, new: list[Link]) -> None:
    """Append records, those with the same append id together."""
    before, version = b"", 0
    for append_id, group in groupby(new, lambda link: link.append_id):
        records = [(link.hash, link.body) for link in group]
        target.append(
            [
                Append(
                    head.stream, version, before, head.incarnation, append_id, records, head.fields
                )
            ]
        )
        before, version = records[-1][0], version + len(records)


def altered(at: int, body: bytes = b'{"id":"x","type":"noted","at":0,"data":null}') -> Change:
    """Another content under the old hash."""
    return lambda old: [*old[: at - 1], old[at - 1]._replace(body=body), *old[at:]]


def rehashed(at: int) -> Change:
    return lambda old: [*old[: at - 1], old[at - 1]._replace(hash=b"\1" * 32), *old[at:]]


def replaced(at: int) -> Change:
    return lambda old: [*old[: at - 1], Link(b"\1" * 32, b"{}"), *old[at:]]


def swapped(one: int, other: int) -> Change:
    def change(old: list[Link]) -> list[Link]:
        new = list(old)
        new[one - 1], new[other - 1] = old[other - 1], old[one - 1]
        return new

    return change


def inserted(at: int) -> Change:
    return lambda old: [*old[: at - 1], Link(b"\1" * 32, b"{}"), *old[at - 1 :]]


def cut_out(at: int, count: int = 1) -> Change:
    return lambda old: [*old[: at - 1], *old[at - 1 + count :]]


def truncated(at: int) -> Change:
    return lambda old: old[:at]


def found(report: holdfast.types.VerifyResult) -> list[tuple[str, int | None, str]]:
    return [(problem.id, problem.version, problem.what) for problem in report.problems]
