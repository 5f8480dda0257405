"""PostgreSQL compares vectors itself where it has pgvector: with what result, and what happens
where it has not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.run_cli import run
from helpers.servers import postgres, url_on
from holdfast.backends import StreamKey
from holdfast.backends.postgres import PostgresBackend
from holdfast.memory.fold import IndexChanges
from holdfast.memory.model import IndexPosition, MemoryDoc, MemoryFilter
from holdfast.memory.search.postgres import PostgresIndex
from holdfast.memory.vectors import pgvector
from holdfast.memory.vectors.embedding import scale_to_unit
from holdfast.memory.vectors.pgvector import PgvectorSearch

ALL, MODEL = MemoryFilter(now=1.0), "model/2"


def space(name: str) -> StreamKey:
    return StreamKey("default", "memory", name)


def doc(number: int, **more: Any) -> MemoryDoc:
    return MemoryDoc(
        number,
        f"id-{number}",
        f"text {number}",
        at=float(number),
        first_at=0.0,
        terms=f"t{number}",
        **more,
    )


def fill(
    index: PostgresIndex, name: str, rows: Any, **more: Callable[[int], Any]
) -> list[MemoryDoc]:
    """Memories 1, 2, … with these vectors."""
    docs = [
        doc(number, **{key: of(number) for key, of in more.items()})
        for number in range(1, len(rows) + 1)
    ]
    for start in range(0, len(docs), 2000):
        some, before = docs[start : start + 2000], index.position(space(name))
        after = IndexPosition(b"incarnation", start + len(some))
        assert index.write(space(name), before, after, IndexChanges(some, [], {}))
        made = [(one, rows[one.number - 1].astype("<f4").tobytes()) for one in some]
        index.put_vectors(space(name), MODEL, made)
    return docs


def near_of(index: PostgresIndex) -> PgvectorSearch:
    near = index.vector_search()
    assert near is not None
    return near


def nearest(
    index: PostgresIndex, name: str, question: Any, limit: int = 10, where: MemoryFilter = ALL
) -> list[int]:
    prepared = near_of(index).prepare(space(name), MODEL, len(question))
    found = prepared.nearest(np.asarray(question, np.float32), where, limit, limit)
    numbers = [one.number for one, _ in found.docs]
    vectors = index.vectors_of(space(name), MODEL, numbers)
    exact = [float(np.frombuffer(vectors[number], "<f4") @ question) for number in numbers]
    assert [likeness for _, likeness in found.docs] == pytest.approx(exact, abs=2e-3)
    return numbers


def true_nearest(rows: Any, question: Any, count: int = 10) -> list[int]:
    return [int(place) + 1 for place in np.argsort(-(rows @ question))[:count]]


# -- as good as comparing all ----------------------------------------------------------------------

COUNT, NUMBERS = 6_000, 64


def random_set(generator: np.random.Generator, count: int) -> Any:
    return scale_to_unit(generator.standard_normal((count, NUMBERS)).astype(np.float32))


def clustered_set(generator: np.random.Generator, count: int) -> Any:
    """A hundred subjects, and much that all have in common, as real models have it."""
    subjects = np.random.default_rng(7).standard_normal((100, NUMBERS))
    chosen = subjects[generator.integers(0, 100, count)]
    return scale_to_unit(
        (1 + chosen + 0.7 * generator.standard_normal((count, NUMBERS))).astype(np.float32)
    )


SETS = {"random": random_set, "clustered": clustered_set}


@pytest.fixture(scope="module")
def large(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[PostgresIndex, dict[str, Any]]]:
    """Two namespaces side by side: what is nearest in one must not push out what is nearest in the
    other."""
    backend = PostgresBackend(url_on("postgres", tmp_path_factory.mktemp("large")))
    index = PostgresIndex(backend)
    rows = {name: make(np.random.default_rng(1), COUNT) for name, make in SETS.items()}
    for name in SETS:
        fill(index, name, rows[name])
    yield index, rows
    backend.close()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("close", "share"), [(pgvector.CLOSE_VECTORS, 0.99), (900, 0.95)])
def test_the_server_finds_nearly_all_of_the_true_nearest(
    large: tuple[PostgresIndex, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    close: int,
    share: float,
) -> None:
    monkeypatch.setattr(pgvector, "CLOSE_VECTORS", close)
    index, rows = large
    found = 0
    for question in SETS[name](np.random.default_rng(2), 30):
        found += len({*nearest(index, name, question)} & {*true_nearest(rows[name], question)})
    assert found >= share * 300
    prepared = near_of(index).prepare(space(name), MODEL, NUMBERS)
    assert prepared.levels, "by their short forms first"


@pytest.mark.server
def test_the_server_knows_from_the_start_that_the_short_forms_are_many(
    large: tuple[PostgresIndex, dict[str, Any]],
) -> None:
    """It would sort all of them to find the first: its own count comes minutes later."""
    index, _ = large
    near_of(index).prepare(space("random"), MODEL, NUMBERS)
    counted = "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)"
    [(known,)] = index._backend.rows(counted, (f'"{index._backend.schema}".memory_codes',))
    assert known >= COUNT


@pytest.mark.server
def test_what_any_memory_is_like_is_the_average(
    large: tuple[PostgresIndex, dict[str, Any]],
) -> None:
    index, rows = large
    prepared = near_of(index).prepare(space("clustered"), MODEL, NUMBERS)
    for question in clustered_set(np.random.default_rng(3), 5):
        common = prepared.nearest(question, ALL, 10, 10).common
        assert common == pytest.approx(float((rows["clustered"] @ question).mean()), abs=0.02)


@pytest.mark.server
def test_however_many_processes_of_the_server_look_they_find_the_same(
    large: tuple[PostgresIndex, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = large
    question = random_set(np.random.default_rng(5), 1)[0]
    setting = "SELECT current_setting('max_parallel_workers_per_gather')"
    before = index._backend.rows(setting, ())
    alone = nearest(index, "random", question)
    assert index._backend.rows(setting, ()) == before != [("0",)], "it holds for one statement"
    monkeypatch.setattr(pgvector, "PARALLEL_VECTORS", COUNT)
    assert nearest(index, "random", question) == alone


@pytest.mark.server
def test_when_the_nearest_are_not_like_the_first_ones_all_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many short forms have to be sorted is guessed from the first ones."""
    monkeypatch.setattr(pgvector, "SAMPLE_CODES", 10)
    monkeypatch.setattr(pgvector, "MIN_CODED_VECTORS", 100)
    monkeypatch.setattr(pgvector, "CLOSE_VECTORS", 50)
    backend = PostgresBackend(url_on("postgres", tmp_path))
    index = PostgresIndex(backend)
    rows = random_set(np.random.default_rng(4), 400)
    rows[:10] = scale_to_unit(
        rows[:10] * 0.01 + rows[0]
    )  # the first ones are alike, the question is one of them
    fill(index, "m", rows)
    found = nearest(index, "m", rows[0], limit=30)
    assert len(found) == 30 and {*found[:10]} == {*range(1, 11)}
    backend.close()


