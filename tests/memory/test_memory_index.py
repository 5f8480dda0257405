"""The contract of an index of memories, on each kind there is: it equals a plain fold of the
events."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.servers import url_on
from holdfast.backends import StreamKey
from holdfast.memory.fold import IndexChanges, MemoryEvent, MemoryFold
from holdfast.memory.model import (
    Forgotten,
    IndexPosition,
    Judged,
    MemoryDoc,
    MemoryFilter,
    Remembered,
    Superseded,
    Used,
    sources_of,
)
from holdfast.memory.search import sql
from holdfast.memory.search.catch_up import apply_events
from holdfast.memory.search.index import MemoryIndex
from holdfast.memory.search.sqlite import SQLiteIndex
from holdfast.memory.search.sqlite_search import SQLITE

INCARNATION = b"incarnation 1"
NOW = 1_700_000_000.0
ALL = MemoryFilter(now=NOW)
SPACE = StreamKey("default", "memory", "ada")

_counter = itertools.count()


@pytest.fixture(params=("memory", "file", "store", "postgres"))
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MemoryIndex]:
    """An empty index of each kind."""
    if request.param == "postgres":
        from holdfast.backends.postgres import PostgresBackend
        from holdfast.memory.search.postgres import PostgresIndex

        backend = PostgresBackend(url_on("postgres", tmp_path))
        yield PostgresIndex(backend)
        backend.close()
        return
    path = str(tmp_path / "a.db")
    if request.param == "store":
        holdfast.open(path).close()
    index = SQLiteIndex(
        ":memory:" if request.param == "memory" else path, shared=request.param == "store"
    )
    yield index
    index.close()


def said(version: int, text: str, **more: Any) -> MemoryEvent:
    return MemoryEvent(
        version,
        f"id-{version}",
        NOW + version,
        Remembered(text, **{"at": NOW - 1000 + version, **more}),
    )


def follow(
    index: MemoryIndex,
    space: StreamKey,
    events: Sequence[MemoryEvent],
    incarnation: bytes = INCARNATION,
) -> None:
    assert apply_events(index, space, index.position(space), incarnation, events)


def texts(docs: Sequence[MemoryDoc]) -> list[str]:
    return [doc.text for doc in docs]


def found(
    index: MemoryIndex,
    *terms: str,
    space: StreamKey = SPACE,
    where: MemoryFilter = ALL,
    limit: int = 100,
) -> list[str]:
    return texts(index.search(space, dict.fromkeys(terms, 1.0), where, limit).docs)


# -- positions -------------------------------------------------------------------------------------


def test_an_index_that_followed_nothing_knows_nothing(index: MemoryIndex) -> None:
    assert index.position(SPACE) is None
    assert index.lookup(SPACE, ["id-1"], ["0123456789ab"]) == ([], {})
    assert index.search(SPACE, {"cat": 1.0}, ALL, 10) == ([], 0, 0.0, {})
    assert index.neighbours(SPACE, [], 2, ALL) == []
    assert list(index.page(SPACE, 0, 10, ALL)) == []
    assert index.counts(SPACE, NOW) == (0, 0, None, None)
    assert index.list_expired(SPACE, NOW, 10) == []
    index.clear(SPACE, IndexPosition(INCARNATION, 1))


def test_a_write_from_a_position_that_has_passed_does_nothing_at_all(index: MemoryIndex) -> None:
    follow(index, SPACE, [said(1, "Ada likes tea")])
    for stale in (
        None,
        IndexPosition(INCARNATION, 0),
        IndexPosition(INCARNATION, 2),
        IndexPosition(b"another", 1),
        IndexPosition(INCARNATION, 1, b"other"),
    ):
        assert not apply_events(
            index,
            SPACE,
            stale,
            stale.incarnation if stale else INCARNATION,
            [said(2, "Ada likes coffee")],
        )
    assert index.position(SPACE) == IndexPosition(INCARNATION, 1)
    assert found(index, "tea", "coffe") == ["Ada likes tea"]
    assert index.search(SPACE, {"tea": 1.0, "coffe": 1.0}, ALL, 10)[1:] == (1, 3.0, {"tea": 1})


def test_of_writers_at_one_position_exactly_one_writes(index: MemoryIndex) -> None:
    rounds, writers = 5, 4
    for version in range(1, rounds + 1):
        before, won = index.position(SPACE), []
        start = threading.Barrier(writers)

        def write(
            writer: int,
            version: int = version,
            before: Any = before,
            won: Any = won,
            start: Any = start,
        ) -> None:
            start.wait()
            if apply_events(
                index,
                SPACE,
                before,
                INCARNATION,
                [said(version, f"fact {version} of writer number {writer}")],
            ):
                won.append(writer)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert index.position(SPACE) == IndexPosition(INCARNATION, version)
    assert len(index.page(SPACE, 0, 100, ALL)) == rounds
    assert index.search(SPACE, {"fact": 1.0}, ALL, 100).frequency == {"fact": rounds}


def test_a_namespace_is_cleared_only_at_the_position_that_was_meant(index: MemoryIndex) -> None:
    other = SPACE._replace(id="bob")
    for space in (SPACE, other):
        follow(index, space, [said(1, "Ada likes tea"), said(2, "Bob likes tea too")])
    for elsewhere in (
        IndexPosition(b"another", 2),
        IndexPosition(INCARNATION, 1),
        IndexPosition(INCARNATION, 3),
        IndexPosition(INCARNATION, 2, b"other"),
    ):
        index.clear(SPACE, elsewhere)
        assert len(found(index, "tea")) == 2
    index.clear(SPACE, IndexPosition(INCARNATION, 2))
    assert index.position(SPACE) is None and found(index, "tea") == []
    assert len(found(index, "tea", space=other)) == 2
    follow(index, SPACE, [said(1, "Eve likes tea as well")], b"another")
    assert found(index, "tea") == ["Eve likes tea as well"]
    assert index.search(SPACE, {"tea": 1.0, "bob": 1.0}, ALL, 9)[1:] == (1, 4.0, {"tea": 1})
    assert index.lookup(SPACE, ["id-2"], []) == ([], {})


def test_a_namespace_is_replaced_at_once_unless_it_has_followed_further(index: MemoryIndex) -> None:
    beside, other = SPACE._replace(tenant="$default"), SPACE._replace(id="bob")
    assert index.replace(SPACE, beside), "there is nothing to put in its place"
    follow(index, SPACE, [said(1, "Ada likes tea"), said(2, "Bob likes tea too")])
    follow(index, other, [said(1, "Eve likes tea as well")])
    follow(index, beside, [said(1, "Ada likes green tea")])
    assert not index.replace(SPACE, beside)
    assert len(found(index, "tea")) == 2 and len(found(index, "tea", space=beside)) == 1
    follow(index, beside, [said(2, "Bob likes white tea")])
    assert index.replace(SPACE, beside)
    assert sorted(found(index, "tea")) == ["Ada likes green tea", "Bob likes white tea"]
    assert index.position(SPACE) == IndexPosition(INCARNATION, 2) and index.position(beside) is None
    assert index.search(SPACE, {"tea": 1.0, "too": 1.0}, ALL, 9)[1:] == (2, 4.0, {"tea": 2})
    assert found(index, "tea", space=other) == ["Eve likes tea as well"]
    follow(index, beside, [said(1, "Kim likes tea")], b"another")
    assert index.replace(SPACE, beside), (
        "another incarnation of the stream counts, however short it is"
    )
    assert found(index, "tea") == ["Kim likes tea"]


def test_what_has_expired_is_told_and_taken_out_once(index: MemoryIndex) -> None:
    ends = {1: None, 2: NOW - 5, 3: NOW + 5, 4: NOW - 9}
    follow(
        index,
        SPACE,
        [said(version, f"fact {version}", expires_at=end) for version, end in ends.items()],
    )
    assert texts(index.list_expired(SPACE, NOW, 10)) == ["fact 4", "fact 2"]
    assert (
        texts(index.list_expired(SPACE, NOW, 1))
        == texts(index.list_expired(SPACE, NOW - 7, 10))
        == ["fact 4"]
    )
    at, gone = (
        IndexPosition(INCARNATION, 4),
        IndexChanges([], list(index.list_expired(SPACE, NOW, 10)), {}),
    )
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(index.write(SPACE, at, at, gone)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(answers) and list(index.list_expired(SPACE, NOW, 10)) == []
    assert index.search(SPACE, {"fact": 1.0}, MemoryFilter(now=0.0), 9)[1:3] == (2, 2.0)
    assert len(index.page(SPACE, 0, 10, MemoryFilter(now=0.0))) == 2


# -- searching -------------------------------------------------------------------------------------

PLACES = [
    SPACE,
    SPACE._replace(tenant="other"),
    SPACE._replace(id="1"),
    SPACE._replace(id="1_cat"),
    SPACE._replace(id="%"),
]


def test_namespaces_and_tenants_never_show_through(index: MemoryIndex) -> None:
    mine, others = PLACES[0], PLACES[1:]
    for space in others:
        follow(
            index,
            space,
            [
                said(n, f"The secret word of cat {n} is {space.id}", source="s")
                for n in range(1, 30)
            ],
        )
    follow(index, mine, [said(7, "A dog barks", source="s")])
    question = {"secret": 1.0, "word": 1.0, "cat": 1.0, "1_cat": 1.0}
    assert index.search(mine, question, ALL, 10) == ([], 1, 2.0, {})
    (dog,) = index.search(mine, {**question, "dog": 0.1}, ALL, 10).docs
    assert dog.text == "A dog barks"
    assert index.neighbours(mine, [dog], 3, ALL) == [([], [])]
    assert index.lookup(
        mine,
        ["id-1", "id-8"],
        [key for doc in index.page(others[0], 0, 5, ALL) for key in doc.keys],
    ) == ([], {})
    assert texts(index.page(mine, 0, 100, ALL)) == ["A dog barks"]
    assert index.counts(mine, NOW).memories == 1
    assert len(index.page(others[0], 0, 100, ALL)) == 29


def test_rare_terms_bring_candidates_and_common_ones_only_while_those_are_too_few(
    index: MemoryIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.memory.search.sqlite_search.WORK_DOCS", 6)
    monkeypatch.setattr("holdfast.memory.search.postgres_sql.WORK_DOCS", 6)
    foods = ["apple", "bread", "cheese", "dates", "eggs", "figs", "grapes"]
    follow(index, SPACE, [said(n, f"We buy {food} often") for n, food in enumerate(foods, 1)])
    assert found(index, "appl", "often", limit=1) == ["We buy apple often"]
    assert len(found(index, "appl", "often", limit=5)) == 5
    assert index.search(SPACE, {"appl": 1.0, "often": 1.0}, ALL, 1).frequency == {
        "appl": 1,
        "often": 7,
    }
    assert len(found(index, "often", limit=6)) == 6
    assert set(found(index, "appl", "bread", "absent")) == {
        "We buy apple often",
        "We buy bread often",
    }


def test_the_most_promising_come_first_and_no_more_than_asked_for(index: MemoryIndex) -> None:
    events = [said(n, f"The train number {n} was late") for n in range(1, 20)]
    follow(
        index,
        SPACE,
        [
            *events,
            said(20, "The night train to Vienna was late"),
            said(21, "Vienna is rainy and grey"),
        ],
    )
    assert found(index, "night", "train", "vienna", limit=2) == [
        "The night train to Vienna was late",
        "Vienna is rainy and grey",
    ]


@pytest.mark.parametrize(
    "term",
    ["it's", 'a"b', "a\\b", "a' | b", "a & !b", "x:*", "NEAR(a b)", "%s", "{}", "жук", "日本"],
)
def test_terms_are_data(index: MemoryIndex, term: str) -> None:
    follow(index, SPACE, [said(1, "plain words"), said(2, "жук 日本")])
    expected = ["жук 日本"] if term in ("жук", "日本") else []
    assert found(index, term) == expected
    assert set(found(index, term, "plain")) == {*expected, "plain words"}


def test_what_looks_like_an_operator_in_a_text_is_found(index: MemoryIndex) -> None:
    follow(
        index,
        SPACE,
        [
            said(1, "AT&T calls at 12:30 about C++, C#, re-entry, ada@example.org and x.y"),
            said(2, "else"),
        ],
    )
    (doc,) = index.page(SPACE, 0, 1, ALL)
    for term in doc.terms.split():
        assert [one.number for one in index.search(SPACE, {term: 1.0}, ALL, 5).docs] == [1], term


@pytest.mark.slow
def test_a_text_of_very_many_words_is_kept_and_found(index: MemoryIndex) -> None:
    characters = "".join(
        chr(0x4E00 + n % 20_000) + chr(0x4E00 + n * 7 % 19_997) for n in range(50_000)
    )
    follow(index, SPACE, [said(1, characters), said(2, "short")])
    assert [doc.number for doc in index.search(SPACE, {characters[:2]: 1.0}, ALL, 5).docs] == [1]
    assert index.lookup(SPACE, ["id-1"], []).docs[0].text == characters
    follow(index, SPACE, [MemoryEvent(3, "id-3", NOW, Forgotten(["id-1"]))])
    assert found(index, characters[:2]) == [] and texts(index.page(SPACE, 0, 9, ALL)) == ["short"]


# -- the law ---------------------------------------------------------------------------------------

WORDS = ["tea", "coffee", "cat", "dog", "Vienna", "Rome", "train", "ticket", "red", "blue"]
SOURCES = (None, "chat 1", "chat'2")
VALID = st.sampled_from([None, NOW - 5, NOW + 500, NOW + 10_000])


def _said(draw: st.DrawFn) -> Remembered:
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
    return Remembered(
        " ".join(words),
        tags=tuple(sorted(draw(st.sets(st.sampled_from(["a", "b\x1f", 'c"']), max_size=2)))),
        source=draw(st.sampled_from(SOURCES)),
        author=draw(st.sampled_from(["model", "user"])),
        subject=draw(st.sampled_from([None, "Ada", "Bob"])),
        at=draw(st.sampled_from([None, NOW - 90_000, NOW - 50, NOW - 49.5])),
        expires_at=draw(VALID),
        meta=draw(st.sampled_from([None, {"nul": "\0", "n": 1}])),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[list[MemoryEvent]]:
    """Events in batches, as a follower reads them."""
    events: list[MemoryEvent] = []
    for version in range(1, draw(st.integers(1, 25)) + 1):
        some = st.integers(1, version).map(lambda number: f"id-{number}")
        kind = draw(st.sampled_from(["said"] * 6 + ["superseded", "forgotten", "judged", "used"]))
        event: Any = {
            "said": lambda: _said(draw),
            "superseded": lambda: Superseded(draw(some), _said(draw)),  # noqa: B023  called at once
            "forgotten": lambda: Forgotten(
                draw(st.lists(some, max_size=2)),  # noqa: B023
                draw(st.sampled_from(SOURCES)),
            ),
            "judged": lambda: Judged(draw(some), draw(st.booleans())),  # noqa: B023
            "used": lambda: Used(draw(st.lists(some, max_size=3))),  # noqa: B023
        }[kind]()
        events.append(MemoryEvent(version, f"id-{version}", NOW + version, event))
    cuts = sorted(draw(st.sets(st.integers(1, len(events)), max_size=4)) | {0, len(events)})
    return [events[a:b] for a, b in itertools.pairwise(cuts) if a < b]


WHERES = st.builds(
    MemoryFilter,
    now=st.sampled_from([NOW, NOW + 5_000]),
    tags=st.sampled_from([(), ("a",), ("a", 'c"'), ("b\x1f",)]),
    source=st.sampled_from(SOURCES),
    author=st.sampled_from(
        [None, "model", "user", ("model", "user"), ("nobody", "user"), ("nobody", "none")]
    ),
    without=st.sampled_from([(), (), ("model",), ("nobody", "user"), ("model", "user")]),
    subject=st.sampled_from([None, None, "Ada"]),
    visible_to=st.sampled_from([msgspec.UNSET, msgspec.UNSET, None, "Ada", "nobody"]),
    since=st.sampled_from([None, NOW - 50, NOW]),
    until=st.sampled_from([None, NOW - 50, NOW + 3]),
)


class Model:
    """All events of a namespace folded at once, with everything in plain dicts."""

    def __init__(self, batches: Sequence[Sequence[MemoryEvent]]) -> None:
        fold = MemoryFold()
        self.names = [happened.id for batch in batches for happened in batch]
        for batch in batches:
            for happened in batch:
                fold.apply(happened)
        self.docs: dict[int, MemoryDoc] = {doc.number: doc for doc in fold.changes().put}
        self.ids = {
            name: doc.number for name in self.names if (doc := fold._find(name)) is not None
        }

    def words(self, doc: MemoryDoc) -> set[str]:
        return {*doc.terms.split(), *doc.context.split()}

    def neighbours(
        self, doc: MemoryDoc, reach: int, where: MemoryFilter
    ) -> tuple[list[MemoryDoc], list[MemoryDoc]]:
        if doc.source is None:
            return [], []
        line = sorted(
            (
                one
                for one in self.docs.values()
                if one.source == doc.source and (where.has(one) or one is doc)
            ),
            key=lambda one: (one.first_at, one.number),
        )
        at = line.index(doc)
        return line[max(0, at - reach) : at][::-1], line[at + 1 : at + 1 + reach]


@pytest.mark.slow
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batches=histories(), where=WHERES, reach=st.integers(1, 3))
def test_an_index_equals_a_plain_fold_of_all_events(
    index: MemoryIndex, batches: list[list[MemoryEvent]], where: MemoryFilter, reach: int
) -> None:
    space = SPACE._replace(id=f"n{next(_counter)}")
    for batch in batches:
        follow(index, space, batch)
    model = Model(batches)
    wanted = [doc for _, doc in sorted(model.docs.items()) if where.has(doc)]
    assert index.position(space) == IndexPosition(INCARNATION, len(model.names))
    assert _everything(index, space, where) == wanted
    known = index.lookup(space, model.names, [])
    assert known.aliases == model.ids
    assert {doc.number: doc for doc in known.docs} == {
        number: model.docs[number] for number in model.ids.values()
    }
    for doc in model.docs.values():
        if doc.keys:  # what is superseded has none
            assert doc.number in {one.number for one in index.lookup(space, [], doc.keys[:1]).docs}
    counted = Counter(word for doc in model.docs.values() for word in model.words(doc))
    asked = dict.fromkeys(("tea", "coffe", "cat", "vienna", "ada", "chat", "c", "absent"), 1.0)
    answer = index.search(space, asked, where, 100)
    assert {doc.number: doc for doc in answer.docs} == {
        doc.number: doc for doc in wanted if not model.words(doc).isdisjoint(asked)
    }
    assert answer.frequency == {term: counted[term] for term in asked if counted[term]}
    assert answer.total == len(model.docs)
    lengths = [len(doc.terms.split(" ")) for doc in model.docs.values()]
    assert answer.average == pytest.approx(sum(lengths) / max(len(lengths), 1))
    docs = list(model.docs.values())
    assert [tuple(map(list, one)) for one in index.neighbours(space, docs, reach, where)] == [
        model.neighbours(doc, reach, where) for doc in docs
    ]
    alive = [doc for doc in docs if MemoryFilter(now=where.now).has(doc)]
    sources = len({source for doc in alive for source in sources_of(doc)})
    oldest = min((doc.first_at for doc in alive), default=None)
    newest = max((doc.at for doc in alive), default=None)
    assert index.counts(space, where.now) == (len(alive), sources, oldest, newest)


def _everything(index: MemoryIndex, space: StreamKey, where: MemoryFilter) -> list[MemoryDoc]:
    docs: list[MemoryDoc] = []
    while page := index.page(space, docs[-1].number if docs else 0, 3, where):
        docs += page
    return docs


def test_what_changes_is_found_by_its_new_words_only(index: MemoryIndex) -> None:
    follow(index, SPACE, [said(1, "Ada likes tea"), said(2, "Ada likes cats")])
    (doc,) = index.lookup(SPACE, ["id-1"], []).docs
    changed = msgspec.structs.replace(doc, text="Bob rows", terms="bob row", keys=("0000000000ff",))
    assert index.write(
        SPACE,
        IndexPosition(INCARNATION, 2),
        IndexPosition(INCARNATION, 3),
        IndexChanges([changed], [], {"other": 1}),
    )
    assert found(index, "tea") == [] and found(index, "bob") == ["Bob rows"]
    assert index.lookup(SPACE, [], list(doc.keys)).docs == []
    assert index.lookup(SPACE, ["other"], ["0000000000ff"]) == ([changed], {"other": 1})
    assert index.search(SPACE, {"tea": 1.0, "bob": 1.0, "ada": 1.0}, ALL, 9)[1:] == (
        2,
        2.5,
        {"bob": 1, "ada": 1},
    )


@pytest.mark.parametrize("name", ["KNOWN", "DOCS", "WITHOUT_VECTOR", "VECTORS_AT", "VECTORS_OF"])
def test_sqlite_looks_rows_up_and_scans_no_namespace_for_them(name: str) -> None:
    index = SQLiteIndex()
    condition, _ = SQLITE.build_condition(MemoryFilter(now=0.0))
    statement = index._complete(getattr(sql, name)).format(condition=condition)
    names = ("tenant", "id", "ids", "keys", "model", "after", "limit", "now", "numbers", "places")
    values = dict.fromkeys((*names, "valid_at"), "[]")
    plan = [row[3] for row in index._rows(f"EXPLAIN QUERY PLAN {statement}", values)]
    index.close()
    assert not [step for step in plan if "AUTOMATIC" in step or step.endswith("(space=?)")], plan
