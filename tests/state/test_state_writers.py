"""State documents with several writers: nothing is lost, whoever writes or dies."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import examples
from helpers.stored.state_documents import KEY, start, stored_types
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.log import operations as ops
from holdfast.log.codec import encode
from holdfast.state import state
from holdfast.state.state import SAVED

# -- if_version, and writers that meet -------------------------------------------------------------


@pytest.mark.every_engine
def test_if_version_is_exact(store: holdfast.Store) -> None:
    doc, other = store.state("doc"), store.state("doc")
    with pytest.raises(holdfast.Conflict) as caught:
        doc.save(1, if_version=1)
    assert (caught.value.expected, caught.value.actual) == (1, 0)
    assert doc.save("a", if_version=0) == 1
    assert other.save("b", if_version=1) == 2
    for writer in (doc, other, store.state("doc")):
        for stale in (0, 1, 3):
            with pytest.raises(holdfast.Conflict) as caught:
                writer.save("c", if_version=stale)
            assert (caught.value.expected, caught.value.actual) == (stale, 2)
    assert doc.load() == "b" and doc.version() == 2
    assert doc.save("c", if_version=2) == 3, "a conflict is over once the true version is named"


def test_whoever_saves_last_wins_and_builds_on_what_is_really_there(store: holdfast.Store) -> None:
    """Each writer is out of date whenever it saves; a delta on what it last saw would give a
    mixture."""
    writers = [store.state("doc") for _ in range(3)]
    pad = {f"key {n}": "x" * 50 for n in range(20)}
    for number in range(30):
        value = {**pad, f"of writer {number % 3}": number}
        assert writers[number % 3].save(value) == number + 1
        assert store.state("doc").load() == value
    assert stored_types(store).count(SAVED) > 20
    assert [
        doc["of writer 0"]
        for doc in [writers[0].load(version=number) for number in range(1, 31, 3)]
    ] == list(range(0, 30, 3))


def test_a_save_that_meets_another_one_between_reading_and_appending_is_decided_again(
    store: holdfast.Store,
) -> None:
    doc, log = store.state("doc"), store._log
    doc.save({"a": 1, "pad": "x" * 100})
    make = store.state("doc")._prepare_save({"a": 2, "pad": "x" * 100}, None)
    first = make()
    request = next(first)
    while not isinstance(request, ops.AppendRecords):
        request = first.send(log.handle(request))
    doc.save({"a": 1, "b": [1], "pad": "x" * 100})
    with pytest.raises(holdfast.Conflict):
        log.handle(request)
    assert ops.run_until_settled(log, make).version == 3
    assert doc.load() == {"a": 2, "pad": "x" * 100}


def test_a_delta_is_never_appended_to_another_incarnation_of_the_document(
    store: holdfast.Store,
) -> None:
    """The same process deleted and recreated it, and its log knows the new incarnation, at the
    version that the old one had."""
    doc, pad = store.state("doc"), "x" * 100
    doc.save({"secret": 1, "pad": pad})
    store.state("doc").delete()
    store.state("doc").save({"other": 1, "pad": pad})
    assert doc.save({"secret": 1, "pad": pad, "n": 2}) == 2
    assert store.state("doc").load() == {"secret": 1, "pad": pad, "n": 2}


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_document_deleted_and_begun_anew_is_not_taken_for_the_old_one(
    durable_url: str, size: int
) -> None:
    """Another process recreated it: the state this one knows has the right version number, but
    belongs to another incarnation."""
    with holdfast.open(durable_url) as ours, holdfast.open(durable_url) as theirs:
        doc = ours.state("doc")
        doc.save({"secret": "x" * size, "n": 1})
        theirs.state("doc").delete()
        theirs.state("doc").save({"other": "y" * size})
        assert doc.save({"secret": "x" * size, "n": 2}) == 2
        assert theirs.state("doc").load() == {"secret": "x" * size, "n": 2}
        assert theirs.state("doc").load(version=1) == {"other": "y" * size}
        assert doc.load() == {"secret": "x" * size, "n": 2}

        theirs.state("doc").delete()
        assert doc.load("nothing") == "nothing"
        theirs.state("doc").save("anew")
        assert doc.load() == "anew"

        doc.save("and again")
        theirs.state("doc").delete()
        assert doc.save({"n": 3}) == 1, "nothing is there, so it begins anew"
        assert theirs.state("doc").load() == {"n": 3}


def test_a_writer_that_was_away_is_not_refused_for_what_it_no_longer_knows(
    durable_url: str,
) -> None:
    """Another process took the document on; whoever has read that may save upon it, also with
    `if_version`."""
    with holdfast.open(durable_url) as ours, holdfast.open(durable_url) as theirs:
        doc = ours.state("doc")
        doc.save(1)
        for number in range(2, 6):
            theirs.state("doc").save(number)
        assert doc.load() == 5
        assert doc.save(6, if_version=5) == 6
        theirs.state("doc").save(7)
        assert ours.state("doc").save(8, if_version=7) == 8
        theirs.state("doc").save(9)
        assert doc.rollback(1) == 10
        theirs.state("doc").save(11)
        doc.expire(1000)
        theirs.state("doc").save(13)
        doc.clear()
        assert theirs.state("doc").load("nothing") == "nothing" and doc.version() == 14


def test_if_version_of_a_former_incarnation_is_a_conflict(durable_url: str) -> None:
    with holdfast.open(durable_url) as ours, holdfast.open(durable_url) as theirs:
        doc = ours.state("doc")
        doc.save("decided on this")
        theirs.state("doc").delete()
        theirs.state("doc").save("something else")
        with pytest.raises(holdfast.Conflict):
            doc.save("decision", if_version=1)
        assert theirs.state("doc").load() == "something else"
        assert doc.save("decision", if_version=doc.version()) == 2, (
            "once noticed, the new incarnation is accepted as it is"
        )


@pytest.mark.parametrize(
    "new",
    [[{"new": n, "pad": "y" * 300} for n in range(3)], [f"{n}" * 9 for n in range(3)]],
    ids=["deltas", "keyframes"],
)
def test_what_is_read_while_a_document_is_deleted_and_begun_anew_is_never_a_mixture(
    store: holdfast.Store, new: list[Any]
) -> None:
    old = [{"old": n, "pad": "x" * 300} for n in range(3)]
    outcomes: set[str] = set()
    for passed in range(5):  # so many of the reader's requests are answered before
        writer = store.state("doc")
        writer.delete()
        for value in old:
            writer.save(value)
        operation = state.load_document(KEY)
        request = next(operation)
        try:
            for _ in range(passed):
                request = operation.send(store._log.handle(request))
            writer.delete()
            for value in new:
                writer.save(value)
            while True:
                request = operation.send(store._log.handle(request))
        except StopIteration as done:
            assert done.value.raw in (encode(old[2]), encode(new[2])), passed
            outcomes.add("value")
        except holdfast.Conflict:
            outcomes.add("look again")
    assert outcomes == {"value", "look again"}


@pytest.mark.slow
@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
def test_two_processes_save_at_once_and_each_save_is_a_version(durable_url: str) -> None:
    saves = examples(10)
    writers = [start(durable_url, who, saves) for who in ("one", "two")]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    saved: dict[int, Any] = {}
    for writer in writers:
        with writer:
            assert writer.stdout is not None
            output = writer.stdout.read()
        assert writer.returncode == 0
        for version, value in map(json.loads, output.splitlines()):
            assert version not in saved, "two saves with one version"
            saved[version] = value
    assert sorted(saved) == list(range(1, 2 * saves + 1))
    with holdfast.open(durable_url) as store:
        doc = store.state("doc")
        assert doc.load() == saved[2 * saves]
        for version, value in saved.items():
            assert encode(doc.load(version=version)) == encode(value)


@pytest.mark.slow
def test_saves_that_were_acknowledged_survive_kill_9(durable_url: str) -> None:
    acknowledged: dict[int, Any] = {}
    for run in range(4):
        writer = start(durable_url, f"run {run}", 10_000)
        assert writer.stdin is not None and writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("\n")
        writer.stdin.flush()
        for _ in range(15 + 7 * run):
            version, value = json.loads(writer.stdout.readline())
            acknowledged[version] = value
        os.kill(writer.pid, signal.SIGKILL)
        with writer:
            rest = writer.stdout.read()
        for line in rest.split("\n")[:-1]:  # what comes after the last newline was cut off
            version, value = json.loads(line)
            acknowledged[version] = value
        newest = max(acknowledged)
        with holdfast.open(durable_url) as store:
            doc = store.state("doc")
            assert newest <= doc.version() <= newest + 1, (
                "at most the save in flight is there besides"
            )
            assert doc.load(version=newest) == acknowledged[newest]
            assert len(doc.load()["log"]) == doc.version(), "each save built on the one before it"
    with holdfast.open(durable_url) as store:
        doc = store.state("doc")
        for version, value in acknowledged.items():
            assert encode(doc.load(version=version)) == encode(value)


def test_lost_answers_and_late_writes_leave_every_acknowledged_version_right() -> None:
    for seed in range(20):
        faulty = FaultyBackend(
            MemoryBackend(),
            seed=seed,
            lost_answer=0.1,
            lost_request=0.1,
            unavailable=0.1,
            read_unavailable=0.05,
        )
        acknowledged: dict[int, Any] = {}
        with holdfast.open(faulty) as store:
            doc, value = store.state("doc"), {"log": list[int](), "pad": "x" * 200}
            for number in range(60):
                value["log"] = [*value["log"], number]
                try:
                    acknowledged[doc.save(value)] = value.copy()
                except holdfast.Retryable:
                    pass
            assert (
                faulty.injected["lost_answer"]
                and faulty.injected["lost_request"]
                and len(acknowledged) > 20
            )
            with holdfast.open(faulty.inner) as calm:
                doc = calm.state("doc")
                assert {
                    version: doc.load(version=version) for version in acknowledged
                } == acknowledged


# -- any sequence of calls -------------------------------------------------------------------------


small = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(0, 3), st.sampled_from([0.0, 1.0, "", "text" * 20])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)

calls = st.one_of(
    st.tuples(st.just("save"), small),
    st.tuples(st.just("save"), small),
    st.tuples(st.just("rollback"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["clear", "delete", "load", "expire"]), st.none()),
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), calls), max_size=20))
def test_any_sequence_of_calls_by_two_writers_equals_a_list_of_values(
    steps: list[tuple[int, tuple[str, Any]]],
) -> None:
    with holdfast.open("memory://") as store:
        docs = [store.state("doc"), store.state("doc")]
        model: list[bytes | None] = []
        for who, (call, argument) in steps:
            doc = docs[who]
            current = model[-1] if model else None
            if call == "save":
                if encode(argument) != current:
                    model.append(encode(argument))
                assert doc.save(argument) == len(model)
            elif call == "rollback":
                if argument <= len(model) and model[argument - 1] is not None:
                    if model[argument - 1] != current:
                        model.append(model[argument - 1])
                    assert doc.rollback(argument) == len(model)
                else:
                    with pytest.raises(holdfast.NotFound):
                        doc.rollback(argument)
            elif call == "clear":
                doc.clear()
                model += [None] if current is not None else []
            elif call == "delete":
                assert doc.delete() is bool(model)
                model = []
            elif call == "expire" and model:
                doc.expire(1000)
                model.append(current)
            if call == "load":
                loaded = doc.load("nothing")
                assert encode(loaded) == (b'"nothing"' if current is None else current)
        for number, raw in enumerate(model, 1):
            if raw is not None:
                assert encode(docs[0].load(version=number)) == raw
        assert docs[0].version() == len(model)
