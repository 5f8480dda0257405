"""PostgreSQL: opening it, its tables, and what it is asked before it is trusted. Faults are in
tests/crash."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

import holdfast
from helpers.run_cli import run
from helpers.servers import postgres, url_on
from holdfast.backends import SupportsWatch
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres import schema as tables
from holdfast.backends.postgres.schema import render_schema_script


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_on("postgres", tmp_path)


@pytest.fixture
def schema(url: str) -> str:
    return url.rpartition("schema=")[2]


@pytest.fixture
def admin() -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def clerk(admin: psycopg.Connection[tuple[object, ...]], schema: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    admin.execute(f"CREATE ROLE {schema}_clerk LOGIN")
    yield f"{schema}_clerk"
    admin.execute(f"DROP OWNED BY {schema}_clerk")
    admin.execute(f"DROP ROLE {schema}_clerk")


def as_role(url: str, role: str) -> str:
    return url.replace("postgresql://postgres:@", f"postgresql://{role}:@")


# -- tables ----------------------------------------------------------------------------------------


def test_sixteen_processes_that_start_at_once_make_one_schema(url: str) -> None:
    program = (
        "import sys, holdfast; s = holdfast.open(sys.argv[1]); sys.stdin.read(1); "
        "s.stream('s').append(('n', 1)); s.close()"
    )
    command = [
        sys.executable,
        "-c",
        program.replace("s = holdfast", "sys.stdin.read(1); s = holdfast", 1),
        url,
    ]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(16)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go")
        process.stdin.flush()
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 16, ended[0][1]
    with holdfast.open(url) as store:
        assert store.stream("s").version() == 16


def test_what_schema_sql_prints_is_what_holdfast_makes(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    by_hand = url.replace(schema, f"{schema}_by_hand")
    admin.execute(render_schema_script(by_hand))
    PostgresBackend(url).close()
    columns = """SELECT table_name, column_name, data_type, collation_name, is_nullable
                 FROM information_schema.columns WHERE table_schema = %s ORDER BY 1, 2"""
    indexes = (
        "SELECT tablename, replace(indexdef, %s, '') FROM pg_indexes WHERE schemaname = %s "
        "ORDER BY 1, 2"
    )
    made, printed = (
        admin.execute(columns, [name]).fetchall() for name in (schema, f"{schema}_by_hand")
    )
    assert made == printed and len(made) > 25
    made, printed = (
        admin.execute(indexes, [name, name]).fetchall() for name in (schema, f"{schema}_by_hand")
    )
    assert len(made) == len(printed) == 7


def test_a_role_that_may_not_create_uses_tables_made_by_hand(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    with pytest.raises(holdfast.errors.NotSetUp, match="holdfast schema"):
        holdfast.open(as_role(url, clerk))
    printed = render_schema_script(as_role(url, clerk))
    admin.execute(printed)
    grants = [
        line.removeprefix("-- ") for line in printed.splitlines() if line.startswith("-- GRANT")
    ]
    assert len(grants) == 3
    lacks = ("USAGE on schema", "SELECT on table", "USAGE on sequence")
    for grant, right in zip(grants, lacks, strict=True):
        with pytest.raises(holdfast.errors.AccessDenied, match=f"lacks {right} {schema}"):
            holdfast.open(as_role(url, clerk))
        admin.execute(grant)
    with holdfast.open(as_role(url, clerk)) as store:
        store.conversation("c").append({"role": "user", "content": "hello"})
        assert next(store.conversation("c").follow()).version == 1
        store.conversation("c").delete()


def test_a_right_that_is_taken_away_is_told_and_given_back(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(render_schema_script(url))
    admin.execute(f"GRANT ALL ON SCHEMA {schema} TO {clerk}")
    admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {clerk}")
    admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {clerk}")
    with holdfast.open(as_role(url, clerk)) as store:
        stream = store.stream("s")
        stream.append(("n", 1))
        admin.execute(f"REVOKE INSERT ON {schema}.records FROM {clerk}")
        with pytest.raises(
            holdfast.errors.AccessDenied,
            match=f"lacks INSERT on table {schema}.records; have an administrator grant",
        ):
            stream.append(("n", 2))
        admin.execute(f"GRANT INSERT ON {schema}.records TO {clerk}")
        assert stream.append(("n", 3)).last == 2


def test_what_schema_sql_prints_may_be_applied_twice(
    url: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(render_schema_script(url))
    with holdfast.open(url, create=False) as store:
        store.stream("s").append(("n", 1))
        admin.execute(render_schema_script(url))
        assert store.stream("s").append(("n", 2)).last == 2


@pytest.mark.parametrize(
    ("user", "role"),
    [
        ("clerk", "clerk"),
        ("Clerk", '"Clerk"'),
        ("a%22b", '"a""b"'),
        ("x%0ADROP TABLE y", "agents"),
        ("", "agents"),
    ],
)
def test_the_grants_are_for_the_role_of_the_url_and_stay_comments(user: str, role: str) -> None:
    printed = render_schema_script(f"postgresql://{user}:s3cret@host/db")
    *_, commit, behind = printed.partition("COMMIT;\n")
    assert f"TO {role};" in behind and "s3cret" not in printed and commit
    assert all(line.startswith("-- ") for line in behind.splitlines())


def test_a_role_that_may_only_read_looks_at_everything_and_hears_what_it_lacks_when_it_writes(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    with holdfast.open(url) as store:
        store.conversation("c").append({"role": "user", "content": "hello"})
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {clerk}")
    admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {clerk}")
    with holdfast.open(as_role(url, clerk) + "&pool_size=1", create=False) as store:
        assert store.health().streams["conversation"] == 1
        assert [entry.version for entry in store.conversation("c").entries()] == [1]
        with pytest.raises(
            holdfast.errors.AccessDenied, match=rf"INSERT on table {schema}\.streams"
        ):
            store.stream("s").append(("n", 1))
    assert admin.execute(f"SELECT count(*) FROM {schema}.streams WHERE id = 's'").fetchone() == (0,)


def test_the_rights_that_are_needed_to_look_are_named_first(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    holdfast.open(url).close()
    result = run("health", as_role(url, clerk))
    look, also, write = result.stderr.partition(" to read, and to write also ")
    assert result.exit_code == 1 and also
    assert (
        f"lacks USAGE on schema {schema}, SELECT on table {schema}.holdfast" in look
        and "INSERT" not in look
    )
    assert f"INSERT on table {schema}.records" in write and f"USAGE on sequence {schema}" in write
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {clerk}")
    admin.execute(
        f"GRANT SELECT ON {schema}.holdfast, {schema}.streams, {schema}.records TO {clerk}"
    )
    assert run("health", as_role(url, clerk)).exit_code == 0


def test_health_fails_for_a_role_that_may_write_to_the_tables_and_not_take_numbers(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(render_schema_script(url))
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {clerk}")
    admin.execute(
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {clerk}"
    )
    result = run("health", as_role(url, clerk))
    assert result.exit_code == 1
    assert f"lacks USAGE on sequence {schema}.stream_numbers;" in result.stderr
    admin.execute(
        f"GRANT UPDATE ON SEQUENCE {schema}.stream_numbers TO {clerk}"
    )  # enough for nextval()
    with holdfast.open(as_role(url, clerk)) as store:
        store.stream("s").append(("n", 1))


def test_a_role_that_may_append_and_not_delete_works_until_it_deletes(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(render_schema_script(url))
    admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {clerk}")
    admin.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {clerk}")
    admin.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {clerk}")
    with holdfast.open(as_role(url, clerk)) as store:
        store.stream("s").append(("n", 1))
        with pytest.raises(holdfast.errors.AccessDenied, match=f"DELETE on table {schema}.records"):
            store.stream("s").delete()
        assert store.stream("s").version() == 1


def test_tables_of_an_older_holdfast_are_refused_with_a_way_out(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    holdfast.open(url).close()
    admin.execute(f"UPDATE {schema}.holdfast SET version = %s", [tables.SCHEMA_VERSION - 1])
    with pytest.raises(
        holdfast.errors.UnsupportedVersion, match="an older Holdfast created them"
    ) as caught:
        holdfast.open(url)
    assert "upgrade" not in str(caught.value)


def test_tables_of_a_newer_holdfast_are_refused(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    holdfast.open(url).close()
    admin.execute(f"UPDATE {schema}.holdfast SET version = %s", [tables.SCHEMA_VERSION + 1])
    with pytest.raises(holdfast.errors.UnsupportedVersion, match="upgrade"):
        holdfast.open(url)


def test_tables_that_are_dropped_under_a_store_are_missed(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("n", 1))
        admin.execute(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(holdfast.errors.NotSetUp):
            store.stream("s").append(("n", 2))
        with pytest.raises(holdfast.errors.NotSetUp):
            list(store.stream("s").read())


def test_an_ordinary_append_writes_to_no_index_of_heads(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    with holdfast.open(url) as store:
        for number in range(40):
            store.stream("s").append(("n", number))
    admin.execute("SELECT pg_stat_force_next_flush()")
    query = (
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND "
        "relname = 'streams'"
    )
    updated, in_place = 0, 0
    while updated < 39:  # the server's counters come a little later
        updated, in_place = admin.execute(query, [schema]).fetchone() or (0, 0)  # type: ignore[assignment]
    assert in_place >= updated - 2


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("schema=Agents", "schema"),
        ("schema=a;drop", "schema"),
        ("schema=pg_x", "schema"),
        ("schema=a&schema=b", "twice"),
        ("pool_size=0", "pool_size"),
        ("partitions=-1", "'partitions' .* from 0 to 500"),
        ("partitions=many", "'partitions' .* from 0 to 500"),
        ("partitions=501", "'partitions' .* from 0 to 500"),
        ("prepare=perhaps", "prepare"),
        ("timeout=0", "timeout"),
        (
            "no_such_option=1",
            r"'no_such_option' .* takes durability, partitions, .* and those of libpq",
        ),
        ("statement_timeout=3", "'statement_timeout'"),
    ],
)
def test_a_url_with_a_wrong_option_is_refused(option: str, says: str) -> None:
    with pytest.raises(holdfast.errors.InvalidURL, match=says) as caught:
        holdfast.open(f"postgresql://clerk:s3cret@127.0.0.1:1/db?{option}")
    assert "s3cret" not in str(caught.value)


def test_more_partitions_than_can_be_made_are_not_printed_either() -> None:
    assert "REMAINDER 499)" in render_schema_script("postgresql://host/db?partitions=500")
    with pytest.raises(holdfast.errors.InvalidURL, match="from 0 to 500"):
        render_schema_script("postgresql://host/db?partitions=501")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:s3cret@host:port/db",
        "postgresql://u:s3cret@[::1/db",
        "postgresql://u:s3#cret@h/db",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(holdfast.errors.InvalidURL) as caught:
        holdfast.open(text)
    assert "s3" not in str(caught.value) and caught.value.__cause__ is None


def test_what_is_missing_is_said_with_what_to_install() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import holdfast\n"
        "try: holdfast.open('postgresql://host/db')\n"
        "except holdfast.errors.MissingExtra as error: assert error.extra == 'postgres'; "
        "print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install '.[postgres]'" in said


@pytest.mark.parametrize(
    ("server", "says"),
    [("127.0.0.1:1", "is unreachable"), ("no-such-host.invalid:5432", "host name is not known")],
)
def test_an_error_of_connecting_names_the_server_and_not_the_password(
    server: str, says: str
) -> None:
    with pytest.raises(
        holdfast.errors.Unavailable, match=rf"postgresql://clerk@{server}/db\?schema=x: .*{says}"
    ) as caught:
        holdfast.open(f"postgresql://clerk:s3cret@{server}/db?schema=x&sslmode=disable")
    assert "s3cret" not in str(caught.value)


def test_a_call_ends_after_the_timeout_of_the_url(
    url: str, schema: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    with holdfast.open(f"{url}&timeout=1") as store:
        store.stream("s").append(("n", 1))
        with admin.transaction():
            admin.execute(f"LOCK TABLE {schema}.records")
            with pytest.raises(
                holdfast.errors.Unavailable, match=r"no answer before the deadline|in time"
            ):
                list(store.stream("s").read())
        assert [event.data for event in store.stream("s").read()] == [1]


@pytest.mark.parametrize(
    "options",
    [
        "prepare=off",
        "pool_size=1",
        "partitions=3",
        "application_name=me",
        "ssl=true&sslmode=prefer",
    ],
)
def test_it_works_with_each_option(url: str, options: str) -> None:
    with holdfast.open(f"{url}&{options}") as store:
        for number in range(12):
            store.stream(f"s{number % 5}").append(("n", number), id=f"{number}")

        async def many() -> None:
            await asyncio.gather(
                *(store.aio.stream(f"s{number}").append(("n", number)) for number in range(20))
            )

        asyncio.run(many())
        assert sum(store.stream(f"s{number}").version() for number in range(20)) == 32
        with store.task("t") as task:
            assert task.step("one", int, "1") == 1
            task.finish("done")


# -- what it says of itself ------------------------------------------------------------------------


def test_health_names_the_place_without_the_password(url: str, schema: str) -> None:
    with holdfast.open(url.replace("postgres:@", "postgres:s3cret@")) as store:
        health = store.health()
        assert isinstance(store._log.backend, SupportsWatch)
    [host] = parse_qs(urlsplit(url).query)["host"]
    assert health.location == f"postgresql://postgres@/postgres?host={host}&schema={schema}"
    assert (health.engine, health.durability) == ("postgresql", "disk")
    assert (
        health.engine_version.startswith("18")
        and health.sizes["database"] > 0
        and not health.warnings
    )


def test_less_durability_is_asked_for_by_name_and_shown(url: str) -> None:
    with holdfast.open(url, durability="process") as store:
        store.stream("s").append(("n", 1))
        assert store.health().durability == "process"


def test_durability_of_memory_is_refused_as_for_files(url: str, tmp_path: Path) -> None:
    said = []
    for given in (f"{url}&durability=memory", f"sqlite:///{tmp_path}/a.db?durability=memory"):
        with pytest.raises(ValueError, match="'memory' is for redis://") as caught:
            holdfast.open(given)
        said.append(str(caught.value))
    with pytest.raises(ValueError, match="'memory' is for redis://"):
        holdfast.open(url, durability="memory")
    assert said[0] == said[1]


def test_a_weaker_setting_of_the_role_is_shown_and_not_followed(
    url: str, schema: str, clerk: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    admin.execute(f"ALTER ROLE {clerk} SET synchronous_commit = off")
    admin.execute(f"GRANT CREATE ON DATABASE postgres TO {clerk}")
    with holdfast.open(as_role(url, clerk)) as store:
        assert [warning for warning in store.health().warnings if "synchronous_commit" in warning]
        # The setting in force while an append commits, as a trigger at the end of its transaction
        # sees it.
        admin.execute(f"CREATE TABLE {schema}.seen (setting text)")
        admin.execute(f"GRANT INSERT ON {schema}.seen TO {clerk}")
        admin.execute(
            f"CREATE FUNCTION {schema}.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" INSERT INTO {schema}.seen VALUES (current_setting('synchronous_commit')); RETURN "
            "NULL; END $$"
        )
        admin.execute(
            f"CREATE CONSTRAINT TRIGGER look AFTER INSERT ON {schema}.records DEFERRABLE INITIALLY "
            "DEFERRED"
            f" FOR EACH ROW EXECUTE FUNCTION {schema}.look()"
        )
        store.stream("s").append(("n", 1))

        async def many() -> None:
            await asyncio.gather(
                *(store.aio.stream(f"s{number}").append(("n", number)) for number in range(5))
            )

        asyncio.run(many())
        assert set(admin.execute(f"SELECT setting FROM {schema}.seen").fetchall()) == {("on",)}
        admin.execute(
            f"DROP TRIGGER look ON {schema}.records; DROP FUNCTION {schema}.look(); DROP TABLE "
            f"{schema}.seen"
        )
