"""State documents on every backend: exact values, every version, little stored, and nothing lost whoever writes or dies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import AsyncState, State, _state
from holdfast import _operations as ops
from holdfast._codec import MAX_DEPTH, encode
from holdfast._delta import diff
from holdfast._events import NewEvent
from holdfast._log import Log
from holdfast._state import CLEARED, EXPIRES, KEYFRAME, SAVED, Fold, Known, next_event
from holdfast._streams import append_events, new_stamp
from holdfast.backends import Backend, StreamKey
from holdfast.backends.faulty import FaultyBackend
from holdfast.backends.memory import MemoryBackend

KEY = StreamKey("default", "state", "doc")


def message(number: int, size: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number} ".ljust(size - 30, "x")}


def stored_types(store: holdfast.Store) -> list[str]:
    return [stored.envelope.type for stored in ops.run(store._log, ops.read(KEY))]


def bodies(backend: Backend, key: StreamKey) -> list[bytes]:
    found: list[bytes] = []
    while page := backend.read(key, after=len(found)):
        found += [record.body for record in page]
    return found


def stored_bytes(store: holdfast.Store) -> int:
    """Everything that is stored for this tenant's documents, large values included."""
    backend = store._log.backend
    streams = [head.stream for kind in ("state", "blob") for head in backend.heads(tenant="default", kind=kind)]
    return sum(len(body) for key in streams for body in bodies(backend, key))


class Watched:
    """A log that remembers what it was asked for."""

    def __init__(self, log: Log) -> None:
        self.log, self.asked = log, list[str]()

    def handle(self, request: ops.Request) -> Any:
        self.asked.append(type(request).__name__)
        return self.log.handle(request)

    def redacted(self, raw: bytes, declared: Any) -> bytes:
        return self.log.redacted(raw, declared)


def watched(store: holdfast.Store) -> tuple[State, list[str]]:
    log = Watched(store._log)
    return State(cast(Log, log), KEY, Any), log.asked


# -- saving and loading ----------------------------------------------------------------------------


def test_what_is_saved_is_loaded_with_its_types_and_the_order_of_its_keys(store: holdfast.Store) -> None:
    doc = store.state("doc")
    saved: list[Any] = [
        {"b": 1, "a": [1.0, True, None, "é😀"], "": {}},
        {"b": True, "a": [1, True, None, "é😀"], "": {}},
        {"": {}, "a": [1, True, None, "é😀"], "b": True},
        {"": {}, "a": [1, True, -0.0, "é😀"], "b": True, "new": [[]]},
        None,
        [],
        "text",
    ]
    for number, value in enumerate(saved, 1):
        assert doc.save(value) == number
        for reader in (doc, store.state("doc")):
            assert encode(reader.load("nothing")) == encode(value)
    assert [encode(doc.at(number)) for number in range(1, 8)] == [encode(value) for value in saved]
    assert doc.version() == 7 and doc.id == "doc" and repr(doc) == "<State 'doc'>"


def test_a_document_that_was_never_saved_is_its_default(store: holdfast.Store) -> None:
    doc = store.state("doc")
    assert (doc.load(), doc.load([]), doc.version(), doc.history(), doc.delete()) == (None, [], 0, [], False)
    doc.clear()
    assert doc.version() == 0 and store.health().streams == {}
    for call in (lambda: doc.at(1), lambda: doc.rollback(1), lambda: doc.expire(5)):
        with pytest.raises(holdfast.NotFound):
            call()


def test_what_is_done_to_a_value_after_saving_or_loading_it_does_not_matter(store: holdfast.Store) -> None:
    doc = store.state("doc")
    value = {"messages": [{"content": "x" * 200}]}
    doc.save(value)
    value["messages"].append({"content": "not saved"})
    loaded = doc.load()
    loaded["messages"][0]["content"] = "changed"
    assert doc.load() == {"messages": [{"content": "x" * 200}]}
    doc.save(loaded)
    assert store.state("doc").load() == {"messages": [{"content": "changed"}]}


def test_an_equal_value_writes_nothing(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"a": 1})
    doc.save({"a": 1, "b": 2})
    for same in (doc, store.state("doc")):
        assert same.save({"a": 1, "b": 2}) == 2
        assert same.save({"a": 1, "b": 2}, if_version=2) == 2
    assert doc.version() == 2
    assert doc.save({"a": 1.0, "b": 2}) == 3, "1.0 is another value than 1"


def test_an_equal_value_is_written_if_somebody_else_saved_meanwhile(store: holdfast.Store) -> None:
    doc, other = store.state("doc"), store.state("doc")
    doc.save("mine")
    other.save("theirs")
    assert doc.save("mine") == 3
    assert other.load() == "mine"


