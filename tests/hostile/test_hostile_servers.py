"""Somebody can write to the server: whatever they put into a table of PostgreSQL or a key of Redis,
only our errors come of it.

A share of what is planted; HOLDFAST_HOSTILE=all takes all of it. DynamoDB and S3 are in
`test_hostile_objects.py`.
"""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

import holdfast
from helpers import servers
from helpers.stored import hostile_content as hostile
from helpers.stored.hostile_backends import foreign_answers, one_of_each_kind
from helpers.stored.hostile_content import (
    ALL,
    CONTENT,
    FIELDS,
    RAW,
    Lasting,
    Tripwire,
    attempted,
    cloned,
    foreign_errors,
    found_in_turn,
    plant,
    populate,
    share,
)
from helpers.stored.tampering import rebuild
from holdfast import OutcomeUnknown
from holdfast.backends import Append, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.schema import create_tables_sql
from holdfast.backends.redis import RedisBackend
from holdfast.conformance.build import timeless
from holdfast.errors import CorruptRecord

pytestmark = pytest.mark.unencrypted(
    "changes stored records, of which encryption leaves nothing to change"
)

EVENTS = StreamKey("default", "stream", "events")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    hostile.TRIPPED.clear()
    caplog.set_level(logging.CRITICAL, logger="holdfast")
    yield
    assert not hostile.TRIPPED


# -- in any record and any head, on every engine ---------------------------------------------------


@pytest.fixture(scope="module")
def clear() -> MemoryBackend:
    backend = Lasting()
    with holdfast.open(backend) as store:
        populate(store)
    return backend


NAMES_OF_WAYS = {False: "plain", True: "async"}
PLANTED = [
    (name, asynchronous)
    for asynchronous in (False, True)
    for name in ("pickle", "deep data", "a huge number", "a blob of all memory")
    if ALL or asynchronous == (name in ("deep data", "a huge number"))
]


@pytest.mark.every_engine
@pytest.mark.parametrize(("name", "asynchronous"), PLANTED, ids=NAMES_OF_WAYS.get)
def test_whatever_the_newest_records_and_the_heads_are_only_our_errors_come_of_it(
    clear: MemoryBackend, durable_url: str, tmp_path: Path, name: str, asynchronous: bool
) -> None:
    target = cloned(clear)
    for number, stream in enumerate(
        stream for stream in target._streams if stream.tenant == "default"
    ):
        plant(target, stream, target._streams[stream].version, RAW[name])
        fields = FIELDS[number % len(FIELDS)]
        # What engines cannot hold, or refuse before it is sent.
        if fields.due == fields.due and "\0" not in f"{fields.status}{fields.owner}":
            target._streams[stream].fields = fields
    with holdfast.open(durable_url) as store:
        rebuild(target, store._log.backend, {})
    of = 1 if ALL else 19 if durable_url.startswith(("s3", "dynamodb")) else 3
    open_store = partial(holdfast.open, durable_url)
    assert foreign_errors(open_store, tmp_path, asynchronous=asynchronous, of=of) == []


# -- in the rows of PostgreSQL ---------------------------------------------------------------------

_TASKS = "kind = 'task'"
_NEWEST = (
    "(stream, version) IN (SELECT stream, max(records.version) FROM target.records JOIN "
    "target.streams USING (stream)"
    " WHERE kind = '{}' GROUP BY 1 LIMIT 1)"
)
_MOST, _LEAST = str(2**63 - 1), str(-(2**63))
_DEEP_JSON = "(repeat('[', 5000) || repeat(']', 5000))::json"


def changed(table: str, column: str, value: str, where: str = "true") -> str:
    return f"UPDATE target.{table} SET {column} = {value} WHERE {where}"


def retyped(table: str, column: str, type: str, value: str) -> str:
    keyless = "DROP CONSTRAINT records_pkey, " if (table, column) == ("records", "version") else ""
    return (
        f"ALTER TABLE target.{table} {keyless}ALTER {column} DROP NOT NULL, ALTER {column} DROP "
        "DEFAULT;"
        f" ALTER TABLE target.{table} ALTER {column} TYPE {type} USING {value}"
    )


