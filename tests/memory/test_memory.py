"""Long-term memory as users have it: what is remembered is found, once, and only by those it
belongs to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from helpers.memory.memory_both_ways import Awaited
from holdfast import MemoryHit, MemoryItem, NotFound, Store, testing
from holdfast.backends import Append
from holdfast.backends.memory import MemoryBackend
from holdfast.log.drivers import drive
from holdfast.memory import Weights
from holdfast.memory.model import Remembered

MAY = datetime(2025, 5, 7, 9, 30, tzinfo=timezone.utc)


@pytest.fixture
def memory(store: Store, asynchronous: bool) -> Awaited:
    return Awaited(store, asynchronous)


@pytest.fixture
def plain() -> Iterator[holdfast.Memory]:
    with holdfast.open("memory://") as store:
        yield store.memory("claims")


def texts(hits: list[MemoryHit] | list[MemoryItem]) -> list[str]:
    return [hit.text for hit in hits]


# -- remembering and recalling ---------------------------------------------------------------------


def test_what_was_remembered_is_recalled_with_all_that_was_said_of_it(memory: Awaited) -> None:
    memory.remember("The office closes at six")
    told = memory.remember(
        "Acme disputes need form 12B",
        tags=["acme", "forms"],
        importance=0.8,
        source="task/claims-42",
        author="user",
        at=MAY,
        subject="person-7",
        meta={"step": 3},
    )
    hit = memory.recall("How do we handle an Acme dispute?", k=1)[0]
    assert (hit.id, hit.text, hit.source, hit.at) == (
        told,
        "Acme disputes need form 12B",
        "task/claims-42",
        MAY,
    )
    assert (hit.tags, hit.importance, hit.author, hit.subject) == (
        ("acme", "forms"),
        0.8,
        "user",
        "person-7",
    )
    assert hit.meta == {"step": 3}
    assert hit.score > 0 and hit.why["words"] > 0
    got = memory.get(told)
    assert isinstance(got, MemoryItem)
    assert (got.text, got.mentions) == (hit.text, 1)


def test_several_are_remembered_together_in_order(memory: Awaited) -> None:
    ids = memory.remember_many(
        [{"text": f"Fact {number}", "meta": {"n": number}} for number in range(30)]
    )
    assert [one.id for one in memory.all()] == ids
    assert [one.meta["n"] for one in memory.all()] == list(range(30))
    assert memory.remember_many([]) == []
    assert memory.stats().memories == 30


@pytest.mark.every_engine
def test_another_store_and_a_later_one_know_what_was_remembered(
    durable_url: str, asynchronous: bool
) -> None:
    with holdfast.open(durable_url) as store, holdfast.open(durable_url) as other:
        Awaited(store, asynchronous).remember("Refunds above 500 are approved by Dana")
        assert texts(Awaited(other, asynchronous).recall("who approves refunds?")) == [
            "Refunds above 500 are approved by Dana"
        ]
        Awaited(other, asynchronous).remember("Refunds take three days")
        assert len(Awaited(store, asynchronous).recall("refunds")) == 2
    with holdfast.open(durable_url) as store:
        assert Awaited(store, asynchronous).stats().memories == 2


class Counted(MemoryBackend):
    """Counts the appends of memories."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0

    def append(self, batch: Any) -> Any:
        self.appends += sum(
            isinstance(one, Append) and one.stream.kind == "memory" for one in batch
        )
        return super().append(batch)


def test_remembering_costs_one_append_and_recalling_none(asynchronous: bool) -> None:
    backend = Counted()
    with holdfast.open(backend) as store:
        memory = Awaited(store, asynchronous)
        memory.remember("one")
        assert backend.appends == 1
        memory.remember_many([{"text": f"number {n}"} for n in range(500)])
        assert backend.appends == 2
        memory.recall("number 7")
        memory.remember("one")
        assert backend.appends == 3