def test_a_value_that_cannot_be_stored_leaves_nothing_behind(store: holdfast.Store) -> None:
    doc = store.state("doc")
    with pytest.raises(holdfast.NotSerializable, match=r"\$\.when"):
        doc.save({"when": object()})
    with pytest.raises(holdfast.TooLarge):
        doc.save("x" * 17_000_000)
    with pytest.raises(ValueError, match="whole number"):
        doc.save(1, if_version=-1)
    assert doc.version() == 0 and store.health().streams == {}
    doc.save([1])
    with pytest.raises(holdfast.NotSerializable):
        doc.save([1, {2}])
    assert doc.load() == [1]


def test_a_save_on_what_is_known_is_one_append_and_nothing_else(store: holdfast.Store) -> None:
    doc, asked = watched(store)
    doc.save({"n": 0, "pad": "x" * 500})
    asked.clear()
    for number in range(1, 4):
        doc.save({"n": number, "pad": "x" * 500})
    assert asked == ["Append"] * 3
    asked.clear()
    assert doc.load()["n"] == 3 and asked == ["GetHead"]
    store.state("doc").save({"n": 4, "pad": "x" * 500})
    asked.clear()
    assert doc.load()["n"] == 4 and asked == ["GetHead", "Read", "GetHead"], "only what is new is read"


def test_creating_a_document_does_nothing_until_it_is_used(store: holdfast.Store) -> None:
    doc, asked = watched(store)
    assert asked == [] and doc.id == "doc"
    with pytest.raises(holdfast.InvalidId):
        store.state("")
    with pytest.raises(TypeError, match="cannot be stored"):
        store.state("doc", type=object.__new__)


def test_documents_are_listed_and_tenants_have_their_own(store: holdfast.Store) -> None:
    for name in ("b", "a"):
        store.state(name).save(name)
    store.for_tenant("acme").state("a").save("of acme")
    store.stream("c").append(("n", 1))
    assert list(store.states()) == [holdfast.StreamInfo("a", 1), holdfast.StreamInfo("b", 1)]
    assert store.state("a").load() == "a"

    async def listed() -> list[str]:
        return [info.id async for info in store.aio.states()]

    assert asyncio.run(listed()) == ["a", "b"]


# -- versions --------------------------------------------------------------------------------------


def test_history_tells_when_who_and_how_large(store: holdfast.Store) -> None:
    doc = store.state("doc")
    with holdfast.correlate("req-1", actor="planner"):
        doc.save({"a": "x" * 1000})
    doc.save({"a": "x" * 1000, "b": 1})
    doc.expire(3600)
    doc.clear()
    doc.save({"a": "x" * 1000})
    doc.save({"a": "x" * 200_000})
    first, *_ = history = doc.history()
    assert (first.version, first.by, first.correlation) == (1, "planner", "req-1")
    assert first.at.tzinfo is not None and abs(first.at.timestamp() - first.time) < 1e-5
    assert [(entry.version, entry.size) for entry in history] == [
        (1, 1008),
        (2, 1014),
        (4, 0),
        (5, 1008),
        (6, 200_008),
    ]
    assert history[1].by is None and [entry.time for entry in history] == sorted(entry.time for entry in history)


def test_history_does_not_load_large_values(store: holdfast.Store) -> None:
    store.state("doc").save({"big": "x" * 100_000})
    doc, asked = watched(store)
    assert [entry.size for entry in doc.history()] == [100_010]
    assert "ReadRecords" not in asked


def test_rolling_back_is_a_new_version_with_the_old_value(store: holdfast.Store) -> None:
    doc = store.state("doc")
    values = [{"n": number, "messages": [message(n, 100) for n in range(number)]} for number in range(1, 6)]
    for value in values:
        doc.save(value)
    assert doc.rollback(2) == 6
    assert doc.load() == values[1] == store.state("doc").load()
    assert [doc.at(number) for number in range(1, 7)] == [*values, values[1]]
    assert doc.rollback(2) == 6, "it has that value already"
    assert doc.save(values[4]) == 7
    for nothing in (0, 8, 100):
        with pytest.raises(holdfast.NotFound, match="history"):
            doc.rollback(nothing)
        with pytest.raises(holdfast.NotFound):
            doc.at(nothing)
    with pytest.raises(ValueError, match="whole number"):
        doc.at(-1)


def test_a_cleared_document_has_no_value_and_keeps_its_versions(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"a": 1})
    doc.clear()
    doc.clear()
    assert (doc.load("nothing"), doc.version()) == ("nothing", 2)
    for call in (doc.at, doc.rollback):
        with pytest.raises(holdfast.NotFound, match="cleared"):
            call(2)
    with pytest.raises(holdfast.Conflict):
        doc.save(1, if_version=0)
    assert doc.save({"a": 2}, if_version=2) == 3
    assert doc.rollback(1) == 4 and store.state("doc").load() == {"a": 1}