# -- filters ---------------------------------------------------------------------------------------

N = 400


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresIndex, Any]]:
    backend = PostgresBackend(url_on("postgres", tmp_path_factory.mktemp("many")))
    index = PostgresIndex(backend)
    rows = scale_to_unit(4 + np.random.default_rng(5).standard_normal((N, 20)).astype(np.float32))
    more: dict[str, Callable[[int], Any]] = {
        "source": lambda number: f"s{number % 50}",
        "tags": lambda number: (f"t{number % 3}", f"t{number % 100}-"),
        "author": lambda number: "ann" if number % 80 == 0 else "bob",
        "expires_at": lambda number: None if number % 10 else 1e9,
    }
    for name in ("few", "coded"):
        fill(index, name, rows, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgvector, "MIN_CODED_VECTORS", 50)
        assert near_of(index).prepare(space("coded"), MODEL, 20).levels
    yield index, rows
    backend.close()


@pytest.mark.server
@settings(
    deadline=None,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 1000),
    close=st.sampled_from([1, 7, 50, N, 1000]),
    wanted=st.sampled_from([1, 5, 30]),
    kind=st.sampled_from(["all", "source", "tags", "rare tag", "author", "since", "none"]),
    name=st.sampled_from(["few", "coded"]),
)
def test_so_many_are_found_as_are_asked_for_however_narrow(
    many: tuple[PostgresIndex, Any], seed: int, close: int, wanted: int, kind: str, name: str
) -> None:
    asked: dict[str, tuple[dict[str, Any], Callable[[int], bool]]] = {
        "all": ({}, lambda number: True),
        "source": ({"source": "s7"}, lambda number: number % 50 == 7),
        "tags": ({"tags": ("t1",)}, lambda number: number % 3 == 1),
        "rare tag": ({"tags": ("t99-",)}, lambda number: number % 100 == 99),
        "author": ({"author": "ann"}, lambda number: number % 80 == 0),
        "since": ({"since": N - 3.0}, lambda number: number >= N - 3),
        "none": ({"source": "nowhere"}, lambda number: False),
    }
    options, chosen = asked[kind]
    index, rows = many
    question = scale_to_unit(
        4 + np.random.default_rng(seed).standard_normal((1, 20)).astype(np.float32)
    )[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgvector, "CLOSE_VECTORS", close)
        patch.setattr(pgvector, "FILTERED_VECTORS", close)
        found = nearest(index, name, question, wanted, MemoryFilter(now=1.0, **options))
    best = [number for number in true_nearest(rows, question, N) if chosen(number)]
    assert len(found) == min(wanted, len(best)), "never too few"
    assert set(found) <= set(best)
    if close >= N or name == "few":
        likeness = rows @ question
        assert [likeness[one - 1] for one in found] == pytest.approx(
            [likeness[one - 1] for one in best[:wanted]], abs=1e-3
        )


