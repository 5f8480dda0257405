"""How state documents are stored: little, and damage is noticed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from helpers.example_counts import LONG, examples
from helpers.stored.state_documents import KEY, message, stored_types
from holdfast import State
from holdfast.backends import Backend, StreamKey
from holdfast.log import operations as ops
from holdfast.log.codec import MAX_DEPTH, encode
from holdfast.log.events import NewEvent, new_append_context
from holdfast.log.operations.stream_ops import append_events
from holdfast.state import state
from holdfast.state.delta import diff
from holdfast.state.state import (
    CLEARED,
    EXPIRES,
    KEYFRAME,
    SAVED,
    KnownDocument,
    StateFold,
    next_event,
)


def bodies(backend: Backend, key: StreamKey) -> list[bytes]:
    found: list[bytes] = []
    while page := backend.read(key, after=len(found)):
        found += [record.body for record in page]
    return found


def stored_bytes(store: holdfast.Store) -> int:
    """Everything that is stored for this tenant's documents, large values included."""
    backend = store._log.backend
    streams = [
        head.stream
        for kind in ("state", "blob")
        for head in backend.heads(tenant="default", kind=kind)
    ]
    return sum(len(body) for key in streams for body in bodies(backend, key))


GROWTH = (
    [(2_000, 300), (600, 1_500), (200, 20_000)]
    if LONG
    else [(500, 300), (200, 1_500), (60, 20_000)]
)
"""How many messages a document grows by, and how large they are."""


# -- what is stored --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), GROWTH)
def test_a_document_that_grows_by_one_message_is_stored_in_less_than_three_times_its_size(
    url: str, count: int, size: int
) -> None:
    document: dict[str, Any] = {"type": "AssistantAgentState", "messages": []}
    with (
        holdfast.open(url)
        if url == "memory://"
        else holdfast.open(url, durability="process") as store
    ):
        doc = store.state("doc")
        for number in range(count):
            document["messages"].append(message(number, size))
            doc.save(document)
        assert doc.version() == count
        assert stored_bytes(store) <= 3.0 * len(encode(document))
        assert store.state("doc").load() == document


@pytest.mark.slow
def test_the_total_stays_below_three_times_the_size_always_and_for_all_message_sizes() -> None:
    chance = random.Random(7)
    document: dict[str, Any] = {"agents": {"a": {"messages": []}, "b": {"messages": []}}, "turn": 0}
    known, total, sizes = None, 0, []
    for number in range(1_500 if LONG else 500):
        size = int(min(40_000, chance.lognormvariate(6, 1.2))) + 40
        document["agents"][chance.choice("ab")]["messages"].append(message(number, size))
        document["turn"] = number
        known, written = saved_purely(known, encode(document))
        total += written
        sizes.append(len(encode(document)))
        if sizes[-1] > 5_000:
            assert total <= 3.0 * sizes[-1], number
    assert sizes[-1] > (1_000_000 if LONG else 300_000)


def saved_purely(known: KnownDocument | None, raw: bytes) -> tuple[KnownDocument, int]:
    """A save without a store: what is known after it, and how many bytes it takes."""
    event, fold = next_event(known, raw)
    version = known.version + 1 if known else 1
    return KnownDocument(b"incarnation", version, raw, fold), len(
        event.data
    ) + state.RECORD_OVERHEAD_BYTES


edits = st.sampled_from(["change", "append", "drop", "grow", "shrink", "replace"])


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32), st.lists(edits, min_size=1, max_size=8), st.sampled_from([0, 5, 200]))
def test_whatever_is_saved_a_load_reads_little_and_keyframes_add_little(
    seed: int, kinds: list[str], start: int
) -> None:
    """The two promises of the rule for keyframes, for any pattern of edits that goes on for a
    while."""
    chance = random.Random(seed)
    document: dict[str, Any] = {
        "list": [message(n, chance.randrange(40, 300)) for n in range(start)],
        "n": 0,
    }
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
        alone += min(len(diff(before.raw, raw)), len(raw)) + state.RECORD_OVERHEAD_BYTES
        total += written
        since = (
            written
            if known.fold.base == known.version
            else since + written
            if since
            else first + written
        )
        assert since == known.fold.read
        assert since <= state.MAX_READ_RATIO * (len(raw) + state.RECORD_OVERHEAD_BYTES)
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
        document["list"] = [
            message(chance.randrange(10**6), 100) for _ in range(chance.randrange(20))
        ]


def test_a_keyframe_comes_after_very_many_deltas_however_small() -> None:
    raw = encode({"n": 0, "pad": "x" * 10_000_000})
    known = KnownDocument(
        b"incarnation", 5 + state.MAX_DELTAS - 1, raw, StateFold(5, len(raw), len(raw))
    )
    event, _ = next_event(known, encode({"n": 1, "pad": "x" * 10_000_000}))
    assert event.type == SAVED
    known = KnownDocument(
        b"incarnation", 5 + state.MAX_DELTAS, raw, StateFold(5, len(raw), len(raw))
    )
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