def triggered(table: str, what: str) -> str:
    return (
        f"CREATE FUNCTION target.planted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {what}; "
        "END $$; CREATE TRIGGER planted"
        f" BEFORE INSERT OR UPDATE OR DELETE ON target.{table} FOR EACH ROW EXECUTE FUNCTION "
        "target.planted()"
    )


STATEMENTS = [
    *(
        changed("streams", column, value, _TASKS)
        for column, value in [
            ("id", "E'\\x01' || id"), ("id", "repeat('x', 1500) || id"), ("alive", "false"),
            ("hash", "''"), ("incarnation", "''"), ("hash", "repeat('x', 1000000)::bytea"),
            ("status", "''"), ("status", f"'{CONTENT}'"), ("label", f"'{CONTENT}'"),
            ("label", "repeat('x', 1000000)::bytea"), ("owner", f"'{CONTENT}'"),
            ("owner", "repeat('x', 1000000)"), ("kind", "'state'"),
            ("former_incarnations", "ARRAY[NULL]::bytea[]"),
            ("former_incarnations", "array_fill('x'::bytea, ARRAY[100000])"), ("stream", "-stream"),
            ("stream", "1"), ("tenant", "'$system'"),
            *(
                ("version", value)
                for value in (_MOST, _LEAST, "-1", "0", "version + 1", "version - 1")
            ),
            *(
                (column, value)
                for column in ("due_at", "expires_at", "due")
                for value in (
                    "'NaN'", "'Infinity'", "'-Infinity'", "1e308", "-1e308", "5.0", "NULL",
                )
            ),
        ]
    ),
    *(
        changed("streams", column, value)
        for column, value in [
            ("alive", "false"), ("version", _MOST), ("stream", "1"), ("due", "5.0"),
            ("due_at", "5.0"), ("incarnation", "'x'"),
        ]
    ),
    *(
        changed("records", column, value, _NEWEST.format(kind))
        for kind in ("task", "memory", "state", "stream", "conversation", "blob", "tenant", "audit")
        for column, value in [
            ("version", _MOST), ("version", _LEAST), ("version", "0"), ("version", "version + 1"),
            ("body", "''"), ("body", f"'{CONTENT}'"), ("body", "repeat('x', 10000000)::bytea"),
            ("hash", "''"), ("append_id", "''"), ("append_id", "repeat('x', 10000000)::bytea"),
            ("stream", "-1"),
        ]
    ),
    *(
        changed("append_ids", column, value)
        for column, value in [("first", "-1"), ("first", _MOST), ("last", _MOST), ("last", _LEAST)]
    ),
    "INSERT INTO target.append_ids"
    f" SELECT stream, '\\xffffffffffffffffffffffffffffffff', 0, {_MOST} FROM target.streams",
    *(f"DELETE FROM target.{table}" for table in ("records", "streams", "append_ids", "holdfast")),
    *(changed("holdfast", "version", value) for value in ("2", "-1", "2147483647")),
    "INSERT INTO target.holdfast VALUES (9)",
    "INSERT INTO target.followers SELECT tenant, kind, id, 'infinity' FROM target.streams",
    triggered("streams", f"RAISE EXCEPTION '{CONTENT} %', NEW"),
    triggered("streams", "RETURN NULL"), triggered("records", "RETURN NULL"),
]  # fmt: skip
"""What somebody can do who may change rows."""