def test_a_question_is_only_text(memory: Awaited) -> None:
    memory.remember('He said "NEAR" AND left: col:umn * -minus ^caret (paren')
    memory.remember("Something else entirely")
    for question in (
        '"',
        "NEAR(",
        'a AND "b',
        "col:umn",
        "x* OR",
        "-minus",
        "^caret",
        "NOT",
        "'; DROP TABLE x; --",
        "((",
    ):
        memory.recall(question)
    assert texts(memory.recall("col:umn minus caret", k=1)) == [
        'He said "NEAR" AND left: col:umn * -minus ^caret (paren'
    ]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("退款需要经理批准", "谁批准退款"),
        ("返金には課長の承認が必要です", "返金の承認は誰ですか"),
        ("การคืนเงินต้องได้รับอนุมัติจากผู้จัดการ", "ใครอนุมัติการคืนเงิน"),
        ("환불은 관리자의 승인이 필요합니다", "환불 승인"),
        ("Возврат одобряет Дана", "кто одобряет возврат"),
        ("Die Rückzahlung genehmigt Dana", "Wer genehmigt die Ruckzahlung?"),
    ],
)
def test_languages_of_all_kinds_are_found(plain: holdfast.Memory, text: str, question: str) -> None:
    plain.remember_many(
        [
            {"text": text},
            {"text": "今日は天気がいい"},
            {"text": "The weather is fine"},
            {"text": "Сегодня дождь"},
        ]
    )
    assert texts(plain.recall(question, k=1)) == [text]


def test_a_turn_is_found_by_what_was_said_just_before_it(plain: holdfast.Memory) -> None:
    turns = [
        "Mara: Where did you spend your holidays?",
        "Tom: In a small hut on the coast of Norway.",
        "Mara: Sounds cold!",
    ]
    noise = [{"text": f"Mara: Tell me about topic {n}", "source": f"chat/{n}"} for n in range(20)]
    plain.remember_many([*noise, *({"text": text, "source": "chat/x"} for text in turns)])
    hits = plain.recall("Where did Tom spend his holidays?", k=2)
    assert turns[1] in texts(hits)
    assert next(hit for hit in hits if hit.text == turns[1]).why["neighbours"] > 0
    alone = plain.recall("holidays spend", k=5, source="chat/x")
    assert {hit.source for hit in alone} == {"chat/x"}


def test_what_came_from_the_same_source_as_good_matches_is_found_before_the_rest(
    plain: holdfast.Memory,
) -> None:
    plain.remember_many(
        [
            {"text": "The import job failed on Monday", "source": "task/1"},
            {"text": "The cause was a full disk", "source": "task/1"},
            {"text": "The cause was a power cut", "source": "task/2"},
        ]
    )
    assert texts(plain.recall("cause of the import failure"))[:2] == [
        "The import job failed on Monday",
        "The cause was a full disk",
    ]


def test_a_memory_is_found_by_its_day_and_by_its_source(plain: holdfast.Memory) -> None:
    for day in range(1, 20):
        plain.remember(f"Signed off run {day * 31}", at=MAY.replace(day=day), source=f"run-{day}")
    assert texts(plain.recall("what was signed off on 7 May 2025?", k=1)) == ["Signed off run 217"]
    assert texts(plain.recall("run-9", k=1)) == ["Signed off run 279"]


def test_new_important_and_useful_ones_come_first_but_bury_nothing(plain: holdfast.Memory) -> None:
    with testing.fake_clock() as clock:
        old = plain.remember("Berta prefers tea in the morning", source="a")
        clock.advance(400 * 86400)
        plain.remember("Anton prefers tea in the morning", source="b")
        assert texts(plain.recall("prefers tea in the morning", k=1)) == [
            "Anton prefers tea in the morning"
        ]
        for _ in range(5):
            plain.feedback(old, useful=True)
        assert texts(plain.recall("prefers tea in the morning", k=1)) == [
            "Berta prefers tea in the morning"
        ]
        clock.advance(400 * 86400)
        assert texts(plain.recall("prefers tea in the morning", k=1)) == [
            "Anton prefers tea in the morning"
        ], "it fades"
        weak = plain.remember("Tea is also sold on Mondays", importance=1.0)
        for _ in range(5):
            plain.feedback(weak, useful=True)
        assert texts(plain.recall("Anton prefers tea in the morning", k=1)) == [
            "Anton prefers tea in the morning"
        ]


def test_a_memory_that_was_of_no_use_comes_later(memory: Awaited) -> None:
    first = memory.remember("Anton restarts the queue", at=MAY)
    memory.remember("Berta restarts the queue", at=MAY - timedelta(days=400))
    assert memory.recall("who restarts the queue", k=1)[0].id == first
    for _ in range(4):
        memory.feedback(first, useful=False)
    assert memory.recall("who restarts the queue", k=1)[0].id != first