def test_a_deleted_document_is_gone_with_its_versions_and_its_large_values(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"big": "x" * 100_000})
    doc.save({"big": "x" * 100_000, "more": "y" * 100_000})
    assert store.health().streams == {"state": 1, "blob": 2}
    assert doc.delete(reason="test") is True
    assert store.health().streams == {"audit": 1}
    assert (doc.load("nothing"), doc.history(), doc.version()) == ("nothing", [], 0)
    assert doc.save({"new": 1}, if_version=0) == 1
    assert store.state("doc").load() == {"new": 1}


# -- if_version, and writers that meet -------------------------------------------------------------


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
    """Each writer is out of date whenever it saves; a delta on what it last saw would give a mixture."""
    writers = [store.state("doc") for _ in range(3)]
    pad = {f"key {n}": "x" * 50 for n in range(20)}
    for number in range(30):
        value = {**pad, f"of writer {number % 3}": number}
        assert writers[number % 3].save(value) == number + 1
        assert store.state("doc").load() == value
    assert stored_types(store).count(SAVED) > 20
    assert [doc["of writer 0"] for doc in map(writers[0].at, range(1, 31, 3))] == list(range(0, 30, 3))


def test_a_save_that_meets_another_one_between_reading_and_appending_is_decided_again(store: holdfast.Store) -> None:
    doc, log = store.state("doc"), store._log
    doc.save({"a": 1, "pad": "x" * 100})
    make = store.state("doc")._saving({"a": 2, "pad": "x" * 100}, None)
    first = make()
    request = next(first)
    while not isinstance(request, ops.Append):
        request = first.send(log.handle(request))
    doc.save({"a": 1, "b": [1], "pad": "x" * 100})
    with pytest.raises(holdfast.Conflict):
        log.handle(request)
    assert ops.run_until_settled(log, make).version == 3
    assert doc.load() == {"a": 2, "pad": "x" * 100}


def test_a_delta_is_never_appended_to_another_life_of_the_document(store: holdfast.Store) -> None:
    """Deleted and begun anew by the same process, whose log knows the new life, at the version that the old one had."""
    doc, pad = store.state("doc"), "x" * 100
    doc.save({"secret": 1, "pad": pad})
    store.state("doc").delete()
    store.state("doc").save({"other": 1, "pad": pad})
    assert doc.save({"secret": 1, "pad": pad, "n": 2}) == 2
    assert store.state("doc").load() == {"secret": 1, "pad": pad, "n": 2}


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_document_deleted_and_begun_anew_is_not_taken_for_the_old_one(durable_url: str, size: int) -> None:
    """By another process: what this one knows has the right version number, and belongs to another life."""
    with holdfast.open(durable_url) as ours, holdfast.open(durable_url) as theirs:
        doc = ours.state("doc")
        doc.save({"secret": "x" * size, "n": 1})
        theirs.state("doc").delete()
        theirs.state("doc").save({"other": "y" * size})
        assert doc.save({"secret": "x" * size, "n": 2}) == 2
        assert theirs.state("doc").load() == {"secret": "x" * size, "n": 2}
        assert theirs.state("doc").at(1) == {"other": "y" * size}
        assert doc.load() == {"secret": "x" * size, "n": 2}

        theirs.state("doc").delete()
        assert doc.load("nothing") == "nothing"
        theirs.state("doc").save("anew")
        assert doc.load() == "anew"

        doc.save("and again")
        theirs.state("doc").delete()
        assert doc.save({"n": 3}) == 1, "nothing is there, so it begins anew"
        assert theirs.state("doc").load() == {"n": 3}


def test_a_writer_that_was_away_is_not_refused_for_what_it_no_longer_knows(durable_url: str) -> None:
    """Another process took the document on; whoever has read that may save upon it, also with `if_version`."""
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


def test_if_version_of_a_former_life_is_a_conflict(durable_url: str) -> None:
    with holdfast.open(durable_url) as ours, holdfast.open(durable_url) as theirs:
        doc = ours.state("doc")
        doc.save("decided on this")
        theirs.state("doc").delete()
        theirs.state("doc").save("something else")
        with pytest.raises(holdfast.Conflict):
            doc.save("decision", if_version=1)
        assert theirs.state("doc").load() == "something else"
        assert doc.save("decision", if_version=doc.version()) == 2, "once noticed, the new life is taken as it is"


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
        operation = _state.find(KEY)
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


