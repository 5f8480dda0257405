"""A look at a store in Redis from outside: with the plain driver, at the keys themselves."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from helpers.engines.redis_server import Server
from holdfast.backends.redis import lua

APPEND, TEXT = lua.APPEND.sha1.encode(), lua.APPEND.text.encode()[:200]


def appends(said: Sequence[bytes]) -> bool:
    """Whether a client asked for an append, by the name of the script or with its text."""
    return any(
        command.startswith(b"EVAL") and (APPEND in command or TEXT in command) for command in said
    )


def stored(server: Server, prefix: str) -> dict[str, list[bytes]]:
    """The records of each stream of the default tenant. Each key must agree with the others of its
    stream."""
    found: dict[str, list[bytes]] = {}
    listed: set[bytes] = set()
    mark = f":h:{quote('stream', safe='')}:".encode()
    for key in server("KEYS", f"{{{prefix}:default:*"):
        if key.endswith(b"}:x:stream"):
            listed.update(
                member[1:] for member in server("ZRANGE", key, 0, -1) if member.startswith(b"a")
            )
        if mark not in key:
            continue
        tag, name = key.split(mark, 1)
        version, digest = server("HMGET", key, "v", "h")
        records = server("LRANGE", tag + b":r:stream:" + name, 0, -1)
        assert len(records) == int(version), f"{name!r}: head and records disagree"
        assert digest in records[-1], f"{name!r}: the head is not that of the last record"
        assert name in listed or server("ZSCORE", tag + b":x:stream", b"a" + name) is not None
        found[name.decode()] = records
    assert {name.decode() for name in listed} <= set(found), "listed, and not there"
    return found


def times_stored(server: Server, prefix: str, marks: Sequence[str]) -> list[int]:
    """How often each of these texts is in a record."""
    records = [record for stream in stored(server, prefix).values() for record in stream]
    return [sum(f'"{mark}"'.encode() in record for record in records) for mark in marks]
