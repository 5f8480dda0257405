"""Compare heads and records with everything else in the tables, and rebuild derived data.

Streams are checked page by page, each page in one statement. A statement sees one instant, so
other processes may keep writing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...errors import CorruptRecord
from ..interface import BackendProblem, StreamKey
from . import check_sql
from .check_sql import CheckStatements
from .pool import Columns, PostgresConnection
from .query_sql import ONE_NUMBER

if TYPE_CHECKING:
    from .backend import PostgresBackend

CHECK_SECONDS: Final = 600.0
"""How long one statement of a check may take: it reads all records of a page of streams."""

_PROBLEMS: Final = {
    "it was deleted, but some of its data is left": False,
    "its due time does not match its fields": True,
    "its append ids do not match its records": True,
}
"""The problems that a page of streams is checked for, and whether the data is derived."""


class PostgresCheck:
    """Checks one store."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend, self._statements = backend, CheckStatements(backend.schema)

    def list_scopes(self) -> list[tuple[str, str]]:
        rows = self._rows(self._statements.scopes, (), check_sql.SCOPES)
        return [(tenant, kind) for tenant, kind in rows]

    def check(self) -> Iterator[BackendProblem]:
        """Yield everything that contradicts the records."""
        numbers = array("q")
        try:
            yield from self._check_streams(numbers)
            yield from self._check_numbers(numbers)
        except CorruptRecord as error:
            yield BackendProblem(error.what)

    def rebuild(self) -> int:
        """Rebuild append ids, due times and the sequence, while appends wait."""
        statements = self._statements

        def work(connection: PostgresConnection) -> int:
            connection.answer_timeout = CHECK_SECONDS
            with connection.transaction():
                connection.execute(statements.lock)
                changed = [connection.execute(each).rowcount for each in statements.rebuild]
                return sum(changed) + len(connection.execute(statements.advance).fetchall())

        return self._backend.transact(work)

    def _rows(self, statement: str, values: Sequence[Any], columns: Columns) -> list[Any]:
        return self._backend.rows(statement, values, columns, seconds=CHECK_SECONDS)

    def _check_streams(self, numbers: array[int]) -> Iterator[BackendProblem]:
        """Yield the problems of all streams, and collect their numbers."""
        page = self._rows(self._statements.first_page, (), check_sql.STREAMS)
        while page:
            for *key, number, remains, due, ids in page:
                stream, found = StreamKey(*key), (remains, due, ids)
                numbers.append(number)
                for is_wrong, (what, derived) in zip(found, _PROBLEMS.items(), strict=True):
                    if is_wrong:
                        yield BackendProblem(what, stream, derived)
            page = self._rows(self._statements.next_page, page[-1][:3], check_sql.STREAMS)

    def _check_numbers(self, numbers: array[int]) -> Iterator[BackendProblem]:
        """Yield records and append ids that belong to no stream, or to several."""
        known = set(numbers)
        if len(known) < len(numbers):
            yield BackendProblem("several streams have the same number, and share their records")
        unknown: set[int] = set()
        for statement in self._statements.numbers:
            after = -1 << 63
            while page := [number for [number] in self._rows(statement, (after,), ONE_NUMBER)]:
                unknown.update(number for number in page if number not in known)
                after = page[-1]
        orphans = self._statements.orphans
        for [number] in self._rows(orphans, (sorted(unknown),), ONE_NUMBER) if unknown else ():
            what = f"records or append ids have number {number}, which belongs to no stream"
            yield BackendProblem(what)
        [[last]] = self._rows(self._statements.last_number, (), ONE_NUMBER)
        if known and max(known) > last:
            what = f"new streams would get numbers from {last + 1} on, but {max(known)} is in use"
            yield BackendProblem(what, derived=True)