# -- filters ---------------------------------------------------------------------------------------


def test_only_what_is_asked_for_is_recalled_and_listed(memory: Awaited) -> None:
    memory.remember_many(
        [
            {"text": "Tea one", "tags": ["a", "b"], "source": "s1", "author": "user", "at": MAY},
            {
                "text": "Tea two",
                "tags": ["a"],
                "source": "s2",
                "author": "model",
                "at": MAY + timedelta(days=1),
            },
            {"text": "Tea three", "source": "s1", "author": "tool", "at": MAY + timedelta(days=2)},
        ]
    )

    def found(**where: Any) -> set[str]:
        return {text.split()[1] for text in texts(memory.recall("tea", k=10, **where))}

    assert found() == {"one", "two", "three"}
    assert found(tags=["a"]) == {"one", "two"}
    assert found(tags=["a", "b"]) == {"one"}
    assert found(source="s1") == {"one", "three"}
    assert found(author="model") == {"two"}
    assert found(since=MAY + timedelta(days=1)) == {"two", "three"}
    assert found(until=MAY.timestamp()) == {"one"}
    assert found(since=MAY, until=MAY + timedelta(days=1), author="model") == {"two"}
    assert texts(memory.all(source="s1", tags=["a"])) == ["Tea one"]


@pytest.mark.slow
def test_a_narrow_filter_finds_its_one_among_many_better_matches(plain: holdfast.Memory) -> None:
    plain.remember_many([{"text": f"tea tea number {n}", "source": "many"} for n in range(1500)])
    wanted = plain.remember(
        "Somebody once mentioned tea in a very long sentence about other things", source="one"
    )
    assert [hit.id for hit in plain.recall("tea", source="one")] == [wanted]


def test_a_score_and_a_budget_cut_the_list(memory: Awaited) -> None:
    memory.remember_many(
        [
            {"text": "Green tea from Japan"},
            {"text": "Black tea"},
            {"text": "Coffee " + "x" * 4000 + " tea"},
        ]
    )
    everything = memory.recall("green tea from Japan", k=10, min_score=0)
    assert len(everything) == 3
    assert texts(
        memory.recall("green tea from Japan", k=10, min_score=everything[0].score * 0.99)
    ) == ["Green tea from Japan"]
    assert texts(memory.recall("tea", k=10, max_tokens=60)) != texts(memory.recall("tea", k=10))
    assert all(len(text) < 100 for text in texts(memory.recall("tea", k=10, max_tokens=60)))
    assert memory.recall("tea", k=10, max_tokens=1) == []
    assert memory.recall("tea", k=0) == []
    assert memory.recall("zebra", k=5) == []


# -- known already ---------------------------------------------------------------------------------


def test_what_is_known_is_reinforced_and_keeps_its_id(memory: Awaited) -> None:
    first = memory.remember("Acme disputes need form 12B", tags=["acme"], importance=0.4)
    again = memory.remember(
        "  acme disputes NEED form 12B. ", tags=["forms"], importance=0.9, meta={"a": 1}
    )
    assert again == first
    [known] = memory.all()
    assert (known.text, known.mentions) == ("Acme disputes need form 12B", 2)
    assert (known.tags, known.importance, known.meta) == (("acme", "forms"), 0.9, {"a": 1})
    assert memory.remember("Acme disputes need form 13B") != first
    assert memory.remember("Acme disputes do not need form 12B") != first
    assert memory.stats().memories == 3


def test_in_one_go_too_what_is_said_twice_is_one(memory: Awaited) -> None:
    ids = memory.remember_many(
        [{"text": "Paris is sunny"}, {"text": "paris is sunny!"}, {"text": "Rome is sunny"}]
    )
    assert ids[0] == ids[1] != ids[2]
    assert texts(memory.all()) == ["Paris is sunny", "Rome is sunny"]


def test_two_stores_that_say_the_same_mean_one_memory(asynchronous: bool) -> None:
    with holdfast.open("memory://twins") as one, holdfast.open("memory://twins") as other:
        first = Awaited(one, asynchronous).remember("Paris is sunny")
        assert Awaited(other, asynchronous).remember("paris is sunny.") == first
        assert Awaited(one, asynchronous).stats().memories == 1
        assert Awaited(one, asynchronous).delete()


