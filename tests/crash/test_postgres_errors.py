"""What a real PostgreSQL may answer besides yes, or not answer at all: one typed error each,
nothing half written, no password and no content in any of them, and the store that is open works
again when the server does."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from helpers.engines.postgres_server import PostgresServer, running
from holdfast.errors import (
    AccessDenied,
    HoldfastError,
    NotSetUp,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    Unavailable,
)

from .postgres_look import Settling, schema_of, stored, times_stored

SECRET = "s3cret-p@ss/word"
WRONG = "wrong-password"
CONTENT = "what the user said"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    hba = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
    with running(memory=True, hba=hba) as server:
        server.sql(
            f"CREATE ROLE plain LOGIN PASSWORD '{SECRET}'",
            f"CREATE ROLE maker LOGIN PASSWORD '{SECRET}'",
            "GRANT CREATE ON DATABASE postgres TO maker",
        )
        yield server


@pytest.fixture
def schema(tmp_path: Path) -> str:
    return schema_of(tmp_path)


@pytest.fixture
def url(server: PostgresServer, schema: str) -> str:
    return f"{server.url()}&schema={schema}"


def as_role(server: PostgresServer, role: str, schema: str, password: str = SECRET) -> str:
    return f"{server.url(user=role, password=password)}&schema={schema}"


@pytest.fixture(autouse=True)
def _no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level("DEBUG")
    yield
    assert SECRET not in caplog.text and CONTENT not in caplog.text


def told(error: BaseException) -> str:
    """Everything that a program could print about an error; it must not hold what is secret."""
    text = (
        "".join(traceback.format_exception(error))
        + repr(error)
        + repr(error.args)
        + repr(vars(error))
    )
    for secret in (SECRET, "s3cret-p%40ss%2Fword", WRONG, CONTENT):
        assert secret not in text
    return text


def on_append(server: PostgresServer, schema: str, does: str) -> None:
    """Have the server do that whenever a record is inserted."""
    server.sql(
        f"CREATE SEQUENCE {schema}.faults",
        f"CREATE FUNCTION {schema}.fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does} "
        "RETURN NEW; END $$",
        f"CREATE TRIGGER fault BEFORE INSERT ON {schema}.records FOR EACH ROW EXECUTE FUNCTION "
        f"{schema}.fault()",
    )


def raised(state: str, *, times: str = "true") -> str:
    """PL/pgSQL that raises this SQLSTATE. The message quotes what was inserted, as messages of the
    server may."""
    return (
        f"IF {times} THEN RAISE EXCEPTION 'fault: %', convert_from(NEW.body, 'UTF8') USING "
        f"ERRCODE = '{state}'; END IF;"
    )


def faults(server: PostgresServer, schema: str) -> int:
    return int(server.sql(f"SELECT last_value FROM {schema}.faults")[0][0])


# -- not let in ------------------------------------------------------------------------------------


@pytest.mark.parametrize("password", [WRONG, ""])
def test_a_wrong_or_missing_password_is_access_denied(
    server: PostgresServer, schema: str, password: str
) -> None:
    with pytest.raises(AccessDenied) as caught:
        holdfast.open(as_role(server, "plain", schema, password))
    told(caught.value)


def test_where_a_password_was_looked_for_is_told(
    server: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(AccessDenied, match=r"there is none in the URL, in PGPASSWORD .*PGPASSFILE"):
        holdfast.open(as_role(server, "plain", schema, ""))
    monkeypatch.setenv("PGPASSWORD", WRONG)
    with pytest.raises(AccessDenied, match="password; the password came from PGPASSWORD") as caught:
        holdfast.open(as_role(server, "plain", schema, ""))
    told(caught.value)
    with pytest.raises(AccessDenied, match="rejects this user") as caught:
        holdfast.open(as_role(server, "plain", schema, WRONG))
    assert str(caught.value).endswith("rejects this user and password")
    told(caught.value)


def test_a_role_that_does_not_exist_is_access_denied(server: PostgresServer, schema: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        holdfast.open(as_role(server, "nobody", schema, WRONG))
    told(caught.value)


def test_a_database_that_does_not_exist_is_not_set_up(server: PostgresServer) -> None:
    with pytest.raises(NotSetUp, match="database"):
        holdfast.open(server.url(database="nowhere"))


def test_a_role_that_may_not_make_the_tables_is_told_who_can(
    server: PostgresServer, schema: str
) -> None:
    with pytest.raises(NotSetUp, match="holdfast schema") as caught:
        holdfast.open(as_role(server, "plain", schema))
    told(caught.value)


def test_a_role_without_rights_on_the_tables_is_access_denied(
    server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
    theirs = as_role(server, "plain", schema)
    with pytest.raises(AccessDenied) as caught:
        holdfast.open(theirs)
    told(caught.value)
    server.sql(
        f"GRANT USAGE ON SCHEMA {schema} TO plain",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO plain",
    )
    with holdfast.open(theirs) as store:
        assert [event.data for event in store.stream("s").read()] == ["first"]
        with pytest.raises(AccessDenied) as caught:
            store.stream("s").append(("noted", CONTENT))
        told(caught.value)
        assert SECRET not in repr(store) + repr(store._log.describe())
    assert times_stored(server, schema, ["first", CONTENT]) == [1, 0]


def test_a_role_that_may_only_make_a_schema_is_all_that_is_needed(
    server: PostgresServer, schema: str
) -> None:
    with holdfast.open(as_role(server, "maker", schema)) as store:
        store.stream("s").append(("noted", "first"))
    assert times_stored(server, schema, ["first"]) == [1]


def test_a_read_only_server_is_read_only(server: PostgresServer, schema: str, url: str) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        server.sql("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        server.until("SHOW default_transaction_read_only", "on")
        try:
            with pytest.raises(ReadOnly):
                holdfast.open(url)
            # The store that is open hears of it when the server has read its settings.
            with pytest.raises(ReadOnly) as caught:
                for number in range(1000):
                    store.stream("s").append(("noted", f"{CONTENT} {number}"))
            told(caught.value)
        finally:
            server.sql(
                "SET default_transaction_read_only = off",
                "ALTER SYSTEM RESET default_transaction_read_only",
                "SELECT pg_reload_conf()",
            )
            server.until("SHOW default_transaction_read_only", "off")
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "last"))
    assert times_stored(server, schema, ["first", "last"]) == [1, 1]


def test_a_server_that_takes_no_more_connections_is_unavailable(
    server: PostgresServer, schema: str
) -> None:
    server.sql(
        f"CREATE ROLE few LOGIN PASSWORD '{SECRET}' CONNECTION LIMIT 1",
        "GRANT CREATE ON DATABASE postgres TO few",
    )
    url = as_role(server, "few", schema)
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        with pytest.raises(
            Unavailable, match=r"no more connections: .*max_connections, .*CONNECTION LIMIT"
        ) as caught:
            holdfast.open(url)
        told(caught.value)
    server.until("SELECT count(*) FROM pg_stat_activity WHERE usename = 'few'", 0)
    with holdfast.open(url) as store:
        assert store.stream("s").append(("noted", "second")).last == 2


def test_whoever_gets_no_more_connections_shares_those_it_has(
    server: PostgresServer, schema: str
) -> None:
    server.sql(
        f"CREATE ROLE two LOGIN PASSWORD '{SECRET}' CONNECTION LIMIT 2",
        "GRANT CREATE ON DATABASE postgres TO two",
    )
    begin = threading.Barrier(8)

    def work(store: holdfast.Store, number: int) -> int:
        begin.wait()
        for _ in range(20):
            store.stream(f"s{number}").append(("noted", number))
            list(store.stream(f"s{number}").read())
        return store.stream(f"s{number}").version()

    with holdfast.open(as_role(server, "two", schema)) as store, ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda number: work(store, number), range(8))) == [20] * 8
    assert 'too many connections for role "two"' in server.log()


# -- refused by the server -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("53100", StorageFull),
        ("53200", Unavailable),
        ("55P03", Unavailable),
        ("57014", Unavailable),
        ("58030", Unavailable),
        ("25006", ReadOnly),
        ("42501", AccessDenied),
        ("42P01", NotSetUp),
        ("25P02", Unavailable),
    ],
)
@pytest.mark.parametrize("together", [1, 3])
def test_what_the_server_refuses_is_a_typed_error_and_nothing_is_written(
    state: str,
    error: type[HoldfastError],
    together: int,
    server: PostgresServer,
    schema: str,
    url: str,
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        on_append(server, schema, "PERFORM nextval('" + schema + ".faults');" + raised(state))
        for name in ("s", "new"):
            with pytest.raises(error) as caught:
                store.stream(name).append(*[("noted", CONTENT)] * together)
            assert not isinstance(caught.value, OutcomeUnknown)
            told(caught.value)
        server.sql(f"DROP TRIGGER fault ON {schema}.records")
        assert faults(server, schema) >= 2
        assert store.stream("s").append(("noted", "last")).last == 2
    assert {name: len(bodies) for name, bodies in stored(server, schema).items()} == {"s": 2}


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_what_the_server_rolls_back_for_the_sake_of_others_is_done_again(
    state: str, server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        on_append(server, schema, raised(state, times=f"nextval('{schema}.faults') <= 2"))
        assert store.stream("s").append(("noted", "mark"), ("noted", "mark too")).last == 3
        assert faults(server, schema) >= 3
    assert times_stored(server, schema, ["first", "mark", "mark too"]) == [1, 1, 1]


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_what_is_rolled_back_again_and_again_is_unavailable_at_last(
    state: str, server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        on_append(server, schema, f"PERFORM nextval('{schema}.faults');" + raised(state))
        with pytest.raises(Unavailable) as caught:
            store.stream("s").append(("noted", CONTENT))
        told(caught.value)
        assert faults(server, schema) > 2
    assert stored(server, schema) == {}


def test_a_server_that_cannot_say_how_it_ended_is_asked_again(
    server: PostgresServer, schema: str, url: str
) -> None:
    # 40003: "statement completion unknown".
    with holdfast.open(url) as store, Settling() as settling:
        on_append(server, schema, raised("40003", times=f"nextval('{schema}.faults') <= 1"))
        assert store.stream("s").append(("noted", "mark")).last == 1
        assert settling.begun.is_set()
    assert times_stored(server, schema, ["mark"]) == [1]


def test_a_lock_timeout_of_the_role_is_unavailable(
    server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
    with server.connection() as other:
        server.sql("ALTER ROLE postgres SET lock_timeout = '100ms'")
        try:
            with holdfast.open(url) as store:
                with other.transaction():
                    other.execute(f"LOCK TABLE {schema}.streams IN ACCESS EXCLUSIVE MODE".encode())
                    with pytest.raises(Unavailable) as caught:
                        store.stream("s").append(("noted", CONTENT))
                    told(caught.value)
                assert store.stream("s").append(("noted", "last")).last == 2
        finally:
            server.sql("ALTER ROLE postgres RESET lock_timeout")
    assert times_stored(server, schema, ["first", CONTENT, "last"]) == [1, 0, 1]


def test_tables_that_were_dropped_are_not_set_up(
    server: PostgresServer, schema: str, url: str
) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("noted", "first"))
        server.sql(f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(NotSetUp):
            store.stream("s").append(("noted", CONTENT))
        with pytest.raises(NotSetUp):
            list(store.stream("s").read())