WRITER = """
import json, sys, holdfast
url, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with holdfast.open(url) as store:
    doc = store.state("doc")
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(count):
        value = doc.load({"log": []})
        value["log"].append([who, number, "x" * 100])
        value["last"] = [who, number]
        print(json.dumps([doc.save(value), value]), flush=True)
"""


def start(url: str, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, who, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_two_processes_save_at_once_and_each_save_is_a_version(durable_url: str) -> None:
    writers = [start(durable_url, who, 40) for who in ("one", "two")]
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
    assert sorted(saved) == list(range(1, 81))
    with holdfast.open(durable_url) as store:
        doc = store.state("doc")
        assert doc.load() == saved[80]
        for version, value in saved.items():
            assert encode(doc.at(version)) == encode(value)


def test_saves_that_were_acknowledged_survive_kill_9(durable_url: str) -> None:
    acknowledged: dict[int, Any] = {}
    for life in range(4):
        writer = start(durable_url, f"life {life}", 10_000)
        assert writer.stdin is not None and writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        writer.stdin.write("\n")
        writer.stdin.flush()
        for _ in range(15 + 7 * life):
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
            assert newest <= doc.version() <= newest + 1, "at most the save in flight is there besides"
            assert doc.at(newest) == acknowledged[newest]
            assert len(doc.load()["log"]) == doc.version(), "each save built on the one before it"
    with holdfast.open(durable_url) as store:
        doc = store.state("doc")
        for version, value in acknowledged.items():
            assert encode(doc.at(version)) == encode(value)


def test_lost_answers_and_late_writes_leave_every_acknowledged_version_right() -> None:
    for seed in range(20):
        faulty = FaultyBackend(
            MemoryBackend(), seed=seed, lost_answer=0.1, lost_request=0.1, unavailable=0.1, read_unavailable=0.05
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
            assert faulty.injected["lost_answer"] and faulty.injected["lost_request"] and len(acknowledged) > 20
            with holdfast.open(faulty.inner) as calm:
                doc = calm.state("doc")
                assert {version: doc.at(version) for version in acknowledged} == acknowledged


# -- what is stored --------------------------------------------------------------------------------


@pytest.mark.many_writes
@pytest.mark.parametrize(("count", "size"), [(2_000, 300), (600, 1_500), (200, 20_000)])
def test_a_document_that_grows_by_one_message_is_stored_in_less_than_three_times_its_size(
    url: str, count: int, size: int
) -> None:
    document: dict[str, Any] = {"type": "AssistantAgentState", "messages": []}
    with holdfast.open(url) if url == "memory://" else holdfast.open(url, durability="process") as store:
        doc = store.state("doc")
        for number in range(count):
            document["messages"].append(message(number, size))
            doc.save(document)
        assert doc.version() == count
        assert stored_bytes(store) <= 3.0 * len(encode(document))
        assert store.state("doc").load() == document


def test_the_total_stays_below_three_times_the_size_at_every_moment_and_for_messages_of_all_sizes() -> None:
    chance = random.Random(7)
    document: dict[str, Any] = {"agents": {"a": {"messages": []}, "b": {"messages": []}}, "turn": 0}
    known, total, sizes = None, 0, []
    for number in range(1_500):
        size = int(min(40_000, chance.lognormvariate(6, 1.2))) + 40
        document["agents"][chance.choice("ab")]["messages"].append(message(number, size))
        document["turn"] = number
        known, written = saved_purely(known, encode(document))
        total += written
        sizes.append(len(encode(document)))
        if sizes[-1] > 5_000:
            assert total <= 3.0 * sizes[-1], number
    assert sizes[-1] > 1_000_000


def saved_purely(known: Known | None, raw: bytes) -> tuple[Known, int]:
    """A save without a store: what is known after it, and how many bytes it takes."""
    event, fold = next_event(known, raw)
    version = known.version + 1 if known else 1
    return Known(b"life", version, raw, fold), len(event.data) + _state.RECORD_BYTES


edits = st.sampled_from(["change", "append", "drop", "grow", "shrink", "replace"])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(edits, min_size=1, max_size=8), st.sampled_from([0, 5, 200]))
def test_whatever_is_saved_a_load_reads_little_and_keyframes_add_little(
    seed: int, kinds: list[str], start: int
) -> None:
    """The two promises of the rule for keyframes, for any pattern of edits that goes on for a while."""
    chance = random.Random(seed)
    document: dict[str, Any] = {"list": [message(n, chance.randrange(40, 300)) for n in range(start)], "n": 0}
    known, first = saved_purely(None, encode(document))
    total = alone = since = 0
    for number in range(300):
        _edit(document, chance.choice(kinds), number, chance)
        raw = encode(document)
        if raw == known.raw:
            continue
        before = known
        known, written = saved_purely(known, raw)
        assert before.raw is not None
        alone += min(len(diff(before.raw, raw)), len(raw)) + _state.RECORD_BYTES
        total += written
        since = written if known.fold.base == known.version else since + written if since else first + written
        assert since == known.fold.read
        assert since <= _state.READ_RATIO * (len(raw) + _state.RECORD_BYTES)
    assert total <= 1.5 * alone + first


def _edit(document: dict[str, Any], kind: str, number: int, chance: random.Random) -> None:
    items = document["list"]
    document["n"] = number
    if kind == "change" and items:
        chance.choice(items)["content"] = f"changed {number}"
    elif kind == "append":
        items.append(message(number, chance.randrange(40, 2_000)))
    elif kind == "drop" and items:
        items.pop(chance.randrange(len(items)))
    elif kind == "grow":
        items += [message(number, 100)] * chance.randrange(20)
    elif kind == "shrink":
        del items[len(items) // 2 :]
    elif kind == "replace":
        document["list"] = [message(chance.randrange(10**6), 100) for _ in range(chance.randrange(20))]


def test_a_keyframe_comes_after_very_many_deltas_however_small() -> None:
    raw = encode({"n": 0, "pad": "x" * 10_000_000})
    known = Known(b"life", 5 + _state.MOST_DELTAS - 1, raw, Fold(5, len(raw), len(raw)))
    event, _ = next_event(known, encode({"n": 1, "pad": "x" * 10_000_000}))
    assert event.type == SAVED
    known = Known(b"life", 5 + _state.MOST_DELTAS, raw, Fold(5, len(raw), len(raw)))
    event, fold = next_event(known, encode({"n": 1, "pad": "x" * 10_000_000}))
    assert event.type == KEYFRAME and fold.base == known.version + 1


def test_a_value_too_deep_for_a_delta_is_stored_whole(store: holdfast.Store) -> None:
    """A delta has levels of its own, around those of the value."""
    doc = store.state("doc")
    for number in range(3):
        value: Any = number
        for _ in range(MAX_DEPTH - 1):
            value = [value]
        doc.save({"pad": "x" * 5_000, "deep": value})
        assert store.state("doc").load() == {"pad": "x" * 5_000, "deep": value}
    assert stored_types(store) == [KEYFRAME] * 3


def test_large_values_and_large_changes_are_kept_beside_and_come_back(store: holdfast.Store) -> None:
    doc = store.state("doc")
    values: list[Any] = [{"parts": ["é" * 150_000]}]
    values.append({"parts": ["é" * 150_000, "x" * 100_000]})  # a delta that is large itself
    values.append({"parts": ["é" * 150_000, "x" * 100_000 + "y"]})
    values.append({"parts": ["z" * 3_000_000]})
    for value in values:
        doc.save(value)
        assert store.state("doc").load() == value
    assert stored_types(store) == [KEYFRAME, SAVED, SAVED, KEYFRAME]
    assert [doc.at(number) for number in range(1, 5)] == values
    assert store.health().streams == {"state": 1, "blob": 3}


@pytest.mark.many_writes
def test_more_deltas_than_a_page_holds_are_read_to_the_end(store: holdfast.Store) -> None:
    doc, value = store.state("doc"), {"parts": list[str]()}
    for number in range(180):
        value["parts"].append(f"{number} " + "x" * 60_000)
        doc.save(value)
    assert store.state("doc").load() == value
    assert store.state("doc").at(170) == {"parts": value["parts"][:170]}


# -- any sequence of calls -------------------------------------------------------------------------

small = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from([0.0, 1.0, "", "text" * 20])),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)
calls = st.one_of(
    st.tuples(st.just("save"), small),
    st.tuples(st.just("save"), small),
    st.tuples(st.just("rollback"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["clear", "delete", "load", "expire"]), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), calls), max_size=20))