def test_the_same_words_about_two_people_or_of_two_days_are_two_memories(memory: Awaited) -> None:
    memory.remember("Likes tea", subject="person-1")
    memory.remember("Likes tea", subject="person-2")
    memory.remember("Went to the market today", at=MAY, source="chat/1")
    memory.remember("Went to the market today", at=MAY + timedelta(days=30), source="chat/2")
    assert memory.stats().memories == 4
    memory.remember("Went to the market today", at=MAY, source="chat/3")
    assert memory.stats().memories == 4


def test_many_threads_that_say_the_same_leave_one_memory(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        ids: list[str] = []

        def say() -> None:
            for number in range(5):
                ids.append(
                    store.memory("m").remember(f"Fact {number} is known", meta={"n": number})
                )

        threads = [threading.Thread(target=say) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kept = list(store.memory("m").all())
        assert sorted(text for text in texts(kept)) == [
            f"Fact {number} is known" for number in range(5)
        ]
        assert {one.mentions for one in kept} == {8}
        assert set(ids) == {one.id for one in kept}


# -- changing one's mind ---------------------------------------------------------------------------


def test_a_memory_that_is_superseded_is_no_longer_recalled(memory: Awaited) -> None:
    old = memory.remember("The limit is 500", tags=["limits"], source="task/1", importance=0.9)
    new = memory.supersede(old, "The limit is 800", importance=0.7)
    [kept] = memory.all()
    assert (kept.id, kept.text, kept.tags, kept.source, kept.importance) == (
        new,
        "The limit is 800",
        ("limits",),
        "task/1",
        0.7,
    )
    assert memory.get(old) is None
    assert texts(memory.recall("limit 500")) == ["The limit is 800"]
    with pytest.raises(NotFound):
        memory.supersede(old, "The limit is 900")
    with pytest.raises(NotFound):
        memory.feedback(old, useful=True)


def test_a_correction_dates_from_now_unless_it_is_given_another_time(memory: Awaited) -> None:
    long_ago, today = time.time() - 90 * 86400, time.time() - 3600
    old = memory.remember("The limit is 500", at=long_ago)
    new = memory.supersede(old, "The limit is 800")
    assert texts(memory.recall("limit", since=today)) == ["The limit is 800"]
    kept = memory.get(new)
    assert kept.at == kept.first_at and kept.at.timestamp() > today
    backdated = memory.get(memory.supersede(new, "The limit is 900", at=long_ago))
    assert backdated.at.timestamp() == pytest.approx(long_ago)
    assert memory.recall("limit", since=today) == []


def test_what_is_forgotten_is_gone_and_can_be_learned_again(memory: Awaited) -> None:
    told = memory.remember("The door code is 4711")
    assert memory.forget(told) is True
    assert memory.forget(told) is False
    assert memory.recall("door code") == []
    again = memory.remember("The door code is 4711")
    assert again != told
    assert memory.get(again).mentions == 1


def test_many_are_forgotten_at_once(memory: Awaited) -> None:
    memory.remember_many(
        [
            {"text": "one", "source": "task/1", "at": MAY},
            {"text": "two", "source": "task/1"},
            {"text": "three", "source": "task/2", "tags": ["x"], "subject": "p"},
        ]
    )
    assert memory.forget_where(source="task/1", older_than=timedelta(days=1)) == 1
    assert texts(memory.all()) == ["two", "three"]
    assert memory.forget_where(subject="p", tags=["x"]) == 1
    assert memory.forget_where(source="nowhere") == 0
    assert texts(memory.all()) == ["two"]
    with pytest.raises(ValueError, match="at least one filter"):
        memory.forget_where()


def test_a_memory_with_a_time_to_live_goes_by_itself(plain: holdfast.Memory) -> None:
    with testing.fake_clock() as clock:
        told = plain.remember("The lift is broken", ttl=60)
        plain.remember("The lift is on the left")
        assert len(plain.recall("lift")) == 2
        clock.advance(61)
        assert texts(plain.recall("lift")) == ["The lift is on the left"]
        assert plain.get(told) is None
        assert plain.stats().memories == 1
        assert plain.remember("The lift is broken", ttl=60) != told, (
            "what has expired is not known any more"
        )
        plain.remember("The lift is broken")
        clock.advance(3600)
        assert len(plain.recall("lift")) == 2, "said again without an end, it stays"


def test_a_namespace_that_is_deleted_begins_anew(memory: Awaited) -> None:
    memory.remember("The old world")
    assert memory.delete() is True
    assert memory.delete() is False
    assert memory.recall("world") == []
    assert memory.stats().memories == 0
    memory.remember("The new world")
    assert texts(memory.recall("world")) == ["The new world"]


def test_nothing_of_a_deleted_namespace_is_left_in_the_file(
    tmp_path: Path, asynchronous: bool
) -> None:
    with holdfast.open(tmp_path / "agents.db") as store:
        memory = Awaited(store, asynchronous)
        memory.remember("The word is xylophone")
        assert memory.recall("xylophone")
        memory.delete()
        connection = apsw.Connection(str(tmp_path / "agents.db"))
        assert connection.execute("SELECT count(*) FROM memory_docs").fetchall() == [(0,)]
        connection.close()


def test_the_index_can_be_made_anew(memory: Awaited) -> None:
    ids = memory.remember_many([{"text": f"Fact number {n} of {n % 7}"} for n in range(50)])
    memory.forget(ids[3])
    memory.supersede(ids[4], "Something new")
    memory.remember("fact number 7 of 0!")
    before = memory.all()
    memory.rebuild()
    assert memory.all() == before
    assert [one.mentions for one in before if one.id == ids[7]] == [2]


# -- kept apart ------------------------------------------------------------------------------------


def test_namespaces_and_tenants_never_see_each_other(store: Store, asynchronous: bool) -> None:
    secret = "The merger with Globex closes on Friday"
    others = [
        Awaited(store, asynchronous, "board"),
        Awaited(store.for_tenant("globex"), asynchronous, "claims"),
        Awaited(store, asynchronous, "claims2"),
    ]
    for other in others:
        other.remember_many([{"text": secret}, *({"text": f"{secret} {n}"} for n in range(30))])
    mine = Awaited(store, asynchronous, "claims")
    assert mine.recall(secret) == []
    mine.remember("Lunch is on Friday")
    assert texts(mine.recall(secret, k=50, min_score=0)) == ["Lunch is on Friday"]
    assert mine.stats().memories == 1
    assert mine.get(others[0].all()[0].id) is None
    assert mine.forget(others[1].all()[0].id) is False
    score = mine.recall(secret, min_score=0)[0].score
    others[0].forget_where(older_than=0)
    assert mine.recall(secret, min_score=0)[0].score == pytest.approx(score, rel=1e-3), (
        "nor how much others have"
    )


def test_namespaces_are_listed(store: Store) -> None:
    for name in ("b", "a"):
        store.memory(name).remember("x")
    assert [info.namespace for info in store.memory_namespaces()] == ["a", "b"]

    async def listed() -> list[str]:
        return [info.namespace async for info in store.aio.memory_namespaces()]

    assert asyncio.run(listed()) == ["a", "b"]


# -- arguments -------------------------------------------------------------------------------------


NO_TIMES = (
    float("nan"),
    float("inf"),
    -9e10,
    10**400,
    datetime.max.replace(tzinfo=timezone.utc),
    datetime(2025, 5, 7, 9, 30),  # without its zone
)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: m.remember(""), ValueError),
        (lambda m: m.remember("  \n"), ValueError),
        (lambda m: m.remember(7), TypeError),
        (lambda m: m.remember("x" * 100_001), ValueError),
        (lambda m: m.remember("x", tags="acme"), TypeError),
        (lambda m: m.remember("x", importance=1.1), ValueError),
        (lambda m: m.remember("x", importance=float("nan")), ValueError),
        (lambda m: m.remember("x", source=7), TypeError),
        (lambda m: m.remember("x", at="today"), ValueError),
        (lambda m: m.remember("x", ttl=-1), ValueError),
        (lambda m: m.remember("x", meta=[1]), TypeError),
        (lambda m: m.remember("x", meta={"a": object()}), holdfast.errors.NotSerializable),
        (lambda m: m.remember_many([{"txt": "x"}]), TypeError),
        (lambda m: m.remember_many([{"text": "x", "colour": "red"}]), TypeError),
        (lambda m: m.remember_many(["x"]), TypeError),
        (lambda m: m.remember("half a \ud800 character"), holdfast.errors.NotSerializable),
        (lambda m: m.remember("x", tags=["\ud800"]), ValueError),
        (lambda m: m.remember("x", meta={"a": "x" * 70_000}), holdfast.errors.TooLarge),
        *((lambda m, at=at: m.remember("x", at=at), ValueError) for at in NO_TIMES),
        (lambda m: m.recall(7), TypeError),
        (lambda m: m.recall("x" * 100_001), ValueError),
        (lambda m: m.recall("x", k=-1), ValueError),
        (lambda m: m.recall("x", min_score=float("nan")), ValueError),
        (lambda m: m.recall("x", min_score=None), ValueError),
        (lambda m: m.recall("x", since="today"), ValueError),
        (lambda m: m.recall("x", since=float("nan")), ValueError),
        (lambda m: m.recall("x", until=datetime(2025, 5, 7)), ValueError),  # without its zone
        (lambda m: m.recall("x", max_tokens=-1), ValueError),
        (lambda m: m.supersede("nothing", "x"), NotFound),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    asynchronous: bool, call: Callable[[Any], Any], error: type[Exception]
) -> None:
    backend = Counted()
    with holdfast.open(backend) as store:
        with pytest.raises(error):
            call(Awaited(store, asynchronous))
        assert backend.appends == 0


