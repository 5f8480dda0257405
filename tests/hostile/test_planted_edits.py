"""No edit of a column or an index of an SQLite store goes unnoticed: it is refused, or reported by
`verify`, or has no effect."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import holdfast
from helpers.stored.bit_flips import BAD, Judge, write_sample
from helpers.stores import KEY, url_of

pytestmark = pytest.mark.unencrypted("runs on encrypted stores by itself")

KINDS = ("sqlite", "sqlite-encrypted")
DERIVED = ("sqlite_sequence", "memory_terms_data", "memory_terms_idx", "memory_terms_docsize")
"""Tables of SQLite itself, whose content only SQLite understands: tests flip their bits."""


@pytest.fixture(scope="module", params=KINDS)
def sample(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Judge, Path, Path]]:
    """A judge, the sample, and the place of the copies that it judges."""
    place = tmp_path_factory.mktemp("edits")
    for folder in ("sample", "copy"):
        (place / folder).mkdir()
    key = KEY if request.param.endswith("-encrypted") else None
    write_sample(url_of(request.param, place / "sample"), key)
    judge = Judge(url_of(request.param, place / "copy"), key)
    source, copy = place / "sample" / "agents.db", place / "copy" / "agents.db"
    logger = logging.getLogger("holdfast")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    shutil.copy(source, copy)
    judge.learn()
    yield judge, source, copy
    logger.setLevel(before)


def edited(source: Path, copy: Path, *statements: str) -> int:
    """Make a copy with these changes, and return how many rows have changed."""
    for left in copy.parent.iterdir():
        left.unlink()
    shutil.copy(source, copy)
    with closing(apsw.Connection(str(copy))) as database:
        database.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        database.execute("PRAGMA ignore_check_constraints = ON").fetchall()
        for statement in statements:
            try:
                database.execute(statement).fetchall()
            except (apsw.ConstraintError, apsw.MismatchError):
                return 0  # what no edit can bring about
        return database.total_changes()


def columns(source: Path) -> list[tuple[str, str, str, str]]:
    """Each table and column of the sample, with its type and the key of its rows."""
    with closing(apsw.Connection(str(source))) as database:
        tables = [
            name
            for name, sql in database.execute(
                "SELECT name, sql FROM sqlite_schema WHERE type = 'table'"
            ).fetchall()
            if name not in DERIVED and "VIRTUAL" not in sql
        ]
        found = []
        for table in tables:
            rows = database.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [row[1] for row in rows if row[5]]
            name = " || '|' || ".join(f"quote({key})" for key in keys) or "rowid"
            found += [(table, row[1], row[2], name) for row in rows]
        return found


def other_values(column: str, kind: str) -> list[str]:
    """Expressions for another value of a column: a little different, of another row, and none."""
    near = {
        "INTEGER": f"{column} + 1",
        "REAL": f"{column} + 1.5",
        "TEXT": f"{column} || 'x'",
        "BLOB": f"CAST({column} || x'00' AS BLOB)",
    }.get(kind, f"{column} || 'x'")
    less = {
        "INTEGER": f"{column} - 1",
        "REAL": f"-{column}",
        "TEXT": f"substr({column}, 2)",
        "BLOB": f"CAST(substr({column}, 2) AS BLOB)",
    }.get(kind, "''")
    return [near, less, f"(SELECT max({column}) FROM {{table}})", "NULL"]


def test_an_edit_of_any_column_is_noticed(sample: tuple[Judge, Path, Path]) -> None:
    judge, source, copy = sample
    wrong, noticed = [], 0
    for table, column, kind, key in columns(source):
        for value in other_values(column, kind):
            for end in ("min", "max"):
                change = (
                    f"UPDATE {table} SET {column} = {value.format(table=table)} WHERE {key} ="
                    f" (SELECT {end}({key}) FROM {table})"
                )
                if not edited(source, copy, change):
                    continue
                judgement = judge.judge()
                noticed += judgement.how in ("reported", "refused")
                if judgement.how in BAD:
                    wrong.append((change, judgement))
    assert not wrong
    assert noticed > 40


def test_a_row_that_was_removed_from_any_table_is_noticed(sample: tuple[Judge, Path, Path]) -> None:
    judge, source, copy = sample
    wrong, noticed = [], 0
    for table, key in sorted({(table, key) for table, _, _, key in columns(source)}):
        for end in ("min", "max"):
            change = f"DELETE FROM {table} WHERE {key} = (SELECT {end}({key}) FROM {table})"
            if not edited(source, copy, change):
                continue
            judgement = judge.judge()
            noticed += judgement.how in ("reported", "refused")
            if judgement.how in BAD:
                wrong.append((change, judgement))
    assert not wrong
    assert noticed > 6


def test_an_entry_that_is_missing_in_any_index_is_noticed(sample: tuple[Judge, Path, Path]) -> None:
    judge, source, copy = sample
    with closing(apsw.Connection(str(source))) as database:
        indexes = database.execute(
            "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        ).fetchall()
    wrong, noticed, planted = [], 0, 0
    for index, table, sql in indexes:
        column = "id" if table == "streams" else "rowid"
        word = "AND" if " WHERE " in str(sql) else "WHERE"
        for end in ("min", "max"):
            # SQLite allows no subquery in the condition of an index.
            with closing(apsw.Connection(str(source))) as database:
                [[last]] = database.execute(
                    f"SELECT quote({end}({column})) FROM {table} INDEXED BY {index}"
                    + (f" WHERE {str(sql).partition(' WHERE ')[2]}" if word == "AND" else "")
                ).fetchall()
            if last == "NULL":
                continue  # it has no entries
            planted += 1
            text = str(sql).replace("'", "''")
            condition = f"{word} {column} <> {last}".replace("'", "''")
            edited(
                source,
                copy,
                "PRAGMA writable_schema = ON",
                f"UPDATE sqlite_schema SET sql = '{text} {condition}' WHERE name = '{index}'",
                "PRAGMA writable_schema = RESET",
                f"REINDEX {index}",
                "PRAGMA writable_schema = ON",
                f"UPDATE sqlite_schema SET sql = '{text}' WHERE name = '{index}'",
                "PRAGMA writable_schema = RESET",
            )
            judgement = judge.judge()
            noticed += judgement.how in ("reported", "refused")
            if judgement.how in BAD:
                wrong.append((index, judgement))
    assert not wrong
    assert noticed == planted >= 8


def test_a_tenant_whose_registration_was_altered_is_verified_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        store.stream("s").append(("noted", 1))
    with closing(apsw.Connection(str(path))) as database:
        database.execute("UPDATE streams SET id = 'defaulu' WHERE kind = 'tenant'")
        database.execute("UPDATE records SET body = x'00' WHERE stream = 2")
    with holdfast.open(path) as store:
        for report in (store.verify(all_tenants=True), store.verify()):
            assert report.streams
            assert any(problem.id == "s" for problem in report.problems)
            assert any("never registered" in problem.details for problem in report.problems)


def test_a_deeply_nested_memory_in_the_index_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    with holdfast.open(path) as store:
        store.memory("m").remember("Ann likes tea")
        store.memory("m").recall("tea")
    deep = b'{"number":1,"id":"x","text":"x","at":1,"first_at":1,"meta":{"a":%b%b}}'
    with closing(apsw.Connection(str(path))) as database:
        body = deep % (b"[" * 100_000, b"]" * 100_000)
        database.execute("UPDATE memory_docs SET body = ?", (body,))
    with holdfast.open(path) as store:
        assert not store.verify().ok
        assert [hit.text for hit in store.memory("m").recall("tea")] == ["Ann likes tea"]
        assert store.verify().ok