def test_any_sequence_of_calls_by_two_writers_equals_a_list_of_values(steps: list[tuple[int, tuple[str, Any]]]) -> None:
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
                assert encode(docs[0].at(number)) == raw
        assert docs[0].version() == len(model)


# -- time to live ----------------------------------------------------------------------------------


def test_an_expired_document_can_be_revived_or_deleted_and_nothing_else(store: holdfast.Store) -> None:
    doc, other = store.state("doc"), store.state("doc")
    doc.save({"a": 1})
    other.load()
    doc.expire(0)
    refused: list[Callable[[State], object]] = [
        lambda stale: stale.load(),
        lambda stale: stale.save({"a": 2}),
        lambda stale: stale.save({"a": 1}),
        lambda stale: stale.save({"a": 2}, if_version=2),
        lambda stale: stale.at(1),
        lambda stale: stale.rollback(1),
        lambda stale: stale.history(),
        lambda stale: stale.clear(),
    ]
    for call in refused:
        for stale in (doc, other, store.state("doc")):
            with pytest.raises(holdfast.Expired, match="expire"):
                call(stale)
    assert doc.version() == 2
    doc.expire(None)
    assert other.load() == {"a": 1} and other.save({"a": 2}) == 4
    assert stored_types(store)[1:3] == [EXPIRES, EXPIRES]
    doc.expire(timedelta(0))
    assert doc.delete() is True
    assert doc.load("nothing") == "nothing"