# -- following the vectors -------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("first", [2, 1000])
def test_what_is_gone_is_not_found_and_what_is_new_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(pgvector, "MIN_CODED_VECTORS", first)
    backend = PostgresBackend(url_on("postgres", tmp_path))
    index, rows = PostgresIndex(backend), np.eye(8, dtype=np.float32)
    docs = fill(index, "m", rows[:5])
    assert nearest(index, "m", rows[2])[0] == 3
    assert index.write(
        space("m"),
        IndexPosition(b"incarnation", 5),
        IndexPosition(b"incarnation", 6),
        IndexChanges([doc(7)], [docs[2]], {}),
    )
    assert sorted(nearest(index, "m", rows[2])) == [1, 2, 4, 5]
    index.put_vectors(space("m"), MODEL, [(doc(7), rows[2].tobytes())])
    assert nearest(index, "m", rows[2])[0] == 7
    for name in ("b", "c"):
        index.put_vectors(space("m"), name, [(doc(7), rows[2].tobytes())])
    assert nearest(index, "m", rows[2]) == [], "a third model ends the first"
    assert _left(backend) == {"levels": 0, "halves": 0, "codes": 0}
    fill(index, "other", rows)
    assert nearest(index, "other", rows[6])[0] == 7
    at = index.position(space("other"))
    assert at is not None
    index.clear(space("other"), at)
    assert _left(backend) == {"levels": 0, "halves": 0, "codes": 0}
    backend.close()


def _left(backend: PostgresBackend) -> dict[str, int]:
    names = ("levels", "halves", "codes")
    return {
        name: backend.rows(f"SELECT count(*) FROM {backend.schema}.memory_{name}", ())[0][0]
        for name in names
    }


@pytest.mark.server
def test_those_who_fill_and_forget_at_once_leave_exactly_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "MIN_CODED_VECTORS", 150)
    monkeypatch.setattr(pgvector, "PAGE_VECTORS", 40)
    backends = [PostgresBackend(url_on("postgres", tmp_path)) for _ in range(4)]
    indexes = [PostgresIndex(backend) for backend in backends]
    rows = random_set(np.random.default_rng(6), 300)
    docs, errors = fill(indexes[0], "m", rows), []

    def work(place: int) -> None:
        try:
            for step in range(30):
                if place == 0:  # forgets
                    gone = IndexChanges([], [docs[10 * step]], {})
                    while (before := indexes[0].position(space("m"))) is not None and not indexes[
                        0
                    ].write(
                        space("m"), before, IndexPosition(b"incarnation", before.version + 1), gone
                    ):
                        pass
                else:
                    near_of(indexes[place]).prepare(space("m"), MODEL, NUMBERS)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert _left(backends[0]) == {"levels": 1, "halves": 270, "codes": 270}
    assert 1 not in nearest(indexes[1], "m", rows[0]) and nearest(indexes[1], "m", rows[1])[0] == 2
    for backend in backends:
        backend.close()