DEFINITIONS = [
    *(
        retyped("records", column, kind, value)
        for column in ("body", "hash", "append_id")
        for kind, value in [
            ("text", f"'{CONTENT}'"), ("bytea", "NULL"), ("json", f"""'{{"{CONTENT}":1}}'"""),
            ("json", _DEEP_JSON), ("numeric", "'1e1000'"), ("integer", "7"),
            ("timestamptz", "'infinity'"), ("date", "'infinity'"),
            ("bytea[]", "ARRAY[ARRAY['x']]::bytea[]"), ("interval", "'1000000 years'"),
            ("inet", "'1.2.3.4'"), ("int4range", "'[1,5)'"),
        ]
    ),
    *(
        retyped("records", "version", kind, value)
        for kind, value in [
            ("text", "version::text"), ("numeric", "version"), ("numeric", "version + 0.5"),
            ("numeric", "'NaN'"), ("double precision", "version"),
            ("numeric", "(version::text || repeat('0', 5000))::numeric"),
        ]
    ),
    *(
        retyped("streams", column, kind, value)
        for column in ("hash", "incarnation", "label", "owner", "due_at")
        for kind, value in [
            ("text", f"'{CONTENT}'"), ("bytea", "NULL"), ("json", "'[]'"), ("json", _DEEP_JSON),
            ("integer", "7"), ("date", "'infinity'"), ("numeric", "'NaN'"), ("numeric", "'1e1000'"),
        ]
    ),
    *(
        retyped("streams", "version", kind, value)
        for kind, value in [
            ("text", "version::text"), ("numeric", "version"), ("numeric", "'1e10000'"),
            ("double precision", "version"), ("bytea", "'x'"),
        ]
    ),
    *(
        retyped("append_ids", column, kind, value)
        for column in ("first", "last")
        for kind, value in [
            ("text", column), ("numeric", "'NaN'"), ("bigint", "NULL"), ("json", "'[]'"),
        ]
    ),
    *(
        retyped("holdfast", "version", kind, value)
        for kind, value in [
            ("text", f"'{CONTENT}'"), ("json", _DEEP_JSON), ("integer", "NULL"),
            ("numeric", "'NaN'"),
        ]
    ),
    "ALTER TABLE target.streams ALTER former_incarnations DROP DEFAULT, "
    "ALTER former_incarnations TYPE text[] "
    f"USING ARRAY['{CONTENT}']"
    ,
    "ALTER TABLE target.streams RENAME TO other; CREATE VIEW target.streams AS SELECT * FROM "
    "target.other"
    ,
    *(
        f"DROP TABLE target.{table}"
        for table in ("holdfast", "records", "streams", "append_ids", "followers")
    ),
    "DROP SEQUENCE target.stream_numbers CASCADE", "DROP SCHEMA target CASCADE",
]  # fmt: skip
"""What somebody can do who may change tables."""


class Postgres:
    """A store that is put back as it was before each statement that changes it."""

    def __init__(self) -> None:
        server = servers.postgres()
        self.url = f"{server}&schema=target"
        with holdfast.open(f"{server}&schema=source") as store:
            populate(store)
            self.streams = one_of_each_kind(store._log.backend)
        self.connection = psycopg.connect(server, autocommit=True)

    def plant(self, statement: str) -> None:
        copied = (
            f"INSERT INTO target.{table} SELECT * FROM source.{table};"
            for table in ("streams", "records", "append_ids")
        )
        numbered = "SELECT setval('target.stream_numbers', 100000)"
        made = (
            "DROP SCHEMA IF EXISTS target CASCADE; CREATE SCHEMA target; "
            f"{create_tables_sql('target')}{''.join(copied)}{numbered}"
        )
        self.connection.execute(made.encode())
        self.connection.execute(statement.encode())


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    made = Postgres()
    made.plant("")
    foreign_errors(lambda: holdfast.open(made.url), tmp_path_factory.mktemp("warm"))
    yield made
    made.connection.execute("DROP SCHEMA IF EXISTS target CASCADE; DROP SCHEMA source CASCADE")
    made.connection.close()


def test_whatever_is_in_the_tables_of_postgres_the_backend_has_only_our_errors(
    postgres: Postgres,
) -> None:
    def job(statement: str) -> list[str]:
        postgres.plant(statement)
        return foreign_answers(lambda: PostgresBackend(postgres.url), postgres.streams)

    jobs = [*share(STATEMENTS, 29), *share(DEFINITIONS, 13)]
    assert found_in_turn((statement, partial(job, statement)) for statement in jobs) == {}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_whatever_is_in_the_tables_of_postgres_the_store_has_only_our_errors(
    postgres: Postgres, tmp_path: Path, asynchronous: bool
) -> None:
    def job(statement: str) -> list[str]:
        postgres.plant(statement)
        return foreign_errors(
            lambda: holdfast.open(postgres.url), tmp_path, asynchronous=asynchronous
        )

    jobs = share([*STATEMENTS, *DEFINITIONS], 83, asynchronous)
    assert found_in_turn((statement, partial(job, statement)) for statement in jobs) == {}