def test_until_it_expires_a_document_is_as_before(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save([1])
    doc.expire(timedelta(hours=1))
    assert (doc.load(), doc.save([1, 2]), doc.save([1, 2, 3]), store.state("doc").load()) == ([1], 3, 4, [1, 2, 3])
    assert doc.at(2) == [1] and [entry.version for entry in doc.history()] == [1, 3, 4]
    head = store._log.backend.head(KEY)
    assert head is not None and head.fields.expires_at is not None
    assert 3500 < head.fields.expires_at - head.now <= 3600, "a save does not prolong it"


def test_a_document_that_expires_while_it_is_known_is_noticed_by_the_next_save() -> None:
    """By the engine's clock, not by ours: this engine is years ahead."""

    class Ahead(MemoryBackend):
        years = 0

        def head(self, stream: StreamKey) -> Any:
            head = super().head(stream)
            return head and msgspec.structs.replace(head, now=head.now + self.years * 365 * 86_400)

    backend = Ahead()
    with holdfast.open(backend) as store:
        doc = store.state("doc")
        doc.save(1)
        doc.expire(3600)
        doc.save(2)
        backend.years = 2
        with pytest.raises(holdfast.Expired):
            doc.save(3)
        with pytest.raises(holdfast.Expired):
            doc.load()


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), True, "5", timedelta(-1)])
def test_a_time_to_live_that_makes_no_sense_is_refused(store: holdfast.Store, ttl: Any) -> None:
    store.state("doc").save(1)
    with pytest.raises(ValueError, match="ttl"):
        store.state("doc").expire(ttl)
    assert store.state("doc").version() == 1


# -- declared types --------------------------------------------------------------------------------


@dataclass
class Plan:
    goal: str
    steps: list[tuple[str, int]]
    spent: timedelta


class Team(pydantic.BaseModel):
    name: str
    budget: float
    members: set[str]


class Purse(pydantic.BaseModel):
    """Written by Pydantic itself, which spells large numbers in another way than we do."""

    owner: str
    amount: float


class Shelf(msgspec.Struct):
    books: dict[int, str]


@pytest.mark.parametrize(
    ("declared", "before", "after"),
    [
        (
            Plan,
            Plan("g" * 100, [("a", 1)], timedelta(seconds=1)),
            Plan("g" * 100, [("a", 1), ("b", 2)], timedelta(seconds=2)),
        ),
        (
            Team,
            Team(name="n" * 100, budget=1e16, members={"x", "y"}),
            Team(name="n" * 100, budget=2e16, members={"y", "z", "x"}),
        ),
        (Purse, Purse(owner="o" * 100, amount=1e16), Purse(owner="o" * 100, amount=2e16)),
        (Shelf, Shelf({1: "b" * 100}), Shelf({1: "b" * 100, 2: "c"})),
        (list[Plan], [], [Plan("g", [], timedelta(0))]),
        (int, 2**70, 2**70 + 1),
    ],
    ids=["dataclass", "model", "struct", "keys", "list", "integer"],
)
def test_values_of_a_declared_type_come_back_as_that_type(
    store: holdfast.Store, declared: Any, before: Any, after: Any
) -> None:
    doc = store.state("doc", type=declared)
    doc.save(before)
    doc.save(after)
    again = store.state("doc", type=declared)
    assert again.load() == after and type(again.load()) is type(after)
    assert again.at(1) == before
    assert store.state("doc", type=declared).save(after) == 2 == doc.save(after), "equal values have equal bytes"


def test_a_stored_value_that_does_not_fit_the_declared_type_is_a_mismatch(store: holdfast.Store) -> None:
    store.state("doc").save({"goal": 5})
    doc = store.state("doc", type=Plan)
    mismatched: list[Callable[[], object]] = [doc.load, lambda: doc.at(1)]
    for call in mismatched:
        with pytest.raises(holdfast.SchemaMismatch) as caught:
            call()
        assert (caught.value.version, caught.value.stream) == (1, "state 'doc'")
    with pytest.raises(holdfast.NotSerializable):
        doc.save({"goal": "a dict is not a Plan"})
    doc.save(Plan("g", [], timedelta(0)))
    assert doc.load() == Plan("g", [], timedelta(0))