@pytest.mark.parametrize(
    "at",
    [
        datetime.min.replace(tzinfo=timezone.utc),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
    ],
)
def test_any_time_that_a_datetime_can_be_is_remembered(at: datetime) -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("m")
        assert memory.get(memory.remember("once upon a time", at=at)).at == at  # type: ignore[union-attr]
        assert memory.stats().oldest == at and texts(memory.recall("time")) == ["once upon a time"]


def test_a_time_that_no_datetime_can_be_does_not_hide_the_other_memories(store: Store) -> None:
    """Whoever wrote it: another release, or another program."""
    memory = store.memory("m")
    memory.remember("a good fact")
    for at in (-9e10, 9e12):
        strange = Remembered("a fact of another time", at=at, expires_at=9e12)
        drive(memory._log, memory._remember_gen([strange]))
    assert sorted(texts(memory.recall("fact"))) == sorted(texts(list(memory.all())))
    assert len(list(memory.all())) == 3
    assert [one.at.year for one in memory.all()][1:] == [1, 9999] and memory.stats().memories == 3


def test_a_limit_that_no_memory_can_reach_is_none(store: Store) -> None:
    store.memory("m").remember("a good fact")
    everything = {"since": float("-inf"), "until": datetime.max.replace(tzinfo=timezone.utc)}
    assert texts(store.memory("m").recall("fact", **everything)) == ["a good fact"]  # type: ignore[arg-type]
    assert store.memory("m").recall("fact", since=2, until=1) == []