@pytest.mark.server
def test_what_is_added_while_the_short_forms_begin_gets_its_own(tmp_path: Path) -> None:
    url = url_on("postgres", tmp_path)
    backend = PostgresBackend(url)
    index, rows = PostgresIndex(backend), random_set(np.random.default_rng(8), 8)
    fill(index, "m", rows[:5])
    assert len(nearest(index, "m", rows[0])) == 5
    assert _left(backend) == {"levels": 1, "halves": 5, "codes": 0}
    assert index.write(
        space("m"),
        index.position(space("m")),
        IndexPosition(b"incarnation", 6),
        IndexChanges([doc(6)], [], {}),
    )
    index.put_vectors(space("m"), MODEL, [(doc(6), rows[5].tobytes())])
    [(model,)] = backend.rows(f"SELECT model FROM {backend.schema}.memory_models", ())
    with (
        psycopg.connect(url.partition("&schema=")[0]) as beginning,
        psycopg.connect(postgres(), autocommit=True) as admin,
    ):
        for statement in near_of(index)._sql.level:
            beginning.execute(statement, {"model": model, "dimension": NUMBERS, "sample": 100})
        adding = threading.Thread(target=nearest, args=(index, "m", rows[0]))
        adding.start()
        while admin.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
            pass
        beginning.commit()
        adding.join()
    assert _left(backend) == {"levels": 1, "halves": 6, "codes": 6}
    assert nearest(index, "m", rows[5])[0] == 6
    backend.close()


@pytest.mark.server
def test_vectors_that_are_too_long_for_it_are_compared_by_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "MAX_DIMENSION", 3)
    with holdfast.open(url_on("postgres", tmp_path)) as store:
        memory = store.memory("m", embed=four)
        memory.remember_many([{"text": "a"}, {"text": "b"}])
        assert memory.recall("zzz", 1, vector=[0, 1, 0, 0])[0].text == "b"


# -- databases with, without, and who may what -----------------------------------------------------


def four(texts: list[str]) -> list[list[float]]:
    """Vectors of four numbers. Not asked twice for one text."""
    return [[float("abcd".find(text) == place) for place in range(4)] for text in texts]