# -- damage ----------------------------------------------------------------------------------------


def plant(store: holdfast.Store, type: str, data: Any, fold: Any, v: int = 1) -> None:
    """Store an event that no save would."""
    event = NewEvent(
        type, data if isinstance(data, bytes) else encode(data), v, encode(fold) if fold is not None else b""
    )
    ops.run(store._log, append_events(KEY, [event], new_stamp()))


@pytest.mark.parametrize(
    ("type", "data", "fold"),
    [
        (SAVED, {"in": {"nowhere": {"is": 1}}}, [1, 9, 9]),
        (SAVED, {"list": [99]}, [1, 9, 9]),
        (SAVED, "not a delta", [1, 9, 9]),
        (SAVED, {"put": {}}, [0, 9, 9]),
        (SAVED, {"put": {}}, [3, 9, 9]),
        (SAVED, {"put": {}}, [2, 9, 9]),
        (SAVED, {"put": {}}, [99, 9, 9]),
        (SAVED, {"put": {}}, [1, -9, 9]),
        (SAVED, {"put": {}}, [1.5, 9, 9]),
        (SAVED, {"put": {}}, "fold"),
        (SAVED, {"put": {}}, None),
        (KEYFRAME, {}, [1, 9, 9]),
        (KEYFRAME, {}, [4, 9, 9]),
        (CLEARED, None, [1, 0, 0]),
        (EXPIRES, None, [3, 9, 9]),
        (EXPIRES, None, [2, 9, 9]),
        (SAVED, encode({"list": [99], "pad": "x" * 100_000}), [1, 9, 9]),
    ],
)
def test_a_stored_delta_that_makes_no_sense_is_reported_and_older_versions_stay_readable(
    store: holdfast.Store, type: str, data: Any, fold: Any
) -> None:
    doc = store.state("doc")
    doc.save({"secret": "s" * 50, "n": 1})
    doc.save({"secret": "s" * 50, "n": 2})
    assert stored_types(store) == [KEYFRAME, SAVED]
    plant(store, type, data, fold)
    broken: list[Callable[[State], object]] = [
        lambda reader: reader.load(),
        lambda reader: reader.at(3),
        lambda reader: reader.save({"n": 3}),
    ]
    for call in broken:
        for reader in (doc, store.state("doc")):
            with pytest.raises(holdfast.CorruptRecord) as caught:
                call(reader)
            assert "sss" not in str(caught.value) and "nowhere" not in str(caught.value)
    assert doc.at(2) == {"secret": "s" * 50, "n": 2} == store.state("doc").at(2)


def test_a_delta_upon_a_keyframe_that_is_no_longer_the_newest_is_reported(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"secret": "s" * 50, "n": 1})
    doc.save({"secret": "s" * 50, "n": 2})
    plant(store, KEYFRAME, {"other": 1}, [3, 9, 9])
    plant(store, SAVED, {"put": {"n": 4}}, [1, 9, 9])
    for reader in (doc, store.state("doc")):
        with pytest.raises(holdfast.CorruptRecord):
            reader.load()
        assert reader.at(3) == {"other": 1}


def test_a_rollback_in_the_middle_of_which_the_document_is_deleted_brings_nothing_back(store: holdfast.Store) -> None:
    for passed in range(8):  # so many requests until it is done
        doc = store.state("doc")
        doc.delete()
        doc.save({"old": 1, "pad": "x" * 100})
        doc.save({"old": 2, "pad": "x" * 100})
        operation = _state.rollback(KEY, 1, new_stamp())
        request = next(operation)
        for _ in range(passed):
            request = operation.send(store._log.handle(request))
        doc.delete()
        doc.save({"new": 1})
        with contextlib.suppress(StopIteration, holdfast.Conflict, holdfast.NotFound):
            while True:
                request = operation.send(store._log.handle(request))
        assert "old" not in store.state("doc").load(), passed


def test_a_document_with_a_broken_delta_can_be_cleared_and_saved_again(store: holdfast.Store) -> None:
    doc = store.state("doc")
    doc.save({"n": 1})
    plant(store, SAVED, {"list": []}, [1, 9, 9])
    doc.clear()
    assert doc.load("nothing") == "nothing"
    assert doc.save(doc.at(1)) == 4 and store.state("doc").load() == {"n": 1}


@pytest.mark.parametrize("keyframe", [b"[" * 200 + b"]" * 200, b'{"a":' * 40_000 + b"1" + b"}" * 40_000])
def test_a_keyframe_that_is_no_value_is_reported(store: holdfast.Store, keyframe: bytes) -> None:
    plant(store, KEYFRAME, keyframe, [1, 9, 9])
    for call in (store.state("doc").load, lambda: store.state("doc").save([])):
        with pytest.raises(holdfast.CorruptRecord):
            call()