def test_a_row_of_postgres_that_is_not_ours_stops_nobody_elses_work(postgres: Postgres) -> None:
    for statement in [
        changed("streams", "version", _MOST, "kind = 'conversation'"),
        changed(
            "records",
            "hash",
            "''",
            "stream = (SELECT stream FROM target.streams WHERE id = 'chat') AND version = 3",
        ),
        changed("streams", "hash", "''", "kind = 'conversation'"),
    ]:
        postgres.plant(statement)
        with holdfast.open(postgres.url) as store:
            goes_on(store)


def test_ids_and_hashes_count_for_the_size_of_a_page(postgres: Postgres) -> None:
    postgres.plant("")
    number = "(SELECT stream FROM target.streams WHERE id = 'events')"
    postgres.connection.execute(
        f"INSERT INTO target.records SELECT {number}, g, repeat('x', 3000000)::bytea, repeat('x', "
        "3000000)::bytea, ''"
        " FROM generate_series(4, 20) AS g".encode()
    )
    backend = PostgresBackend(postgres.url)
    assert [record.version for record in backend.read(EVENTS, after=3)] == [4, 5]
    backend.close()


def test_a_name_that_postgres_cannot_keep_is_of_nothing_there(postgres: Postgres) -> None:
    """What is planted may name streams of any id, as a record does that has its value elsewhere."""
    postgres.plant("")
    backend = PostgresBackend(postgres.url)
    for stream in (
        StreamKey("default", "blob", "a\0"),
        StreamKey("\0", "blob", "a"),
        StreamKey("default", "\0", "a"),
    ):
        assert backend.head(stream) is None
        assert list(backend.read(stream)) == list(backend.read(stream, reverse=True)) == []
        assert list(backend.heads(tenant=stream.tenant, kind=stream.kind, after=stream.id)) == []
        with pytest.raises(holdfast.errors.InvalidId, match="NUL"):
            backend.append([Append(stream, 0, b"", b"l" * 16, b"i" * 16, [(b"h" * 32, b"{}")])])
    backend.close()


def goes_on(store: holdfast.Store) -> None:
    """Somebody meets what was planted in conversations, and it is told of; others do not notice."""
    chat = store.conversation("chat")
    for way in (chat.messages, lambda: chat.append({"role": "user", "content": "x"})):
        assert attempted("chat", way) is None
    assert [event.type for event in store.stream("events").read()] == [
        "order.placed",
        "order.paid",
        "order.sent",
    ]
    store.stream("events").append(("order.closed", None))
    assert store.get_task("done") is not None
    assert store.state("large").load() == hostile.LARGE
    assert {problem.kind for problem in store.verify().problems} == {"conversation"}


# -- in the keys of Redis --------------------------------------------------------------------------

WORDS: list[bytes | None] = [
    b"", b"-1", b"0", b"1", b"9" * 4000, b"9" * 5000, b"-" + b"9" * 4000, b"1e300", b"-1e308",
    b"1e999", b"nan", b"inf", b"\xff\xfe", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775808", b"1.5", b"0x10", b"1_0", b" 5 ", CONTENT.encode(),
    pickle.dumps(Tripwire()), b"x" * 1_000_000, None,
]  # fmt: skip
RECORDS = [
    b"", b"\0", b"\xff" * 4, b"\xff" * 400, b"\0" * 4, b"\0" * 8, b"\x80\0\0\0x",
    b"\0\0\0\x10" + b"i" * 16,
    b"\0\0\0\x10" + b"i" * 16 + b"\xff\xff\xff\xffx", b"\0" * 8 + CONTENT.encode(),
    pickle.dumps(Tripwire()),
]  # fmt: skip
VERSIONS = [
    b"1 99999999999999999999", b"99999999999999999999 1", b"5 1", b"0 0", b"-1 5", b"1  2",
    b"1 2 3", b"1 2\n", b"x", b"", b"1 9007199254740993",
]  # fmt: skip
MEMBERS = [
    b"a", b"s", b"d", b"a\xff", b"d1234567", b"d12345678\xff", b"s00000007running\xff", b"s9",
    b"a" + b"x" * 1_000_000, b"a\0",
    f"a{CONTENT}".encode() + b"\xff", b"s00000007running", b"d" + b"\xff" * 8,
]  # fmt: skip
TYPES: dict[str, Callable[[Any, bytes], object]] = {
    "string": lambda client, key: client.set(key, CONTENT), "list": lambda client,
    key: client.rpush(key, CONTENT),
    "hash": lambda client, key: client.hset(key, CONTENT, 1), "set": lambda client,
    key: client.sadd(key, CONTENT),
    "zset": lambda client, key: client.zadd(key, {CONTENT: 1}), "stream": lambda client,
    key: client.xadd(key, {CONTENT: 1}),
}  # fmt: skip
DATABASE = 5