@pytest.mark.every_engine
def test_large_values_and_large_changes_are_kept_beside_and_come_back(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    values: list[Any] = [{"parts": ["é" * 150_000]}]
    values.append({"parts": ["é" * 150_000, "x" * 100_000]})  # a delta that is large itself
    values.append({"parts": ["é" * 150_000, "x" * 100_000 + "y"]})
    values.append({"parts": ["z" * 3_000_000]})
    for value in values:
        doc.save(value)
        assert store.state("doc").load() == value
    assert stored_types(store) == [KEYFRAME, SAVED, SAVED, KEYFRAME]
    assert [doc.load(version=number) for number in range(1, 5)] == values
    assert store.health().streams == {"state": 1, "blob": 3}


@pytest.mark.slow
def test_more_deltas_than_a_page_holds_are_read_to_the_end(store: holdfast.Store) -> None:
    doc, value = store.state("doc"), {"parts": list[str]()}
    for number in range(180):
        value["parts"].append(f"{number} " + "x" * 60_000)
        doc.save(value)
    assert store.state("doc").load() == value
    assert store.state("doc").load(version=170) == {"parts": value["parts"][:170]}


# -- damage ----------------------------------------------------------------------------------------


def plant(store: holdfast.Store, type: str, data: Any, fold: Any, v: int = 1) -> None:
    """Store an event that no save would."""
    event = NewEvent(
        type,
        data if isinstance(data, bytes) else encode(data),
        v,
        encode(fold) if fold is not None else b"",
    )
    ops.run(store._log, append_events(KEY, [event], new_append_context()))


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
        lambda reader: reader.load(version=3),
        lambda reader: reader.save({"n": 3}),
    ]
    for call in broken:
        for reader in (doc, store.state("doc")):
            with pytest.raises(holdfast.errors.CorruptRecord) as caught:
                call(reader)
            assert "sss" not in str(caught.value) and "nowhere" not in str(caught.value)
    assert doc.load(version=2) == {"secret": "s" * 50, "n": 2} == store.state("doc").load(version=2)


def test_a_delta_upon_a_keyframe_that_is_no_longer_the_newest_is_reported(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    doc.save({"secret": "s" * 50, "n": 1})
    doc.save({"secret": "s" * 50, "n": 2})
    plant(store, KEYFRAME, {"other": 1}, [3, 9, 9])
    plant(store, SAVED, {"put": {"n": 4}}, [1, 9, 9])
    for reader in (doc, store.state("doc")):
        with pytest.raises(holdfast.errors.CorruptRecord):
            reader.load()
        assert reader.load(version=3) == {"other": 1}


def test_a_rollback_in_the_middle_of_which_the_document_is_deleted_brings_nothing_back(
    store: holdfast.Store,
) -> None:
    for passed in range(8):  # so many requests until it is done
        doc = store.state("doc")
        doc.delete()
        doc.save({"old": 1, "pad": "x" * 100})
        doc.save({"old": 2, "pad": "x" * 100})
        operation = state.restore_version(KEY, 1, new_append_context())
        request = next(operation)
        for _ in range(passed):
            request = operation.send(store._log.handle(request))
        doc.delete()
        doc.save({"new": 1})
        with contextlib.suppress(StopIteration, holdfast.Conflict, holdfast.NotFound):
            while True:
                request = operation.send(store._log.handle(request))
        assert "old" not in store.state("doc").load(), passed


def test_a_document_with_a_broken_delta_can_be_cleared_and_saved_again(
    store: holdfast.Store,
) -> None:
    doc = store.state("doc")
    doc.save({"n": 1})
    plant(store, SAVED, {"list": []}, [1, 9, 9])
    doc.clear()
    assert doc.load("nothing") == "nothing"
    assert doc.save(doc.load(version=1)) == 4 and store.state("doc").load() == {"n": 1}


@pytest.mark.parametrize(
    "keyframe", [b"[" * 200 + b"]" * 200, b'{"a":' * 40_000 + b"1" + b"}" * 40_000]
)
def test_a_keyframe_that_is_no_value_is_reported(store: holdfast.Store, keyframe: bytes) -> None:
    plant(store, KEYFRAME, keyframe, [1, 9, 9])
    for call in (store.state("doc").load, lambda: store.state("doc").save([])):
        with pytest.raises(holdfast.errors.CorruptRecord):
            call()


@pytest.mark.parametrize(("type", "v"), [("state.merged", 1), (SAVED, 2)])
def test_what_a_newer_holdfast_stored_is_left_alone(
    store: holdfast.Store, type: str, v: int
) -> None:
    doc = store.state("doc")
    doc.save({"n": 1})
    plant(store, type, {"put": {}}, [1, 9, 9], v)
    for call in (
        doc.load,
        lambda: doc.save({"n": 2}),
        doc.history,
        doc.clear,
        lambda: doc.expire(5),
    ):
        with pytest.raises(holdfast.errors.UnsupportedVersion, match="newer"):
            call()
    assert doc.version() == 2


@pytest.mark.unencrypted("looks for text in the files")
@pytest.mark.parametrize("size", [10, 100_000])
def test_damaged_bytes_are_reported_and_never_loaded(
    local_url: str, tmp_path: Path, size: int
) -> None:
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
        for call in (
            doc.load,
            lambda: doc.load(version=2),
            lambda: doc.save({"text": "new"}),
            doc.history,
        ):
            with pytest.raises(holdfast.errors.CorruptRecord):
                call()
        assert doc.load(version=1) == {"text": "fine" + "x" * size}
        other = store.state("other")
        assert other.load() == other.load(version=4) == "a keyframe", (
            "it needs nothing of what is before it"
        )
        assert other.load(version=1) == {"text": "fine" + "x" * size}
        with pytest.raises(holdfast.errors.CorruptRecord):
            other.load(version=2)
