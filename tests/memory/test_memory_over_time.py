"""Memory over time: what is valid now, what was valid then, and questions about a day."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

import pytest

import holdfast
from helpers.paths import ROOT
from holdfast import testing
from holdfast.memory.text.dates import read_time

sys.path.insert(0, str(ROOT))  # `bench` is beside the tests, and not installed

from bench.memory_set import facts
from bench.memory_set.facts import DAY, NOW


def texts(hits: Iterable[holdfast.MemoryItem]) -> list[str]:
    return [hit.text for hit in hits]


@pytest.fixture
def clock() -> Iterator[testing.FakeClock]:
    with testing.fake_clock(NOW) as clock:
        yield clock


# -- validity --------------------------------------------------------------------------------------


@pytest.mark.every_engine
def test_a_superseded_memory_answers_for_the_time_before(
    durable_url: str, clock: testing.FakeClock
) -> None:
    with holdfast.open(durable_url) as store:
        memory = store.memory("m")
        old = memory.remember("Ann lives in Ghent")
        clock.advance(10 * DAY)
        memory.supersede(old, "Ann lives in Rome")
        assert texts(memory.recall("where does Ann live?")) == ["Ann lives in Rome"]
        (then,) = memory.recall("where does Ann live?", as_of=NOW + 5 * DAY)
        assert then.text == "Ann lives in Ghent"
        assert then.valid_until == datetime.fromtimestamp(NOW + 10 * DAY, timezone.utc)
        assert memory.recall("where does Ann live?", as_of=NOW - DAY) == []
        assert memory.get(old) is None
        assert texts(memory.all()) == ["Ann lives in Rome"]
        assert memory.stats().memories == 1
        memory.rebuild()
        assert texts(memory.recall("Ann", as_of=NOW + 5 * DAY)) == ["Ann lives in Ghent"]


def test_a_memory_is_recalled_while_it_is_valid(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("The shop has a sale", valid_from=NOW + DAY, valid_until=NOW + 2 * DAY)
        assert memory.recall("sale") == []
        clock.advance(1.5 * DAY)
        assert texts(memory.recall("sale")) == ["The shop has a sale"]
        clock.advance(DAY)
        assert memory.recall("sale") == []
        assert texts(memory.recall("sale", as_of=NOW + 1.5 * DAY)) == ["The shop has a sale"]


def test_what_changes_later_is_recalled_until_then(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        old = memory.remember("The fee is 5 euros")
        memory.supersede(old, "The fee is 7 euros", valid_from=NOW + 5 * DAY)
        assert texts(memory.recall("fee")) == ["The fee is 5 euros"]
        clock.advance(6 * DAY)
        assert texts(memory.recall("fee")) == ["The fee is 7 euros"]


def test_a_fact_that_was_superseded_can_be_remembered_again(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        first = memory.remember("Ann lives in Ghent")
        second = memory.supersede(first, "Ann lives in Rome")
        clock.advance(DAY)
        third = memory.remember("Ann lives in Ghent")
        assert len({first, second, third}) == 3
        assert texts(memory.recall("Ann lives")) == ["Ann lives in Ghent", "Ann lives in Rome"]


def test_to_forget_a_memory_forgets_what_it_superseded(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        old = memory.remember("Ann lives in Ghent", source="mail")
        newer = memory.supersede(old, "Ann lives in Rome")
        clock.advance(DAY)
        newest = memory.supersede(newer, "Ann lives in Oslo", source="call")
        assert memory.recall("Ann", as_of=NOW)
        assert memory.forget_where(source="mail") == 2
        assert memory.recall("Ann", as_of=NOW) == []
        assert memory.forget(newest)
        assert memory.recall("Ann") == []


def test_wrong_validity_is_refused() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        with pytest.raises(ValueError, match="valid_until must be later than valid_from"):
            memory.remember("x y z", valid_from=2.0, valid_until=2.0)
        with pytest.raises((TypeError, ValueError), match="valid_from"):
            memory.remember("x y z", valid_from="tomorrow")  # type: ignore[arg-type]


def test_the_time_of_an_event_and_of_telling_are_apart(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("The bridge was opened", at=0.0)
        (hit,) = memory.recall("bridge")
        assert hit.at.year == 1970
        assert hit.told_at == datetime.fromtimestamp(NOW, timezone.utc)


# -- conflicts and updates -------------------------------------------------------------------------


def test_the_current_fact_comes_first() -> None:
    right = 0
    for old, new, question in facts.UPDATED:
        with holdfast.open("memory://") as store:
            memory = store.memory("m")
            memory.remember(old, at=NOW - 90 * DAY)
            memory.remember(new, at=NOW - 20 * DAY)
            memory.remember("The garden was watered again", at=NOW - 10 * DAY)
            right += texts(memory.recall(question))[:1] == [new]
    assert right >= 38
    assert len(facts.UPDATED) == 40


def test_with_supersede_the_outdated_fact_is_not_recalled() -> None:
    for old, new, question in facts.UPDATED:
        with holdfast.open("memory://") as store:
            memory = store.memory("m")
            memory.supersede(memory.remember(old), new)
            assert texts(memory.recall(question)) == [new]


@pytest.mark.every_engine
def test_a_hit_and_a_list_show_conflicts(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        memory = store.memory("m")
        old = memory.remember("Ann lives in Ghent", subject="ann")
        new = memory.remember("Ann lives in Rome", subject="ann")
        memory.remember("Ann lives in Oslo", subject="another ann")
        memory.remember("Ann likes tea", subject="ann")
        memory.remember("Ann likes coffee", subject="ann")
        (conflict,) = memory.conflicts()
        assert (conflict.newer.id, conflict.older.id) == (new, old)
        assert memory.conflicts(subject="another ann") == []
        first, second = memory.recall("where does Ann live?", 2, subject="ann")
        assert (first.id, first.conflicts, second.conflicts) == (new, (old,), (new,))
        memory.supersede(old, "Ann lived in Ghent")
        assert memory.recall("where does Ann live?", 1, subject="ann")[0].conflicts == ()
        memory.forget(new)
        assert memory.conflicts() == []


def test_what_was_newest_at_a_time_comes_first(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("Ann lives in Paris", importance=0.9)
        clock.advance(DAY)
        memory.remember("Ann lives in Berlin")
        clock.advance(DAY)
        newest_first = ["Ann lives in Berlin", "Ann lives in Paris"]
        assert texts(memory.recall("Where does Ann live?")) == newest_first
        assert texts(memory.recall("Where does Ann live?", as_of=NOW + 2 * DAY)) == newest_first
        clock.advance(DAY)
        memory.remember("Ann lives in Paris")
        assert texts(memory.recall("Where does Ann live?")) == newest_first[::-1]
        assert texts(memory.recall("Where does Ann live?", as_of=NOW + 2 * DAY)) == newest_first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ann likes tea", "Ann likes coffee"),
        ("Ann lives in Ghent", "Bo lives in Rome"),
        ("Ann lives in Rome", "Ann lives in Rome near the river"),
        ("The office is in Ghent", "The office is closed on Friday"),
        ("Ann is tall", "Ann is Belgian"),
        ("Claim 17 was paid", "Claim 18 was refused"),
        ("Ann paid 5 euros for rent", "Ann paid 7 euros for water"),
    ],
)
def test_two_facts_are_no_conflict(one: str, other: str) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember_many([{"text": one}, {"text": other}])
        assert memory.conflicts() == []


# -- questions about a time ------------------------------------------------------------------------


def test_relative_dates_in_questions_are_understood(clock: testing.FakeClock) -> None:
    right, asked = 0, facts.dated()
    for notes in dict.fromkeys(one.notes for one in asked):
        with holdfast.open("memory://") as store:
            memory = store.memory("m")
            memory.remember_many([{"text": text, "at": at} for text, at in notes])
            for one in asked:
                if one.notes == notes:
                    found = texts(memory.recall(one.question, 3))
                    right += one.notes[one.answer][0] in found
    assert right >= 36
    assert len(asked) == 40


@pytest.mark.parametrize(
    ("question", "first", "last"),
    [
        ("What did we decide yesterday?", "03-17", "03-17"),
        ("What happened two weeks ago?", "03-01", "03-07"),
        ("What happened last month?", "02-01", "02-28"),
        ("what did Ann say last Monday?", "03-16", "03-16"),
        ("What broke in the last three days?", "03-15", "03-18"),
        ("Was haben wir vor zwei Wochen entschieden?", "03-01", "03-07"),
        ("Was war letzte Woche?", "03-09", "03-15"),
        ("Qu'avons-nous décidé hier ?", "03-17", "03-17"),
        ("Que s'est-il passé il y a deux jours ?", "03-16", "03-16"),
        ("¿Qué decidimos la semana pasada?", "03-09", "03-15"),
        ("¿Qué pasó hace tres días?", "03-15", "03-15"),
        ("上周我们决定了什么?", "03-09", "03-15"),
        ("先月の会議は何でしたか", "02-01", "02-28"),
        ("ماذا قررنا أمس؟", "03-17", "03-17"),
        ("Was ist hier los?", None, None),
        ("What does Ann do on Mondays?", None, None),
    ],
)
def test_a_period_is_read_from_a_question(
    question: str, first: str | None, last: str | None
) -> None:
    period = read_time(question, NOW).period
    days = [f"{datetime.fromtimestamp(at, timezone.utc):%m-%d}" for at in period or ()]
    assert days == ([] if first is None else [first, last])


def test_the_latest_is_preferred_if_asked_for(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("Copper price noted by the desk: high", at=NOW - 400 * DAY)
        memory.remember("Copper price seen at the desk: low", at=NOW - DAY)
        memory.remember("Copper price heard at a desk: middling", at=NOW - 200 * DAY)
        assert "low" in memory.recall("latest copper price of the desk")[0].text


def test_since_an_event_means_after_it(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("A valve of the pump leaked in the hall", at=NOW - 90 * DAY)
        memory.remember("The audit took place", at=NOW - 40 * DAY)
        memory.remember("The pump in the hall leaked from a valve", at=NOW - 9 * DAY)
        found = texts(memory.recall("Which valve leaked since the audit?", 2))
        assert found[0] == "The pump in the hall leaked from a valve"


def test_without_a_question_a_period_is_listed(clock: testing.FakeClock) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember_many([{"text": f"Note {n}", "at": NOW - n * DAY} for n in range(6)])
        assert texts(memory.recall("", since=NOW - 3.5 * DAY)) == [
            "Note 0", "Note 1", "Note 2", "Note 3",
        ]  # fmt: skip
        assert texts(memory.recall("", 2, until=NOW - 2.5 * DAY)) == ["Note 3", "Note 4"]
        assert memory.recall("") == []