class Redis:
    """A store in a database of its own, which is put back as it was before something is planted."""

    def __init__(self) -> None:
        self.url = servers.redis().replace("/0", f"/{DATABASE}")
        self.client = redis.Redis.from_url(self.url, protocol=2)
        self.client.flushdb()
        with holdfast.open(self.url) as store:
            populate(store)
            self.streams = one_of_each_kind(store._log.backend)
        self.saved = {key: self.client.dump(key) for key in self.client.keys("*")}

    def put_back(self) -> None:
        pipe = self.client.pipeline(transaction=False)
        pipe.flushdb()
        for key, value in self.saved.items():
            pipe.restore(key, 0, value)
        pipe.execute()

    def keys(self, part: str) -> list[bytes]:
        return [key for key in self.saved if part.encode() in key]

    def set_field(self, part: str, field: str | bytes, value: bytes | None) -> None:
        for key in self.keys(part):
            self.client.hdel(key, field) if value is None else self.client.hset(key, field, value)

    def retype(self, part: str, kind: str) -> None:
        for key in self.keys(part):
            self.client.delete(key)
            TYPES[kind](self.client, key)

    def set_counter(self, value: bytes | None) -> None:
        for key in [key for key in self.saved if key.endswith(b":n")]:
            self.client.delete(key) if value is None else self.client.set(key, value)

    def set_versions(self, value: bytes) -> None:
        for key in self.keys(":h:"):
            self.client.hset(key.replace(b":h:", b":a:"), b"\0\0\0\x10" + b"\xff" * 16, value)

    def set_record(self, at: int, value: bytes) -> None:
        for key in self.keys(":r:"):
            self.client.lset(key, at, value)

    def indexes(self, *kinds: str) -> list[str]:
        return [
            f"{{holdfast:default:{shard:02}}}:x:{kind}" for shard in range(64) for kind in kinds
        ]

    def list_member(self, member: bytes, score: float) -> None:
        for key in self.indexes("task", "conversation"):
            self.client.zadd(key, {member: score})

    def disorder(self, seed: int) -> None:
        """An index of things that are not there, with scores, so that Redis does not list them in
        their order."""
        chance = random.Random(seed)
        for key in self.indexes("task"):
            for _ in range(40):
                members = [b"a%03d", b"s00000007running%03d", b"d" + bytes(8) + b"%03d"]
                self.client.zadd(
                    key, {member % chance.randrange(1000): chance.random() for member in members}
                )

    def each(self, part: str, act: Callable[[bytes], object]) -> None:
        for key in self.keys(part):
            act(key)

    def jobs(self) -> list[tuple[str, Callable[[], object]]]:
        """Everything that is planted, by a name."""
        found: list[tuple[str, Callable[[], object]]] = [
            (
                f"{field} of {kind} = {value!r:.40}",
                partial(self.set_field, f":h:{kind}", field, value),
            )
            for kind in ("task", "conversation")
            for field in "vhibmslodek"
            for value in WORDS
        ]
        found += [
            (f"{part} is a {kind}", partial(self.retype, part, kind))
            for kind in TYPES
            for part in (
                ":store",
                "}:n",
                *(f":{letter}:{of}" for letter in "hrafx" for of in ("task", "memory", "tenant")),
            )
        ]
        found += [
            (f"the counter = {value!r:.40}", partial(self.set_counter, value)) for value in WORDS
        ]
        found += [
            (f"{field} = {value!r:.40}", partial(self.set_field, ":store", field, value))
            for field in ("schema", "epoch")
            for value in WORDS
        ]
        found += [
            (f"an id leads to {value!r}", partial(self.set_versions, value)) for value in VERSIONS
        ]
        found += [
            (f"record {at} = {value!r:.40}", partial(self.set_record, at, value))
            for at in (0, -1)
            for value in RECORDS
        ]
        found += [
            (f"{member!r:.40} at {score}", partial(self.list_member, member, score))
            for member in MEMBERS
            for score in (0.0, 1.0, -1.0, float("inf"))
        ]
        found += [(f"disorder {seed}", partial(self.disorder, seed)) for seed in range(8)]
        found += [
            (
                "more records",
                partial(self.each, ":r:", lambda key: self.client.rpush(key, *[b"x"] * 1000)),
            ),
            ("fewer records", partial(self.each, ":r:", self.client.rpop)),
            ("no records", partial(self.each, ":r:", self.client.delete)),
            ("no heads", partial(self.each, ":h:", self.client.delete)),
        ]
        return found  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    made = Redis()
    made.put_back()
    foreign_errors(lambda: holdfast.open(made.url), tmp_path_factory.mktemp("warm"))
    yield made
    made.client.flushdb()
    made.client.close()


