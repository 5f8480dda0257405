"""Streams on an object store of which something was lost or altered: it is said of them, and
concerns no other stream."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from helpers.doc_pages import run_page
from helpers.engines.memory_space import MemorySpace
from helpers.servers import url_on
from holdfast.backends import HeadFields, StreamKey, SupportsDamageListing
from holdfast.backends.objects import append as appending
from holdfast.backends.objects import format as form
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.space import NamedBytes
from holdfast.backends.s3.backend import open_space
from holdfast.conformance.build import (
    KIND,
    TENANT,
    StreamTracker,
    all_due,
    all_heads,
    at,
    bodies,
    conflict,
    ids,
    key,
    must_head,
    read_all,
    timeless,
)
from holdfast.errors import CorruptRecord

LISTED = HeadFields(status="open", due_at=5.0)
NAMES = [f"s{number}" for number in range(6)]


def opened(space: MemorySpace) -> ObjectsBackend:
    return ObjectsBackend(space, width=0)


def commits(tracker: StreamTracker) -> str:
    return form.commits_partition(form.lineage_of(tracker.stream, tracker.incarnation))


def garbage_in_root(space: MemorySpace, tracker: StreamTracker) -> None:
    space.put(form.root_partition(tracker.stream), form.ROOT, b"garbage")


def garbage_in_newest(space: MemorySpace, tracker: StreamTracker) -> None:
    space.put(commits(tracker), form.version_name(tracker.version), b"garbage")


def commits_lost(space: MemorySpace, tracker: StreamTracker) -> None:
    del space.objects[commits(tracker)]


def root_lost(space: MemorySpace, tracker: StreamTracker) -> None:
    del space.objects[form.root_partition(tracker.stream)]


def root_of_another(space: MemorySpace, tracker: StreamTracker) -> None:
    other = form.root_partition(key("s0"))
    space.objects[form.root_partition(tracker.stream)] = space.objects[other].copy()


DAMAGES = [garbage_in_root, garbage_in_newest, commits_lost, root_lost, root_of_another]
UNREADABLE = [damage for damage in DAMAGES if damage is not root_lost]


class Unlistable(MemorySpace):
    """Of what was overwritten with garbage not even the tag can be read, as with an item of
    DynamoDB that is none of ours."""

    def get(self, partition: str, name: bytes) -> NamedBytes | None:
        found = super().get(partition, name)
        if found is not None and found.data == b"garbage":
            raise CorruptRecord(partition, what="it is no item of Holdfast", place="somewhere")
        return found


def written(space: MemorySpace) -> dict[str, StreamTracker]:
    """Six streams of three appends; the first one is too large to stay in the root."""
    trackers = {name: StreamTracker(name) for name in NAMES}
    for tracker in trackers.values():
        tracker.write(
            opened(space),
            b"x" * (appending.MAX_RECORD_BYTES_IN_ROOT + 1),
            fields=LISTED,
            indexed=True,
        )
        tracker.write(opened(space), b"b")
        tracker.write(opened(space), b"c")
    return trackers


@pytest.fixture(params=[MemorySpace, Unlistable])
def space(request: pytest.FixtureRequest) -> MemorySpace:
    made: MemorySpace = request.param()
    return made


@pytest.mark.parametrize("damage", UNREADABLE)
@pytest.mark.parametrize("known", [False, True])
def test_what_is_asked_of_a_damaged_stream_is_refused_under_its_name(
    space: MemorySpace, damage: Callable[[MemorySpace, StreamTracker], None], known: bool
) -> None:
    tracker = written(space)["s3"]
    backend = opened(space)
    if known:
        must_head(backend, tracker.stream)
    damage(space, tracker)
    if known and damage in (garbage_in_newest, commits_lost):
        assert timeless(backend.head(tracker.stream)) == at(tracker, LISTED), "that was read before"
        backend = opened(space)
    for _ in range(2):
        for call in (
            lambda: backend.head(tracker.stream),
            lambda: read_all(backend, tracker.stream),
            lambda: read_all(backend, tracker.stream, reverse=True),
        ):
            with pytest.raises(CorruptRecord) as caught:
                call()
            assert caught.value.stream == str(tracker.stream)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("limit", [500, 1])
def test_a_damaged_stream_is_left_out_of_lists_and_named_apart_from_them(
    space: MemorySpace, damage: Callable[[MemorySpace, StreamTracker], None], limit: int
) -> None:
    trackers = written(space)
    damage(space, trackers["s3"])
    others = [name for name in NAMES if name != "s3"]
    backend = ObjectsBackend(space)
    for _ in range(2):
        assert ids(all_heads(backend, limit=limit)) == others
        assert ids(all_heads(backend, status="open", limit=limit)) == others
        assert ids(all_due(backend, limit=limit)) == others
        assert isinstance(backend, SupportsDamageListing)
        assert backend.list_damaged(TENANT, KIND) == [key("s3")]
    assert backend.list_damaged(TENANT, "another") == []
    backend.close()


def test_a_process_that_knew_the_stream_leaves_it_out_as_well(space: MemorySpace) -> None:
    trackers = written(space)
    backend = opened(space)
    assert ids(all_heads(backend)) == NAMES
    garbage_in_root(space, trackers["s3"])
    assert ids(all_heads(backend)) == [name for name in NAMES if name != "s3"]
    assert backend.list_damaged(TENANT, KIND) == [key("s3")]


def test_that_a_stream_is_left_out_is_logged_once(
    space: MemorySpace, caplog: pytest.LogCaptureFixture
) -> None:
    trackers = written(space)
    garbage_in_root(space, trackers["s1"])
    garbage_in_newest(space, trackers["s4"])
    backend = opened(space)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for _ in range(3):
            all_heads(backend)
            all_due(backend)
            backend.list_damaged(TENANT, KIND)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert ["'s1'" in caplog.messages[0], "'s4'" in caplog.messages[1]] == [True, True]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_left_of_a_damaged_stream_is_kept_until_it_is_discarded(
    space: MemorySpace, damage: Callable[[MemorySpace, StreamTracker], None]
) -> None:
    trackers = written(space)
    damage(space, trackers["s3"])
    left = space.objects.get(commits(trackers["s3"]), {}).copy()
    space.ahead = 10_000.0
    for _ in range(3):
        assert len(all_heads(opened(space))) == len(all_due(opened(space))) == 5
    assert space.objects.get(commits(trackers["s3"]), {}) == left


def test_what_is_left_of_a_stream_without_root_is_kept_even_if_it_was_begun_anew(
    space: MemorySpace,
) -> None:
    lost = written(space)["s3"]
    root_lost(space, lost)
    left = space.objects[commits(lost)].copy()
    StreamTracker("s3").write(opened(space), b"anew", fields=LISTED)
    space.ahead = 10_000.0
    for _ in range(3):
        assert ids(all_heads(opened(space))) == ids(all_due(opened(space))) == NAMES
    assert space.objects[commits(lost)] == left


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_stream_can_be_discarded_and_begun_anew(
    space: MemorySpace, damage: Callable[[MemorySpace, StreamTracker], None]
) -> None:
    trackers = written(space)
    damage(space, trackers["s3"])
    backend, slow = opened(space), opened(space)
    stale = trackers["s3"].next(b"stale")
    assert backend.discard(key("s3")) is True
    assert backend.head(key("s3")) is None
    assert read_all(backend, key("s3")) == []
    assert backend.list_damaged(TENANT, KIND) == []
    assert conflict(slow.append([stale])) is None
    assert (
        ids(all_heads(backend)) == ids(all_due(backend)) == [name for name in NAMES if name != "s3"]
    )
    lineage = form.lineage_of(key("s3"), trackers["s3"].incarnation).hex()
    assert [place for place, _ in space.held("c", "i") if place[2:] == lineage] == []
    assert backend.discard(key("s3")) is False
    anew = StreamTracker("s3")
    anew.write(backend, b"anew", fields=LISTED)
    assert ids(all_heads(backend)) == ids(all_heads(opened(space), status="open")) == NAMES
    assert len(space.held("a")) == len(space.held("s")) == len(space.held("d")) == len(NAMES)
    assert backend.discard(key("s3")) is False
    assert bodies(read_all(opened(space), key("s3"))) == [b"anew"]


def test_a_writer_that_knew_a_discarded_stream_gets_a_conflict(space: MemorySpace) -> None:
    tracker = written(space)["s3"]
    late = opened(space)
    tracker.write(late, b"d")
    garbage_in_root(space, tracker)
    assert opened(space).discard(tracker.stream)
    assert conflict(late.append([tracker.next(b"late")])) is None
    assert late.head(tracker.stream) is None
    assert [place for place, _ in space.held("c") if place == commits(tracker)] == []


def test_a_stream_that_is_sound_or_was_deleted_is_not_discarded(space: MemorySpace) -> None:
    trackers = written(space)
    backend = opened(space)
    assert backend.delete(key("s0"), expected=at(trackers["s0"]))
    for name in ("s0", "s1", "never there"):
        assert backend.discard(key(name)) is False
    assert ids(all_heads(backend)) == NAMES[1:]


def test_of_a_stream_that_lost_its_root_nothing_is_taken_for_an_entry_that_is_early(
    space: MemorySpace,
) -> None:
    """An entry whose stream has not begun is no damage, and one that begins just now is none
    either."""
    tracker = StreamTracker("early")
    begun = tracker.next(b"a", fields=LISTED)
    listed: list[object] = []

    def act(operation: str, partition: str) -> None:
        if operation == "create" and partition[0] == "r" and not listed:
            listed.append(True)
            backend = opened(space)
            listed.extend([all_heads(backend), backend.list_damaged(TENANT, KIND)])

    space.before = act
    opened(space).append([begun])
    assert listed == [True, [], []]
    tracker.follow(begun)
    grown: list[object] = []

    def grow(operation: str, partition: str) -> None:
        # The reader found no root; before it looks for commits, the stream is begun and goes on.
        if operation == "list" and partition == commits(other) and not grown:
            grown.append(True)
            other.write(opened(space), b"a")
            other.write(opened(space), b"b")

    other = StreamTracker("z")
    space.before = lambda operation, partition: None
    announce_only(space, other)
    space.before = grow
    assert opened(space).list_damaged(TENANT, KIND) == []
    assert grown


def announce_only(space: MemorySpace, tracker: StreamTracker) -> None:
    """The entries of a stream whose process is stopped before it makes the root."""

    class Stopped(BaseException):
        pass

    def stop(operation: str, partition: str) -> None:
        if operation == "create" and partition[0] == "r":
            raise Stopped

    space.before = stop
    with pytest.raises(Stopped):
        opened(space).append([tracker.next(b"a", fields=LISTED)])
    space.before = lambda operation, partition: None


@pytest.mark.parametrize("lost", [commits_lost, garbage_in_newest])
def test_a_stream_that_is_deleted_while_it_is_looked_at_is_not_damaged(
    space: MemorySpace, lost: Callable[[MemorySpace, StreamTracker], None]
) -> None:
    """What a reader finds in an incarnation that has just ended (nothing, or an incomplete stray
    commit) does not count."""
    tracker = written(space)["s3"]
    acted: list[bool] = []

    def act(operation: str, partition: str) -> None:
        if operation in ("list", "get") and partition == commits(tracker) and not acted:
            acted.append(True)
            assert opened(space).delete(tracker.stream, expected=at(tracker, LISTED))
            space.put(partition, form.version_name(tracker.version + 1), b"garbage")
            if lost is commits_lost:
                del space.objects[partition]

    space.before = act
    backend = opened(space)
    assert backend.head(tracker.stream) is None
    assert acted
    assert read_all(backend, tracker.stream) == []


def test_a_place_that_is_remembered_of_a_former_incarnation_leads_to_no_alarm(
    space: MemorySpace,
) -> None:
    tracker = written(space)["s3"]
    knowing = opened(space)
    must_head(knowing, tracker.stream)
    assert opened(space).delete(tracker.stream, expected=at(tracker, LISTED))
    space.put(
        commits(tracker), form.version_name(tracker.version + 1), b"garbage"
    )  # of a late writer, and torn
    anew = StreamTracker("s3")
    anew.write(opened(space), b"anew")
    assert must_head(knowing, tracker.stream).incarnation == anew.incarnation
    assert bodies(read_all(knowing, tracker.stream)) == [b"anew"]
    assert ids(all_heads(knowing)) == NAMES


def test_a_writer_that_meets_a_torn_commit_astray_is_in_doubt_once_and_then_looks(
    space: MemorySpace,
) -> None:
    tracker = written(space)["s3"]
    knowing = opened(space)
    must_head(knowing, tracker.stream)
    assert opened(space).delete(tracker.stream, expected=at(tracker, LISTED))
    space.put(commits(tracker), form.version_name(tracker.version + 1), b"garbage")
    append = tracker.next(b"late")
    if isinstance(space, Unlistable):
        with pytest.raises(appending.OutcomeUnknown):
            knowing.append([append])
    assert conflict(knowing.append([append])) is None


def test_the_page_about_damage_is_true(tmp_path: Path) -> None:
    url, backup, new = url_on("s3", tmp_path), str(tmp_path / "backup.db"), str(tmp_path / "new.db")
    names = ["orders-6", "orders-7", "orders-8"]
    with holdfast.open(url) as store:
        for name in names:
            store.stream(name).append(("noted", name))
        holdfast.copy(store, backup)
        store.stream("orders-8").append(("noted", "newer"))
    space = open_space(url)
    space.put(
        form.root_partition(StreamKey("default", "stream", "orders-7")), form.ROOT, b"garbage"
    )
    space.close()
    with holdfast.open(url) as store:
        assert [stream.id for stream in store.streams()] == ["orders-6", "orders-8"]
    holdfast.copy(backup, new)
    with pytest.raises(CorruptRecord, match="orders-7"):
        holdfast.copy(url, new)
    with holdfast.open(new) as store:
        assert [store.stream(name).version() for name in names] == [1, 1, 2]
    printed, promised = run_page("docs/explanation/objects.md", tmp_path, HOLDFAST_URL=url)
    assert printed == promised
    with holdfast.open(url) as store:
        assert store.stream("orders-7").version() == 0
        store.stream("orders-7").append(("noted", "anew"))
        assert [stream.id for stream in store.streams()] == names