@pytest.mark.parametrize(("type", "v"), [("state.merged", 1), (SAVED, 2)])
def test_what_a_newer_holdfast_stored_is_left_alone(store: holdfast.Store, type: str, v: int) -> None:
    doc = store.state("doc")
    doc.save({"n": 1})
    plant(store, type, {"put": {}}, [1, 9, 9], v)
    for call in (doc.load, lambda: doc.save({"n": 2}), doc.history, doc.clear, lambda: doc.expire(5)):
        with pytest.raises(holdfast.UnsupportedVersion, match="newer"):
            call()
    assert doc.version() == 2


@pytest.mark.in_clear("looks for text in the files")
@pytest.mark.parametrize("size", [10, 100_000])
def test_damaged_bytes_are_reported_and_never_loaded(local_url: str, tmp_path: Path, size: int) -> None:
    with holdfast.open(local_url) as store:
        doc = store.state("doc")
        doc.save({"text": "fine" + "x" * size})
        doc.save({"text": "fine" + "x" * size, "more": "damage me"})
        doc.save({"text": "fine" + "x" * size, "more": "damage me", "n": 1})
        other = store.state("other")
        other.save({"text": "fine" + "x" * size})
        other.save({"text": "fine" + "x" * size, "more": "damage me"})
        other.save({"text": "fine" + "x" * size})
        other.save("a keyframe")
    changed = 0
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        changed += content.count(b"damage me")
        path.write_bytes(content.replace(b"damage me", b"damaged !"))
    assert changed
    with holdfast.open(local_url) as store:
        doc = store.state("doc")
        for call in (doc.load, lambda: doc.at(2), lambda: doc.save({"text": "new"}), doc.history):
            with pytest.raises(holdfast.CorruptRecord):
                call()
        assert doc.at(1) == {"text": "fine" + "x" * size}
        other = store.state("other")
        assert other.load() == other.at(4) == "a keyframe", "it needs nothing of what is before it"
        assert other.at(1) == {"text": "fine" + "x" * size}
        with pytest.raises(holdfast.CorruptRecord):
            other.at(2)


# -- async -----------------------------------------------------------------------------------------


def test_the_async_twin_has_the_same_methods_and_does_the_same(store: holdfast.Store) -> None:
    for name, method in inspect.getmembers(State, inspect.isfunction):
        if not name.startswith("_"):
            twin = getattr(AsyncState, name)
            assert inspect.getdoc(method) and inspect.getdoc(twin)
            assert inspect.signature(method).parameters == inspect.signature(twin).parameters, name

    async def use() -> None:
        doc = store.aio.state("doc")
        assert await doc.load("nothing") == "nothing"
        assert await doc.save({"a": [1]}) == 1
        assert await doc.save({"a": [1, 2]}, if_version=1) == 2
        with pytest.raises(holdfast.Conflict):
            await doc.save(0, if_version=1)
        assert await doc.load() == {"a": [1, 2]} and await doc.at(1) == {"a": [1]}
        assert await doc.rollback(1) == 3 and await doc.version() == 3
        await doc.clear()
        assert [entry.version for entry in await doc.history()] == [1, 2, 3, 4]
        await doc.expire(0)
        with pytest.raises(holdfast.Expired):
            await doc.save(1)
        assert await doc.delete() is True
        assert await store.aio.state("typed", type=Shelf).save(Shelf({1: "a"})) == 1

    asyncio.run(use())


def test_an_async_save_takes_the_value_when_it_is_called(store: holdfast.Store) -> None:
    async def use() -> None:
        doc, value = store.aio.state("doc"), {"messages": ["first"]}
        saving = asyncio.create_task(doc.save(value))
        value["messages"].append("later")
        await saving
        assert await doc.load() == {"messages": ["first"]}
        waiting = doc.save(value)
        value["messages"].clear()
        assert await waiting == 2
        assert await doc.load() == {"messages": ["first", "later"]}

    asyncio.run(use())


def test_many_async_saves_at_once_are_a_version_each(store: holdfast.Store) -> None:
    values = [{"n": number, "pad": "x" * 300} for number in range(40)]

    async def use() -> dict[int, Any]:
        doc = store.aio.state("doc")
        versions = await asyncio.gather(*(doc.save(value) for value in values))
        return dict(zip(versions, values, strict=True))

    saved = asyncio.run(use())
    assert sorted(saved) == list(range(1, 41))
    assert {version: store.state("doc").at(version) for version in saved} == saved