def test_whatever_is_in_the_keys_of_redis_the_backend_has_only_our_errors(server: Redis) -> None:
    def job(act: Callable[[], object]) -> list[str]:
        server.put_back()
        act()
        return foreign_answers(lambda: RedisBackend(server.url), server.streams)

    assert found_in_turn((name, partial(job, act)) for name, act in share(server.jobs(), 59)) == {}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_whatever_is_in_the_keys_of_redis_the_store_has_only_our_errors(
    server: Redis, tmp_path: Path, asynchronous: bool
) -> None:
    def job(act: Callable[[], object]) -> list[str]:
        server.put_back()
        act()
        return foreign_errors(
            lambda: holdfast.open(server.url), tmp_path, asynchronous=asynchronous
        )

    jobs = share(server.jobs(), 197, asynchronous)
    assert found_in_turn((name, partial(job, act)) for name, act in jobs) == {}


def test_a_key_of_redis_that_is_not_ours_stops_nobody_elses_work(server: Redis) -> None:
    for field in ("v", "h", "d"):
        server.put_back()
        server.set_field(":h:conversation", field, b"x")
        with holdfast.open(server.url) as store:
            goes_on(store)


def test_the_size_that_a_head_in_redis_tells_is_a_size(server: Redis) -> None:
    for size in (b"-1", b"-9999", b"x", b"9" * 30):
        server.put_back()
        server.set_field(":h:stream:events", "m", size)
        backend = RedisBackend(server.url)
        with pytest.raises(CorruptRecord, match="not written by Holdfast"):
            backend.read(EVENTS)
        backend.close()


def test_an_index_in_redis_that_is_out_of_order_is_an_error_and_no_circle(server: Redis) -> None:
    server.put_back()
    for key in server.indexes("task"):
        server.client.zadd(
            key, {b"am": 0, b"az": 1, **{b"ab%d" % number: 2 + number for number in range(40)}}
        )
    backend = RedisBackend(server.url)
    with pytest.raises(CorruptRecord, match="not in order"):
        backend.heads(tenant="default", kind="task", limit=3)
    assert backend.heads(tenant="default", kind="conversation", limit=3), "others are listed"
    backend.close()


def appended_to(
    store: RedisBackend, stream: StreamKey, version: int, digest: bytes, incarnation: bytes
) -> Append:
    return Append(stream, version, digest, incarnation, b"\xff" * 16, [(b"h" * 32, b"{}")])


def test_an_id_in_redis_that_leads_nowhere_is_not_stored_a_second_time(server: Redis) -> None:
    for value in VERSIONS:
        server.put_back()
        server.set_versions(value)
        backend = RedisBackend(server.url)
        head = backend.head(EVENTS)
        assert head is not None
        with pytest.raises(CorruptRecord):
            backend.append(
                [appended_to(backend, EVENTS, head.version, head.hash, head.incarnation)]
            )
        assert timeless(backend.head(EVENTS)) == timeless(head)
        backend.close()


def test_a_head_in_redis_that_is_not_ours_does_not_deny_what_was_stored_with_it(
    server: Redis,
) -> None:
    server.put_back()
    server.set_field(":h:stream:events", "v", b"inf")
    backend = RedisBackend(server.url)
    new = StreamKey("default", "stream", "new")
    batch = [
        appended_to(backend, new, 0, b"", b"l" * 16),
        appended_to(backend, EVENTS, 3, b"", b""),
    ]
    with pytest.raises(OutcomeUnknown):
        backend.append(batch)
    assert [record.body for record in backend.read(new)] == [b"{}"]
    backend.close()
