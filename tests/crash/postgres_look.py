"""A look at a store in PostgreSQL from outside: with the plain driver, at the tables themselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from helpers.engines.postgres_server import PostgresServer


def schema_of(place: Path) -> str:
    """A schema for this place alone."""
    return "t" + sha256(str(place).encode()).hexdigest()[:16]


def appends(said: Sequence[bytes]) -> bool:
    """Whether a client asked for an append."""
    return any(b"INSERT INTO" in text and b".records" in text for text in said)


def stored(server: PostgresServer, schema: str) -> dict[str, list[bytes]]:
    """The bodies of each stream, as the plain driver finds them. Versions must be 1, 2, 3, … up to
    the head."""
    found: dict[str, list[bytes]] = {}
    rows = server.sql(
        f"SELECT s.id, s.version, s.hash, r.version, r.hash, r.body FROM {schema}.streams s"
        f" JOIN {schema}.records r ON r.stream = s.stream WHERE s.alive AND s.kind = 'stream' "
        "ORDER BY s.id, r.version"
    )
    for name, head, digest, version, own, body in rows:
        bodies = found.setdefault(name, [])
        bodies.append(bytes(body))
        assert version == len(bodies), (
            f"{name}: version {version} stands where {len(bodies)} should"
        )
        assert version <= head and (version < head or own == digest), (
            f"{name}: the head is not that of version {version}"
        )
    for name, head in server.sql(
        f"SELECT id, version FROM {schema}.streams WHERE alive AND kind = 'stream'"
    ):
        assert head == len(found[name])
    return found


def times_stored(server: PostgresServer, schema: str, marks: Sequence[str]) -> list[int]:
    """How often each of these texts is in a body."""
    bodies = [body for stream in stored(server, schema).values() for body in stream]
    return [sum(f'"{mark}"'.encode() in body for body in bodies) for mark in marks]


class Settling(logging.Handler):
    """Says when the store begins to settle an append whose answer was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def __enter__(self) -> Settling:
        logger = logging.getLogger("holdfast")
        self._level = logger.level
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)  # each, not only the first
        return self

    def __exit__(self, *error: object) -> None:
        logger = logging.getLogger("holdfast")
        logger.removeHandler(self)
        logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        if "a write failed" in record.getMessage():
            self.begun.set()