def test_a_time_of_any_zone_is_that_time(store: Store) -> None:
    far = timezone(timedelta(hours=9))
    store.memory("m").remember("a good fact", at=MAY)
    for hours, count in ((1, 0), (-1, 1)):
        since = (MAY + timedelta(hours=hours)).astimezone(far)
        assert len(store.memory("m").recall("fact", since=since)) == count


@pytest.mark.parametrize("query", ["", "  \n", "?!", "of the", "half a \ud800 character"])
def test_a_question_without_words_finds_nothing(asynchronous: bool, query: str) -> None:
    with holdfast.open("memory://") as store:
        store.memory("claims").remember("a good fact")
        assert Awaited(store, asynchronous).recall(query) == []


def test_a_source_may_be_a_task_or_a_conversation(store: Store) -> None:
    with store.task("t", goal="g") as task:
        store.memory("m").remember("from a task", source=task)
    store.memory("m").remember("from a chat", source=store.conversation("c"))
    assert [one.source for one in store.memory("m").all()] == ["task/t", "conversation/c"]
    assert texts(list(store.memory("m").all(source=store.conversation("c")))) == ["from a chat"]


def test_weights_say_what_counts() -> None:
    with holdfast.open("memory://") as store:
        with pytest.raises(TypeError):
            store.memory("x", weights={"source": 1})  # type: ignore[arg-type]
        store.memory("m").remember_many(
            [
                {"text": "Where is the key?", "source": "s"},
                {"text": "Under the mat.", "source": "s"},
            ]
        )
        alone = store.memory("m", weights=Weights(neighbour=0.0, source=0.0))
        assert texts(alone.recall("where is the key")) == ["Where is the key?"]
        assert len(store.memory("m").recall("where is the key")) == 2
