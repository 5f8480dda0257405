"""Streams on an object store: the protocol on a space in memory that can fail, lag and be
interleaved at every call."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.engines.memory_space import MemorySpace
from helpers.engines.scheduled_threads import Turns
from helpers.example_counts import examples
from holdfast.backends import Append, AppendResult, Backend, Head, HeadFields, VersionMismatch
from holdfast.backends.objects import append as appending
from holdfast.backends.objects import format as form
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.streams import StreamSnapshot
from holdfast.conformance import BackendConformance
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
    stored,
    timeless,
    versions,
)
from holdfast.conformance.lists import ListModel
from holdfast.errors import (
    CorruptRecord,
    HoldfastError,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
    UnsupportedVersion,
)

LISTED = HeadFields(status="open", due_at=5.0)


class TestInMemory(BackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return ObjectsBackend(MemorySpace())


class TestWithListsThatLag(BackendConformance):
    """A list that does not show the newest objects yet hides no commit."""

    model_examples = 20

    def open_backend(self, place: Path) -> Backend:
        return ObjectsBackend(LaggingSpace())


class LaggingSpace(MemorySpace):
    """Listings of commits do not show the three newest ones."""

    def _behind(self, partition: str, after: bytes, until: bytes | None) -> Any:
        shown = super()._behind(partition, after, until)
        if partition[0] != "c":
            return shown
        newest = sorted((tag for _, tag in self.objects.get(partition, {}).values()), reverse=True)[
            :3
        ]
        return [named for named in shown if int(named.tag) not in newest]


def opened(space: MemorySpace) -> ObjectsBackend:
    """A backend that does everything in the thread of the caller."""
    return ObjectsBackend(space, width=0)


# -- failures at every call ------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


class Story:
    """A sequence of calls on one stream, and what must be true before and after each."""

    def __init__(self) -> None:
        self.lists = ListModel()
        self.stream = key()
        first, second = StreamTracker(), StreamTracker()
        big = b"x" * (appending.MAX_RECORD_BYTES_IN_ROOT + 1)
        self.steps: list[Append | int | None] = [
            first.follow(first.next(big, b"b", fields=LISTED, indexed=True)),
            first.follow(first.next(b"c", fields=HeadFields(status="done", due_at=2.0))),
            first.follow(first.next(b"d", b"e", indexed=True)),
            first.follow(first.next(b"f", fields=HeadFields(status="done"))),
            first.follow(first.next(b"g", fields=LISTED)),
            None,
            second.follow(second.next(b"h", fields=LISTED, indexed=True)),
            second.follow(second.next(b"i", id=self._id(first), indexed=True)),
        ]

    @staticmethod
    def _id(tracker: StreamTracker) -> bytes:
        return tracker.incarnation

    def take(self, backend: Backend, step: Append | None) -> object:
        if isinstance(step, Append):
            [answer] = backend.append([step])
            assert isinstance(answer, AppendResult), answer
            return answer
        head = self.lists.head(self.stream)
        assert head is not None
        assert backend.delete(self.stream, expected=head) is True
        return None

    def took(self, step: Append | None) -> None:
        if isinstance(step, Append):
            self.lists.append(step)
        else:
            head = self.lists.head(self.stream)
            assert head is not None
            self.lists.delete(self.stream, expected=head)

    def state(self) -> object:
        return self.lists.head(self.stream), self.lists.read(self.stream, after=0, reverse=False)


def seen(backend: Backend) -> object:
    """The stream as a reader sees it; its lists must say the same as its head."""
    head = timeless(backend.head(key()))
    records = read_all(backend, key())
    assert records == read_all(backend, key(), reverse=True)[::-1]
    there = [head] if head is not None else []
    assert [timeless(one) for one in all_heads(backend)] == there
    for status in ("open", "done"):
        assert [timeless(one) for one in all_heads(backend, status=status)] == [
            one for one in there if one.fields.status == status
        ]
    assert [timeless(one) for one in all_due(backend)] == [
        one for one in there if one.fields.due is not None
    ]
    return head, records


class Failing:
    """Lets one call of a space fail, before it is done or after; only calls made within `with`
    count."""

    def __init__(
        self, space: MemorySpace, number: int, error: BaseException, *, done: bool
    ) -> None:
        self._number, self._error, self._count, self._on = number, error, 0, False
        if done:
            space.after = self._call
        else:
            space.before = self._call

    def _call(self, operation: str, partition: str) -> None:
        if self._on:
            self._count += 1
            if self._count == self._number:
                raise self._error

    def __enter__(self) -> None:
        self._on = True

    def __exit__(self, *error: object) -> None:
        self._on = False

    @property
    def reached(self) -> bool:
        return self._count >= self._number


@pytest.mark.parametrize("done", [False, True])
def test_a_process_may_be_killed_at_every_call_and_nothing_is_half_done(done: bool) -> None:
    for number in range(1, 400):
        space, story = MemorySpace(), Story()
        failing = Failing(space, number, Killed(), done=done)
        backend = opened(space)
        for step in story.steps:
            before = story.state()
            try:
                with failing:
                    story.take(backend, step)
                story.took(step)
            except Killed:
                backend = opened(space)
                story.took(step)
                found = seen(backend)
                assert found in (before, story.state())
                if found == before:
                    story.lists = _replayed(story, step)
                    story.take(backend, step)
                    story.took(step)
                elif isinstance(step, Append):
                    assert stored(backend.append([step]))[0][2], "it is there, so it is a duplicate"
            assert seen(opened(space)) == story.state()
        _only_the_living_is_left(space, story)
        if not failing.reached:
            break
    assert 30 < number < 399


@pytest.mark.parametrize(
    ("error", "done"), [(Unavailable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)]
)
def test_any_call_may_fail_and_what_is_said_about_it_is_true(
    error: type[HoldfastError], done: bool
) -> None:
    for number in range(1, 400):
        space, story = MemorySpace(), Story()
        failing = Failing(space, number, error("here"), done=done)
        backend = opened(space)
        for step in story.steps:
            before = story.state()
            try:
                with failing:
                    story.take(backend, step)
                story.took(step)
            except HoldfastError as said:
                story.took(step)
                found = seen(opened(space))
                assert found in (
                    (before, story.state()) if isinstance(said, OutcomeUnknown) else (before,)
                )
                if found == before:
                    story.lists = _replayed(story, step)
                    story.take(backend, step)
                    story.took(step)
            assert seen(backend) == seen(opened(space)) == story.state()
        _only_the_living_is_left(space, story)
        if not failing.reached:
            break
    assert 30 < number < 399


def _replayed(story: Story, until: object) -> ListModel:
    """What was before a step."""
    fresh = Story.__new__(Story)
    fresh.lists, fresh.stream = ListModel(), story.stream
    for step in story.steps:
        if step is until:
            return fresh.lists
        fresh.took(step)
    raise AssertionError


def _only_the_living_is_left(space: MemorySpace, story: Story) -> None:
    """Nothing of a lineage that is over, and no entry of the past, is in the space; but perhaps the
    mark of an end."""
    head = story.lists.head(story.stream)
    assert head is not None
    lineage = form.lineage_of(head.stream, head.incarnation).hex()
    for partition, name in space.held("c", "i"):
        if partition[2:] != lineage:
            data, _tag = space.objects[partition][name]
            assert form.decode_object(partition, name, data, form.Commit, story.stream).ends
    assert len(space.held("a")) == len(space.held("s")) == len(space.held("d")) == 1


# -- interleavings ---------------------------------------------------------------------------------


class Writer:
    """Somebody with a backend of their own, who acts on what they last knew, which may be long
    past."""

    def __init__(
        self, space: MemorySpace, history: list[tuple[Append, object]], ended: list[Head]
    ) -> None:
        self.backend, self.history, self.ended = opened(space), history, ended
        self.head: Head | None = None
        self.read: set[bytes] = set()
        self.doubts = 0

    def act(self, what: str, size: int) -> None:
        with suppress(OutcomeUnknown):
            self.doubts += 1
            self._act(what, size)
            self.doubts -= 1

    def _act(self, what: str, size: int) -> None:
        if what == "look":
            self.head = self.backend.head(key())
        elif what == "read":
            # One page: between two, others may delete what comes next.
            records = self.backend.read(key(), reverse=size == 1)
            found = sorted(versions(records))
            assert found == [*range(found[0], found[-1] + 1)] if found else True
            self.read |= {record.append_id for record in records}
        elif what == "list":
            self.read |= {head.hash for head in all_heads(self.backend, status="open")}
        elif what == "append":
            self._append(size)
        elif self.head is not None and self.backend.delete(key(), expected=self.head):
            self.ended.append(self.head)

    def _append(self, size: int) -> None:
        tracker = StreamTracker()
        if self.head is not None:
            tracker.version, tracker.hash, tracker.incarnation = (
                self.head.version,
                self.head.hash,
                self.head.incarnation,
            )
        fields = random.choice([None, LISTED, HeadFields(status="done", due_at=float(size))])
        append = tracker.next(*[os.urandom(4)] * size, indexed=size == 2, fields=fields)
        self.history.append((append, None))
        place = len(self.history) - 1
        [answer] = self.backend.append([append])
        self.history[place] = append, answer
        if isinstance(answer, AppendResult):
            assert not answer.duplicate
            tracker.follow(append)
            self.head = at(tracker)
        else:
            self.head = answer.head


acts = st.tuples(
    st.sampled_from(["append"] * 5 + ["look"] * 3 + ["read", "list", "delete", "delete"]),
    st.integers(1, 3),
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.lists(acts, min_size=3, max_size=9), min_size=2, max_size=3),
    st.randoms(use_true_random=False),
)
def test_however_writers_meet_every_answer_is_true(
    programs: list[list[tuple[str, int]]], chance: random.Random
) -> None:
    space = MemorySpace()
    history: list[tuple[Append, object]] = []
    ended: list[Head] = []
    writers = [Writer(space, history, ended) for _ in programs]

    def work(writer: Writer, program: list[tuple[str, int]]) -> None:
        for what, size in program:
            writer.act(what, size)

    works = [lambda w=w, p=p: work(w, p) for w, p in zip(writers, programs, strict=True)]
    Turns(space, chance.randrange).run(*works)
    space.before = lambda operation, partition: None
    for writer in writers:
        writer.act("read", 1)
    _check(space, history, ended, writers)


def _check(
    space: MemorySpace,
    history: list[tuple[Append, object]],
    ended: list[Head],
    writers: list[Writer],
) -> None:
    backend = opened(space)
    head, records = backend.head(key()), read_all(backend, key())
    refused = {append.id for append, answer in history if isinstance(answer, VersionMismatch)}
    seen_ids = set().union(*(writer.read for writer in writers)) | {
        record.append_id for record in records
    }
    assert not refused & seen_ids, "what was refused was seen"
    taken: dict[tuple[bytes, int], bytes] = {}
    for append, answer in history:
        if isinstance(answer, AppendResult):
            for version in range(answer.first, answer.last + 1):
                assert taken.setdefault((append.incarnation, version), append.id) == append.id, (
                    "two in one place"
                )
    over = {one.incarnation: one.version for one in ended}
    assert len(over) == len(ended), "a lineage ended twice"
    assert all(version <= over.get(lineage, version) for lineage, version in taken), (
        "appended after the end"
    )
    stored_now = {record.version: record.append_id for record in records}
    if head is not None:
        assert head.incarnation not in over
        assert [*stored_now] == [*range(head.version - len(records) + 1, head.version + 1)]
        assert records[-1].hash == head.hash
        mine = {
            version: one for (lineage, version), one in taken.items() if lineage == head.incarnation
        }
        assert all(
            stored_now[version] == one
            for version, one in mine.items()
            if version >= min(stored_now)
        )
        assert all(version <= head.version for version in mine), "an acknowledged append is gone"
    there = [] if head is None else [timeless(head)]
    assert [timeless(one) for one in all_heads(backend)] == there
    assert [timeless(one) for one in all_due(backend)] == [
        one for one in there if one and one.fields.due is not None
    ]
    if not any(writer.doubts for writer in writers):
        # A pointer that came too late may be left, which holds no content; no commit with records
        # is.
        lineage = form.lineage_of(key(), head.incarnation).hex() if head is not None else ""
        for partition, name in space.held("c"):
            data, _tag = space.objects[partition][name]
            assert (
                partition[2:] == lineage
                or form.decode_object(partition, name, data, form.Commit, key()).ends
            )


# -- what is in the objects ------------------------------------------------------------------------


def _everything(backend: Backend) -> list[object]:
    head = backend.head(key())
    return [timeless(head), read_all(backend, key()), read_all(backend, key(), reverse=True)]


def test_a_damaged_object_is_reported_and_never_taken_for_data() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    for number in range(3):
        tracker.write(opened(space), b"body %d" % number, fields=LISTED)
    whole = _everything(opened(space))
    chance = random.Random(3)
    for partition, name in space.held("r", "c"):
        sound = space.objects[partition][name]
        for at_byte in [*range(20), *(chance.randrange(len(sound[0])) for _ in range(20))]:
            data = bytearray(sound[0])
            data[at_byte] ^= 1 << chance.randrange(8)
            space.objects[partition][name] = bytes(data), sound[1]
            with pytest.raises((CorruptRecord, UnsupportedVersion)) as caught:
                _everything(opened(space))
            assert "body" not in str(caught.value)
        for length in (0, 3, len(sound[0]) - 1):
            space.objects[partition][name] = sound[0][:length], sound[1]
            with pytest.raises(CorruptRecord):
                _everything(opened(space))
        space.objects[partition][name] = sound
    assert _everything(opened(space)) == whole


def test_an_object_that_was_moved_to_another_place_is_reported() -> None:
    space, one, two = MemorySpace(), StreamTracker(), StreamTracker("other")
    for tracker in (one, two):
        tracker.write(opened(space), b"a")
        tracker.write(opened(space), b"b")
        tracker.write(opened(space), b"c")
    mine, other = (form.root_partition(tracker.stream) for tracker in (one, two))
    swapped = {**space.objects, mine: space.objects[other]}
    sound, space.objects = space.objects, swapped
    with pytest.raises(CorruptRecord):
        opened(space).head(one.stream)
    commits = form.commits_partition(form.lineage_of(one.stream, one.incarnation))
    others = form.commits_partition(form.lineage_of(two.stream, two.incarnation))
    for foreign in (sound[commits][form.version_name(3)], sound[others][form.version_name(2)]):
        space.objects = {**sound, commits: {**sound[commits], form.version_name(2): foreign}}
        with pytest.raises(CorruptRecord):
            read_all(opened(space), one.stream)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gone", [2, 3, 20, 39])
def test_a_commit_that_somebody_removed_does_not_look_like_the_end(
    gone: int, reverse: bool
) -> None:
    space, tracker = MemorySpace(), StreamTracker()
    for number in range(40):
        tracker.write(opened(space), b"%d" % number)
    backend = opened(space)
    assert must_head(backend, tracker.stream).version == 40
    del space.objects[form.commits_partition(form.lineage_of(tracker.stream, tracker.incarnation))][
        form.version_name(gone)
    ]
    for reader in (backend, opened(space)):
        with pytest.raises(CorruptRecord):
            read_all(reader, tracker.stream, reverse=reverse)


def test_a_newer_format_is_refused() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    tracker.write(opened(space), b"a")
    [(partition, name)] = space.held("r")
    data, tag = space.objects[partition][name]
    space.objects[partition][name] = data[:3] + b"\x02" + data[4:], tag
    with pytest.raises(UnsupportedVersion, match="newer"):
        opened(space).head(tracker.stream)


def test_a_large_first_append_leaves_the_root_with_the_second() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    backend = opened(space)
    big = os.urandom(appending.MAX_RECORD_BYTES_IN_ROOT * 4)
    tracker.write(backend, big)
    [(root, _)] = space.held("r")
    assert len(space.objects[root][form.ROOT][0]) > len(big)
    tracker.write(backend, b"b")
    assert len(space.objects[root][form.ROOT][0]) < 1024
    tracker.write(backend, b"c")
    for one in (backend, opened(space)):
        assert bodies(read_all(one, tracker.stream)) == [big, b"b", b"c"]
        assert bodies(read_all(one, tracker.stream, reverse=True)) == [b"c", b"b", big]


def test_what_is_too_large_is_refused_before_anything_of_the_batch_is_stored() -> None:
    space = MemorySpace()
    space.max_bytes = 100_000
    backend, small, large = opened(space), StreamTracker("small"), StreamTracker("large")
    with pytest.raises(TooLarge):
        backend.append([small.next(b"x"), large.next(b"x" * 100_000)])
    assert space.held() == []
    large.write(backend, b"x" * 80_000)


@pytest.mark.parametrize(
    ("stored_first", "error", "raised"),
    [
        (True, Unavailable, OutcomeUnknown),
        (False, Unavailable, Unavailable),
        (True, OutcomeUnknown, OutcomeUnknown),
        (False, OutcomeUnknown, OutcomeUnknown),
    ],
)
def test_an_error_of_one_member_does_not_deny_what_others_have_stored(
    stored_first: bool, error: type[HoldfastError], raised: type[HoldfastError]
) -> None:
    space, good, bad = MemorySpace(), StreamTracker("good"), StreamTracker("bad")
    backend = opened(space)
    good.write(backend, b"a")
    bad.write(backend, b"a")
    place = form.commits_partition(form.lineage_of(bad.stream, bad.incarnation))

    def refuse(operation: str, partition: str) -> None:
        if (operation, partition) == ("create", place):
            raise error("not now")

    space.before = refuse
    batch = [good.next(b"b"), bad.next(b"b")] if stored_first else [bad.next(b"b"), bad.next(b"c")]
    with pytest.raises(raised) as caught:
        backend.append(batch)
    assert type(caught.value) is raised
    assert len(read_all(opened(space), good.stream)) == (2 if stored_first else 1)
    assert len(read_all(opened(space), bad.stream)) == 1


# -- who knows only the past -----------------------------------------------------------------------


def test_a_late_deletion_does_not_delete_what_came_after() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    late, other = opened(space), opened(space)
    tracker.write(late, b"a")
    before = at(tracker)
    tracker.write(other, b"b")
    tracker.write(other, b"c")
    # The deleter looked when the stream was at 1, and went on only now.
    known = late._streams.get_cached(tracker.stream)
    late._streams.load = lambda stream: StreamSnapshot(None, "", known)  # type: ignore[method-assign]
    assert late.delete(tracker.stream, expected=before) is False
    assert timeless(opened(space).head(tracker.stream)) == at(tracker)
    assert bodies(read_all(opened(space), tracker.stream)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("finished", [False, True])
def test_an_append_that_was_deleted_before_it_could_be_looked_at_is_in_doubt(
    finished: bool,
) -> None:
    space, tracker = MemorySpace(), StreamTracker()
    backend, other = opened(space), opened(space)
    tracker.write(backend, b"a")
    append = tracker.next(b"b")
    acted: list[bool] = []

    def kill(operation: str, partition: str) -> None:
        if operation == "remove" and partition[0] == "c" and not finished:
            raise Killed

    def act(operation: str, partition: str) -> None:
        if operation == "create" and partition[0] == "c" and not acted:
            acted.append(True)
            tracker.follow(append)
            tracker.write(other, b"c")
            space.before = kill
            with suppress(Killed):
                other.delete(tracker.stream, expected=at(tracker))
            space.before = lambda operation, partition: None

    space.after = act
    with pytest.raises(OutcomeUnknown):
        backend.append([append])
    assert bodies(read_all(opened(space), tracker.stream)) == []


def test_a_pointer_that_leads_to_an_append_without_an_index_means_nothing() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    tracker.write(opened(space), b"a")
    lost = tracker.next(b"lost", id=b"same", indexed=True)
    failing = Failing(space, 1, Killed(), done=True)
    with pytest.raises(Killed), failing:
        opened(space).append([lost])
    assert len(space.held("i")) == 1
    tracker.write(opened(space), b"b", id=b"same")
    tracker.write(opened(space), b"c")
    tracker.write(opened(space), b"d", id=b"same", indexed=True)
    assert stored(opened(space).append([tracker.next(id=b"same", indexed=True)])) == [(4, 4, True)]


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("moved_to", "limit"), [(3.0, 100), (9.0, 100), (3.0, 2), (0.5, 100)])
def test_a_stream_whose_time_moves_while_it_is_listed_is_not_left_out(
    moved_to: float, limit: int
) -> None:
    space, tracker, others = (
        MemorySpace(),
        StreamTracker("moving"),
        [StreamTracker("a"), StreamTracker("b"), StreamTracker("c")],
    )
    writer, reader = opened(space), opened(space)
    tracker.write(writer, fields=HeadFields(due_at=1.0))
    for time, other in zip((0.0, 2.0, 4.0), others, strict=True):
        other.write(writer, fields=HeadFields(due_at=time))
    moved: list[bool] = []

    def move(operation: str, partition: str) -> None:
        # The list was made; now the stream moves, before it is confirmed.
        if operation == "get" and partition == form.root_partition(tracker.stream) and not moved:
            moved.append(True)
            tracker.write(opened(space), fields=HeadFields(due_at=moved_to))

    space.before = move
    listed = ids(all_due(reader, limit=limit))
    assert moved
    assert sorted(listed) == ["a", "b", "c", "moving"]


def test_entries_of_the_past_are_removed_by_who_meets_them() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    tracker.write(opened(space), fields=LISTED)
    backend = opened(space)
    # The writer is killed after its commit, before it removes what its commit made untrue.
    failing = Failing(space, 3, Killed(), done=True)
    with pytest.raises(Killed), failing:
        backend.append([tracker.follow(tracker.next(fields=HeadFields(status="done", due_at=9.0)))])
    assert len(space.held("s")) == len(space.held("d")) == 2
    reader = opened(space)
    assert ids(all_heads(reader, status="open")) == []
    assert ids(all_due(reader)) == ["s"]
    assert len(space.held("s")) == len(space.held("d")) == 1
    assert ids(all_heads(reader, status="done")) == ids(all_due(reader)) == ["s"]


def test_an_entry_that_is_early_stays_until_its_commit_is_decided() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    tracker.write(opened(space), fields=LISTED)
    failing = Failing(space, 2, Killed(), done=True)
    with pytest.raises(Killed), failing:
        opened(space).append([tracker.next(fields=HeadFields(status="done", due_at=1.0))])
    for _ in range(2):
        assert ids(all_heads(opened(space), status="done")) == []
        assert ids(all_due(opened(space), before=2.0)) == []
        assert len(space.held("s")) == len(space.held("d")) == 2, "its commit may be on its way"
    tracker.write(opened(space))
    assert ids(all_heads(opened(space), status="done")) == []
    assert ids(all_due(opened(space), before=2.0)) == []
    assert len(space.held("s")) == len(space.held("d")) == 1
    assert ids(all_heads(opened(space), status="open")) == ids(all_due(opened(space))) == ["s"]


def test_a_stream_announced_an_hour_ago_and_never_written_is_refused_and_its_entries_go() -> None:
    for before in (False, True):
        space, tracker = MemorySpace(), StreamTracker()
        if before:
            former = StreamTracker()
            former.write(opened(space))
            assert opened(space).delete(former.stream, expected=at(former))
        begun = tracker.next(b"a", fields=LISTED, indexed=True)
        roots = len(space.held("r"))

        def kill(operation: str, partition: str) -> None:
            if operation in ("create", "replace") and partition[0] == "r":
                raise Killed

        space.before = kill
        with pytest.raises(Killed):
            opened(space).append([begun])
        space.before = lambda operation, partition: None
        assert len(space.held("a", "s", "d", "i")) == 4
        assert ids(all_heads(opened(space))) == ids(all_due(opened(space))) == []
        assert len(space.held("a", "s", "d", "i")) == 4, "it may be on its way"
        assert len(space.held("r")) == roots
        space.ahead = 3700.0
        for _ in range(2):
            reader = opened(space)
            assert (
                ids(all_heads(reader))
                == ids(all_heads(reader, status="open"))
                == ids(all_due(reader))
                == []
            )
        assert space.held("a", "s", "d", "i") == []
        assert conflict(opened(space).append([begun])) is None
        StreamTracker().write(opened(space), fields=LISTED)
        assert ids(all_heads(opened(space))) == ["s"]


def test_what_is_no_entry_of_ours_is_passed_over() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    tracker.write(opened(space), fields=LISTED)
    for partition, _ in space.held("a", "s", "d"):
        for junk in (
            b"x",
            b"\0" * 8,
            b"\xff" * 60,
            b"\x00" + b"\xff" * 24,
            b"\xff\x00" + b"j" * 24,
            b"q" * 33,
        ):
            space.put(partition, junk, b"")
    backend = opened(space)
    assert (
        ids(all_heads(backend))
        == ids(all_heads(backend, status="open"))
        == ids(all_due(backend))
        == ["s"]
    )
    assert ids(all_heads(backend, limit=1)) == ids(all_due(backend, limit=1)) == ["s"]


# -- names -----------------------------------------------------------------------------------------


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_the_names_of_times_are_ordered_like_the_times(one: float, other: float) -> None:
    assert (one < other) == (form.encode_time(one) < form.encode_time(other))


@given(st.integers(1, 2**62), st.integers(1, 2**62))
def test_the_names_of_versions_descend(one: int, other: int) -> None:
    assert (one < other) == (form.version_name(one) > form.version_name(other))


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_parts_are_hashed_as_they_are(one: list[str], other: list[str]) -> None:
    assert (one == other) == (form.hash_parts(*one) == form.hash_parts(*other))


# -- what it costs ---------------------------------------------------------------------------------


def test_the_calls_of_each_operation_are_those_in_the_docs() -> None:
    space, tracker, calls = MemorySpace(), StreamTracker(), []
    space.before = lambda operation, partition: calls.append(f"{operation} {partition[0]}")
    backend = opened(space)

    def made(work: Callable[[], object]) -> list[str]:
        calls.clear()
        work()
        return list(calls)

    begins = made(lambda: tracker.write(backend, b"a", fields=LISTED))
    assert begins == ["get r", "put a", "put s", "put d", "create r"]
    assert made(lambda: tracker.write(backend, b"b")) == ["create c", "get r"]
    assert made(lambda: tracker.write(backend, b"c", indexed=True)) == [
        "create i",
        "create c",
        "get r",
    ]
    renewed = HeadFields(status="open", due_at=9.0)
    assert made(lambda: tracker.write(backend, b"d", fields=renewed)) == [
        "put d",
        "create c",
        "get r",
        "remove d",
    ]
    assert made(lambda: backend.head(tracker.stream)) == ["get c", "get r"]
    assert made(lambda: opened(space).head(tracker.stream)) == [
        "get r",
        "list c",
        "get c",
        "get c",
        "get r",
    ]
    assert made(lambda: backend.read(tracker.stream)) == ["get r", "scan c", "get c", "get r"]
    assert made(lambda: backend.read(tracker.stream, after=tracker.version)) == ["get c", "get r"]
    assert made(lambda: backend.heads(tenant=TENANT, kind=KIND)) == ["list a", "get c", "get r"]
    assert made(lambda: backend.due(tenant=TENANT, kind=KIND)) == ["list d", "get c", "get r"]
    deletes = made(lambda: backend.delete(tracker.stream, expected=at(tracker)))
    writes = [call for call in deletes if call.split()[0] in ("create", "replace", "put")]
    assert writes == ["create c", "replace r", "replace r"]
    assert len(deletes) <= 24, deletes