def counting(asked: list[str]) -> Any:
    def embed(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return four(texts)

    embed.name = "four"  # type: ignore[attr-defined]
    return embed


@pytest.fixture
def admin() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def database(
    tmp_path: Path, admin: psycopg.Connection[Any]
) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A database of its own with a role that may make tables in it: the role's URL, and a
    connection of its administrator."""
    name = "d" + url_on("postgres", tmp_path)[-16:]
    admin.execute(f"CREATE DATABASE {name}")
    admin.execute(f"CREATE ROLE {name} LOGIN")
    admin.execute(f"GRANT CREATE ON DATABASE {name} TO {name}")
    url = postgres().replace("/postgres?", f"/{name}?")
    with psycopg.connect(url, autocommit=True) as connection:
        yield url.replace("postgres:@", f"{name}:@"), connection
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.execute(f"DROP ROLE {name}")


def found_by(url: str, asked: list[str] | None = None, *, remember: bool = False) -> str | None:
    with holdfast.open(url) as store:
        memory = store.memory("m", embed=counting([] if asked is None else asked))
        if remember:
            memory.remember_many([{"text": text} for text in "abcd"])
        assert memory.recall("zzz", 1, vector=[0, 0, 1, 0])[0].text == "c"
        stats = memory.stats()
        assert stats.vectors == 4
        return stats.compared_by


@pytest.mark.server
def test_without_the_privilege_to_create_the_extension_the_process_compares_until_it_exists(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    asked: list[str] = []
    assert found_by(url, asked, remember=True) == "process"
    assert found_by(url, asked) == "process"
    owner.execute("CREATE SCHEMA elsewhere; CREATE EXTENSION vector SCHEMA elsewhere")
    owner.execute("GRANT USAGE ON SCHEMA elsewhere TO PUBLIC")
    assert found_by(url, asked) == "pgvector", "also if the extension is not on the search path"
    assert sorted(asked) == ["a", "b", "c", "d"], "what there was is not embedded again"


@pytest.mark.server
def test_who_may_create_the_extension_does_and_a_dropped_one_is_made_again(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    as_owner = url.replace(url.partition("//")[2].partition(":@")[0] + ":@", "postgres:@")
    asked: list[str] = []
    assert found_by(as_owner, asked, remember=True) == "pgvector"
    owner.execute("DROP EXTENSION vector CASCADE")
    assert found_by(as_owner, asked) == "pgvector"
    assert sorted(asked) == ["a", "b", "c", "d"]


@pytest.mark.server
def test_an_extension_that_is_too_old_is_left_alone(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    owner.execute("CREATE EXTENSION vector")
    owner.execute("UPDATE pg_extension SET extversion = '0.6.2' WHERE extname = 'vector'")
    assert found_by(url, remember=True) == "process"
    owner.execute("UPDATE pg_extension SET extversion = '0.10.1' WHERE extname = 'vector'")
    assert found_by(url) == "pgvector"


@pytest.mark.server
def test_a_schema_may_be_called_as_sql_likes_it(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    owner.execute("CREATE EXTENSION vector")
    assert found_by(f"{url}&schema=user", remember=True) == "pgvector"
    owner.execute("DROP EXTENSION vector CASCADE")
    assert found_by(f"{url}&schema=user") == "process"


@pytest.mark.server
def test_without_an_embedder_nothing_is_created(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    as_owner = url.replace(url.partition("//")[2].partition(":@")[0] + ":@", "postgres:@")
    with holdfast.open(as_owner) as store:
        store.memory("m").remember("Ada likes tea")
        assert store.memory("m").recall("tea")
        assert store.memory("m").stats().compared_by is None
    assert owner.execute(
        "SELECT count(*) FROM pg_extension WHERE extname = 'vector'"
    ).fetchone() == (0,)


# -- by hand ---------------------------------------------------------------------------------------


def printed(url: str) -> str:
    result = run("schema", url)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.server
def test_what_schema_prints_has_the_tables_of_memories_as_holdfast_makes_them(
    tmp_path: Path, admin: psycopg.Connection[Any]
) -> None:
    url = url_on("postgres", tmp_path)
    schema = url[-17:]
    by_hand = f"{schema}_by_hand"
    for _ in range(2):
        admin.execute(printed(url.replace(schema, by_hand)))
    found_by(url, remember=True)
    columns = """SELECT table_name, column_name, udt_name, collation_name, is_nullable
                 FROM information_schema.columns
                 WHERE table_schema = %s AND table_name LIKE 'memory%%' ORDER BY 1, 2"""
    indexes = (
        "SELECT replace(indexdef, schemaname, '') FROM pg_indexes WHERE schemaname = %s AND "
        "tablename ~ 'memory' ORDER BY 1"
    )
    for question, least in ((columns, 40), (indexes, 15)):
        made, hand = (admin.execute(question, [name]).fetchall() for name in (schema, by_hand))
        assert made == hand and len(made) >= least


@pytest.mark.server
def test_a_role_that_may_create_nothing_uses_what_was_made_by_hand(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    role = url.partition("//")[2].partition(":@")[0]
    owner.execute(f"REVOKE CREATE ON DATABASE {role} FROM {role}")
    text = printed(url)
    owner.execute(text)
    for line in text.splitlines():
        if line.startswith("-- GRANT"):
            owner.execute(line.removeprefix("-- "))
    assert found_by(url, remember=True) == "pgvector"
    assert owner.execute("SELECT count(*) FROM holdfast.memory_halves").fetchone() == (4,)


@pytest.mark.server
def test_tables_of_another_format_are_made_anew_by_hand_too(
    database: tuple[str, psycopg.Connection[Any]],
) -> None:
    url, owner = database
    owner.execute(printed(url))
    owner.execute(
        "UPDATE holdfast.memory_format SET format = 1; ALTER TABLE holdfast.memory_docs DROP "
        "COLUMN words"
    )
    owner.execute(printed(url))
    assert owner.execute("SELECT words FROM holdfast.memory_docs").fetchall() == []
