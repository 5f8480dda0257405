"""Names in memories: listed, looked up, and followed from one memory to the next."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import holdfast
from helpers.paths import ROOT
from holdfast.memory import Weights
from holdfast.memory.text.names import read_names, settle_names

sys.path.insert(0, str(ROOT))  # `bench` is beside the tests, and not installed

from bench import memory_set
from bench.memory_set.links import chains

DAY = 86_400.0
NOTES = (
    "Ann signs the orders of Acme",
    "Acme Corp pays late",
    "we reminded acme again",
    "The contract with Acme is INV-2041",
    "Write to ann@acme.example about INV-2041",
    "Orders are checked on Friday",
)


def texts(items: Iterable[holdfast.MemoryItem]) -> list[str]:
    return [item.text for item in items]


def fill(memory: holdfast.Memory, notes: Iterable[str] = NOTES) -> None:
    memory.remember_many({"text": text, "at": DAY * day} for day, text in enumerate(notes))


def names_of(*notes: str) -> dict[str, int]:
    with holdfast.open("memory://") as store:
        fill(store.memory("m"), notes)
        return {one.name: one.memories for one in store.memory("m").entities()}


# -- entities and about ----------------------------------------------------------------------------


@pytest.mark.every_engine
def test_names_are_listed_and_lead_to_their_memories(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        memory = store.memory("m")
        fill(memory)
        found = {one.name: one for one in memory.entities()}
        assert list(found)[:2] == ["Acme", "INV-2041"]
        assert (found["Acme"].kind, found["Acme"].memories) == ("name", 3)
        assert found["Acme"].last_at.timestamp() == 3 * DAY
        assert (found["INV-2041"].kind, found["INV-2041"].memories) == ("code", 2)
        assert found["ann@acme.example"].kind == "email"
        assert "Orders" not in found
        assert texts(memory.about("Acme")) == [NOTES[3], NOTES[2], NOTES[1], NOTES[0]]
        assert texts(memory.about("acme", 1)) == [NOTES[3]]
        assert texts(memory.about("inv-2041")) == [NOTES[4], NOTES[3]]
        assert memory.about("Zeno") == []
    with holdfast.open(durable_url) as store:  # derived again, from what was stored
        assert len(store.memory("m").about("Acme")) == 4

        async def same() -> None:
            other = store.aio.memory("m")
            assert texts(await other.about("Acme", since=2 * DAY)) == [NOTES[3], NOTES[2]]
            assert await other.entities(1) == store.memory("m").entities(1)

        asyncio.run(same())


def test_filters_of_recall_apply() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember("Acme pays late", tags=["money"], author="person", source="mail", at=0.0)
        old = memory.remember("Acme is in Ghent", at=DAY)
        memory.remember("Acme will close", valid_from=9e9)
        memory.remember("Acme had a sale", ttl=0.000001)
        assert texts(memory.about("Acme")) == ["Acme is in Ghent", "Acme pays late"]
        for only in ({"tags": ["money"]}, {"author": "person"}, {"source": "mail"}, {"until": 1.0}):
            assert texts(memory.about("Acme", **only)) == ["Acme pays late"]  # type: ignore[arg-type]
            [one] = memory.entities(**only)  # type: ignore[arg-type]
            assert (one.name, one.memories) == ("Acme", 1)
        memory.supersede(old, "Acme is in Rome")
        assert texts(memory.about("Acme", 1)) == ["Acme is in Rome"]
        assert texts(memory.about("Acme", as_of=2 * DAY)) == ["Acme is in Ghent", "Acme pays late"]
        memory.forget_where(source="mail")
        assert texts(memory.about("Acme")) == ["Acme is in Rome"]


def test_nothing_of_others_is_listed_or_found() -> None:
    with holdfast.open("memory://") as store:
        here, there = store.memory("here"), store.memory("there")
        here.remember("Ann met Zeno", subject="ann")
        here.remember("Bo met Yara", subject="bo")
        there.remember("Cem met Xenia")
        other = store.for_tenant("other").memory("here")
        other.remember("Dana met Wilma")
        assert {one.name for one in here.entities(subject="ann")} == {"Ann", "Zeno"}
        assert {one.name for one in here.entities()} == {"Ann", "Zeno", "Bo", "Yara"}
        assert here.about("Yara", subject="ann") == []
        for name in ("Xenia", "Wilma", "Cem", "Dana"):
            assert here.about(name) == []
        assert texts(other.about("Wilma")) == ["Dana met Wilma"]
        assert {one.name for one in other.entities()} == {"Dana", "Wilma"}


def test_a_link_does_not_lead_to_another_subject() -> None:
    told = ("Zelda Quinn approves the refunds", "Zelda Quinn works from Lisbon on Fridays")
    asked = "Where does the approver of refunds work on Fridays?"
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember(told[0], subject="ann")
        memory.remember(told[1], subject="bo")
        assert texts(memory.recall(asked, subject="ann")) == [told[0]]
        assert texts(memory.recall(asked, subject="bo")) == [told[1]]
        [hit] = memory.recall(asked, subject="bo")
        assert "names" not in hit.why


def test_names_of_an_encrypted_store_are_not_on_disk(tmp_path: Path) -> None:
    key = holdfast.keys.generate()
    with holdfast.open(tmp_path / "agents.db", key=key) as store:
        store.memory("m").remember("Xylophania Quell signs for Zorbatech")
        assert {one.name for one in store.memory("m").entities()} == {
            "Xylophania Quell",
            "Zorbatech",
        }
        assert len(store.memory("m").about("Zorbatech")) == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        stored = path.read_bytes().lower()
        assert b"zorbatech" not in stored
        assert b"xylophania" not in stored


@pytest.mark.parametrize("name", ["", "  ", 7, None])
def test_a_name_must_be_a_text(name: object) -> None:
    with holdfast.open("memory://") as store, pytest.raises((TypeError, ValueError), match="name"):
        store.memory("m").about(name)  # type: ignore[arg-type]


def test_hostile_names_are_just_text() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        memory.remember('He said "a" OR 1=1; -- (and* more)')
        for name in ("(", "a* OR b", '"', "[x", "\\", "x" * 5_000, "%_%", "a\x00b"):
            assert memory.about(name) in ([], list(memory.all()))


# -- what is a name --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Yesterday Ann Miller paid INV-2041 by 5pm.", {"Ann Miller", "INV-2041"}),
        ("We met Dr. Jane O'Brien at the Bank of America.", {"Jane O'Brien", "Bank of America"}),
        ('The plan is called "Blue Heron", see db-07.', {"Blue Heron", "db-07"}),
        ("The customer 4711832 owes 100000 EUR since 2026-01-31.", {"4711832"}),
        ("Then mail jo@x.example, see https://y.example/a.", {"jo@x.example", "y.example"}),
        ("Die Rechnung der Müller GmbH hat Anna Weber bezahlt.", {"Müller GmbH", "Anna Weber"}),
        ("Frau Schmidt hat die neue Bestellung und die Lieferung geprüft.", {"Schmidt"}),
        ("La factura la firma Carmen Ruiz en Sevilla.", {"Carmen Ruiz", "Sevilla"}),
        ("Вчера заказы подписала Анна Петрова.", {"Анна Петрова"}),
        ("订单由王小明签署。", {"王小明"}),
        ("我们与Acme签了合同。", {"Acme"}),
        ("注文書には田中さんが署名する。", {"田中"}),
        ("株式会社アクメと契約した。", {"アクメ"}),
        ("김민수 씨가 서명합니다.", {"김민수"}),
        ("وقع السيد أحمد الطلب", {"أحمد"}),
        ("the meeting was moved to Tuesday", set()),
        ("I think that it works in March, OK?", set()),
        ("THE QUICK BROWN FOX JUMPS", set()),
        ("It took 3 days and 2x the 90s budget of Q3.", set()),
    ],
)  # fmt: skip
def test_names_are_told_by_their_form(text: str, names: set[str]) -> None:
    assert {one.name for one in settle_names(*read_names(text))} == names


def test_other_memories_tell_ordinary_words_from_names() -> None:
    found = names_of(
        "Payments stopped on Monday", "They made payments", "Marta stopped on Monday", "Marta left"
    )
    assert found == {"Marta": 2}
    found = names_of(
        "Traffic was counted", "Traffic fell", "Traffic rose", "Here comes Ann", "Ann left"
    )
    assert found == {"Ann": 2}


def test_german_nouns_are_told_from_names() -> None:
    found = names_of(
        "Anna hat den Vertrag mit Acme geprüft",
        "Der Vertrag liegt bei Anna und nicht bei der Bank",
        "Wir haben mit Acme über die Bank und das Geld gesprochen",
    )
    assert found == {"Anna": 2, "Acme": 2}


def test_a_word_that_is_mostly_ordinary_needs_its_capital() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        fill(memory, ["I ate an apple", "Apple sells phones", "an apple a day", "apple pie"])
        assert texts(memory.about("Apple")) == ["Apple sells phones"]
        assert len(memory.about("apple")) == 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Annas Büro ist in Köln", "Anna"),
        ("Herr Müller zahlt", "Mueller"),
        ("The orders of O\u2019Brien's shop", "O'Brien"),
        ("我们与王小明签了合同", "王小明"),
        ("تحدثنا مع أحمد أمس", "أحمد"),
        ("see form-12B", "Form 12b"),
    ],
)
def test_a_name_is_found_in_other_spellings(text: str, name: str) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        fill(memory, [text, "Anne Mulder met Wang"])
        assert texts(memory.about(name)) == [text]


# -- two hops --------------------------------------------------------------------------------------


def test_a_question_finds_both_ends_of_a_link() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        fill(memory, ["Ann signs the orders", "Q3 will be weak, Ann said", "Bo said Q3 looks fine"])
        asked = "What did the person who signs the orders say about Q3?"
        first, second, *_ = memory.recall(asked)
        assert {first.text, second.text} == {"Ann signs the orders", "Q3 will be weak, Ann said"}
        assert second.why["names"] > 0
        plain = store.memory("m", weights=Weights(names=0)).recall(asked)
        assert all("names" not in hit.why for hit in plain)


@pytest.mark.slow
def test_two_hop_questions_find_both_answers() -> None:
    """Of 27 labelled questions among 800 memories: both ends of 25 in the top ten, and without
    links of no more than 15."""
    told, asked = chains()
    told = memory_set.memories() + told
    found = {}
    with holdfast.open("memory://") as store:
        ids = store.memory("m").remember_many(
            [{"text": one.text, "source": one.source, "at": one.at} for one in told]
        )
        names = dict(zip(ids, [one.id for one in told], strict=True))
        for weight in (0.0, Weights().names):
            memory = store.memory("m", weights=Weights(names=weight))
            found[weight] = sum(
                set(question.answers) <= {names[hit.id] for hit in memory.recall(question.text, 10)}
                for question in asked
            )
    assert len(asked) == 27
    assert found[Weights().names] >= 25
    assert found[0.0] <= 15
