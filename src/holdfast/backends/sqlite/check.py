"""Compare the records with all other tables and the indexes, and rebuild the indexes.

`PRAGMA integrity_check` walks every page, and compares every index with its table: positions,
append ids, statuses and due times are stored nowhere else. The rest is compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

import apsw

from ..interface import BackendProblem, StreamKey
from .schema import transact

MAX_PROBLEMS: Final = 100
"""The maximum number of problems of each kind: one damaged page may cause thousands."""

_ORPHANS: Final = """
SELECT DISTINCT stream FROM records WHERE stream NOT IN (SELECT stream FROM streams) LIMIT ?"""
_NAMES: Final = "SELECT CAST(tenant AS BLOB), CAST(kind AS BLOB), CAST(id AS BLOB) FROM streams"
_TOMBSTONES: Final = """
SELECT CAST(tenant AS BLOB), CAST(kind AS BLOB), CAST(id AS BLOB), incarnation FROM tombstones"""
_NUMBERS: Final = "SELECT last, tombstones FROM numbers"
_GIVEN: Final = "SELECT (SELECT count(*) FROM streams) + (SELECT count(*) FROM tombstones)"
_USED: Final = """
SELECT ifnull(max(stream), 0) FROM (SELECT stream FROM streams UNION SELECT stream FROM records)"""
_SET_DUE: Final = """
UPDATE streams SET due = min(ifnull(due_at, expires_at), ifnull(expires_at, due_at))
WHERE due IS NOT min(ifnull(due_at, expires_at), ifnull(expires_at, due_at))"""
_DERIVED: Final = (
    "missing from index",
    "wrong # of entries in index",
    "CHECK constraint failed in streams",
)


def check_database(connection: apsw.Connection) -> list[BackendProblem]:
    """Return all problems, as of one instant."""
    problems = list[BackendProblem]()
    checks: tuple[Callable[[apsw.Connection], Iterator[BackendProblem]], ...]
    checks = (_check_integrity, _check_orphans, _check_names, _check_numbers)
    connection.execute("BEGIN")
    for check in checks:
        try:
            problems += check(connection)
        except apsw.Error as error:  # the transaction may be gone; the other checks do without it
            problems.append(BackendProblem(f"SQLite reports {type(error).__name__}: {error}"))
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    return problems


def rebuild_derived(connection: apsw.Connection) -> int:
    """Rebuild indexes, due times and counters, and return how many entries were wrong."""

    def rebuild() -> int:
        found = [*_check_integrity(connection), *_check_numbers(connection)]
        connection.execute("REINDEX records")
        connection.execute("REINDEX streams")
        connection.execute(_SET_DUE)
        _set_numbers(connection)
        return sum(problem.derived for problem in found)

    return transact(connection, rebuild)


def _set_numbers(connection: apsw.Connection) -> None:
    """Count streams and tombstones again. It is never too low, so no number is used twice."""
    checksum = _sum_tombstones(connection)
    if checksum is None:
        return  # a tombstone is damaged, and a new count cannot fix that
    connection.execute("DELETE FROM numbers")
    connection.execute(f"INSERT INTO numbers SELECT max(({_GIVEN}), ({_USED})), ?", (checksum,))


def _check_integrity(connection: apsw.Connection) -> Iterator[BackendProblem]:
    for [line] in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})").fetchall():
        if line != "ok":
            line = str(line).removeprefix("*** in database main ***\n").replace("\n", "; ")
            derived = any(text in line for text in _DERIVED)
            yield BackendProblem(f"SQLite reports: {line}", derived=derived)


def _check_orphans(connection: apsw.Connection) -> Iterator[BackendProblem]:
    for [number] in connection.execute(_ORPHANS, (MAX_PROBLEMS,)).fetchall():
        yield BackendProblem(
            f"records are stored under number {number}, which belongs to no stream"
        )


def _check_names(connection: apsw.Connection) -> Iterator[BackendProblem]:
    for name in connection.execute(_NAMES):
        if _decode_name(name) is None:
            yield BackendProblem("a stream has a name that is not valid text")


def _check_numbers(connection: apsw.Connection) -> Iterator[BackendProblem]:
    """Check that each number was given to one stream, and each deleted stream has a tombstone."""
    checksum = _sum_tombstones(connection)
    if checksum is None:
        yield BackendProblem("the trace of a deleted stream is damaged")
        return
    [[given]] = connection.execute(_GIVEN).fetchall()
    if connection.execute(_NUMBERS).fetchall() != [(given, checksum)]:
        yield BackendProblem(
            "streams, or the traces of deleted ones, were added or removed, or their count altered",
            derived=True,
        )


def _sum_tombstones(connection: apsw.Connection) -> bytes | None:
    """Return the checksum of all tombstones; None if one is damaged."""
    checksum = bytes(16)
    for *name, incarnation in connection.execute(_TOMBSTONES):
        stream = _decode_name(name)
        if stream is None or type(incarnation) is not bytes:
            return None
        checksum = add_tombstone(checksum, stream, incarnation)
    return checksum


def _decode_name(name: object) -> StreamKey | None:
    """Return the name in a row; None if a part of it is not a valid text."""
    try:
        tenant, kind, id_ = (part.decode() for part in name)  # type: ignore[attr-defined]
        return StreamKey(tenant, kind, id_)
    except (UnicodeDecodeError, AttributeError, TypeError):
        return None


def add_tombstone(checksum: bytes, stream: StreamKey, incarnation: bytes) -> bytes:
    """Return the checksum of all tombstones, with one more. Their order does not matter."""
    parts = [*(part.encode() for part in stream), incarnation]
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    digest = blake2b(text, digest_size=16).digest()
    both = int.from_bytes(digest, "big") ^ int.from_bytes(checksum[:16], "big")
    return both.to_bytes(16, "big")
