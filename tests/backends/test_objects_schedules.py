"""Streams on an object store in random schedules: several processes, requests that fail, answers
that are lost, kills.

Everything that happens in a run follows from its seed. `HOLDFAST_OBJECTS_SEEDS` says how many runs
there are on each kind of space (64 unless told), `HOLDFAST_OBJECTS_FIRST_SEED` where to start.
After the runs, some meetings that such runs have found.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence

import pytest

from helpers.engines.fake_dynamodb import FakeTableSpace
from helpers.engines.memory_space import MemorySpace
from helpers.engines.scheduled_threads import Moods, Turns
from holdfast.backends import Append, AppendResult, Head, HeadFields, Record, VersionMismatch
from holdfast.backends.dynamodb import space as dynamodb
from holdfast.backends.objects import append as appending
from holdfast.backends.objects import format as form
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.conformance.build import (
    StreamTracker,
    all_due,
    all_heads,
    bodies,
    conflict,
    ids,
    key,
    must_head,
    read_all,
    stored,
    versions,
)
from holdfast.errors import DataProblem, HoldfastError, OutcomeUnknown, Unavailable

SEEDS = int(os.environ.get("HOLDFAST_OBJECTS_SEEDS", "64"))
FIRST_SEED = int(os.environ.get("HOLDFAST_OBJECTS_FIRST_SEED", "0"))
CHUNKS = 4
TROUBLE = [(0.0, 0.0), (0.01, 0.0), (0.0, 0.01), (0.02, 0.01)]
"""How many requests fail and how many kill their process, run by run."""
PROCESSES, ACTS = 4, 12
STREAMS = [key("a"), key("b")]
READS = ("get", "list", "scan")

Space = MemorySpace | FakeTableSpace


class Killed(BaseException):
    """The process is gone."""


class Told:
    """What the processes were told, and what they have seen."""

    def __init__(self) -> None:
        self.time = 0
        self.bodies: dict[tuple[bytes, int], bytes] = {}
        self.stored: list[tuple[Append, AppendResult]] = []
        self.refused: set[bytes] = set()
        self.over: dict[bytes, float] = {}
        self.ends: dict[bytes, int] = {}

    def tick(self) -> int:
        self.time += 1
        return self.time

    def see(self, records: Sequence[Record], since: float) -> None:
        """Records of one page, or of a whole stream, that was asked for at `since`."""
        found = versions(records)
        assert (
            found in ([*range(found[0], found[-1] + 1)], [*range(found[0], found[-1] - 1, -1)])
            if found
            else True
        )
        trackers = {record.body.split(b":")[0] for record in records}
        assert len(trackers) <= 1, "records of two incarnations"
        for record in records:
            tracker, version, _ = record.body.split(b":")
            assert int(version) == record.version
            assert self.bodies.setdefault((tracker, record.version), record.body) == record.body, (
                "two in one place"
            )
            assert self.over.get(tracker, since) >= since, "what was deleted is shown"


class Process:
    """Somebody with a backend of their own. After a kill, another one."""

    def __init__(self, space: Space, chance: random.Random, told: Told) -> None:
        self._space, self._chance, self._told = space, chance, told
        self._backend = ObjectsBackend(space, width=0)

    def live(self) -> None:
        for _ in range(ACTS):
            try:
                self._act()
            except Killed:
                self._backend = ObjectsBackend(self._space, width=0)
            except DataProblem:
                raise
            except HoldfastError:
                pass

    def _act(self) -> None:
        chance, backend, told, stream = (
            self._chance,
            self._backend,
            self._told,
            self._chance.choice(STREAMS),
        )
        since = told.tick()
        match chance.choices(["append", "read", "heads", "due", "delete"], [60, 15, 8, 7, 10])[0]:
            case "append":
                self._append(backend.head(stream), stream.id)
            case "read":
                after, limit = chance.choice([0, 0, 1, 2]), chance.choice([None, 1, 3])
                told.see(
                    backend.read(stream, after=after, limit=limit, reverse=chance.random() < 0.4),
                    since,
                )
            case "heads":
                status = chance.choice([None, "x", "y"])
                backend.heads(
                    tenant=stream.tenant,
                    kind=stream.kind,
                    status=status,
                    limit=chance.choice([1, 5]),
                )
            case "due":
                backend.due(tenant=stream.tenant, kind=stream.kind, limit=chance.choice([1, 5]))
            case "delete":
                head = backend.head(stream)
                if head is not None:
                    self._delete(head)

    def _delete(self, head: Head) -> None:
        if self._backend.delete(head.stream, expected=head):
            assert head.incarnation not in self._told.over, "an incarnation ended twice"
            self._told.over[head.incarnation] = self._told.tick()
            self._told.ends[head.incarnation] = head.version

    def _append(self, head: Head | None, stream: str) -> None:
        append = self._made(head, stream)
        in_doubt = False
        for _ in range(6):
            try:
                [answer] = self._backend.append([append])
            except OutcomeUnknown:
                in_doubt = True
                continue
            except DataProblem:
                raise
            except HoldfastError:
                if in_doubt:
                    continue
                self._told.refused |= {body for _, body in append.records}
                return
            if isinstance(answer, VersionMismatch):
                self._told.refused |= set() if in_doubt else {body for _, body in append.records}
            else:
                self._told.stored.append((append, answer))
                if not answer.duplicate:
                    assert (answer.first, answer.last) == (
                        append.expected + 1,
                        append.expected + len(append.records),
                    )
            return

    def _made(self, head: Head | None, stream: str) -> Append:
        chance = self._chance
        tracker = chance.randbytes(6).hex().encode() if head is None else head.incarnation
        version, digest = (0, b"") if head is None else (head.version, head.hash)
        if version > 1 and chance.random() < 0.1:
            version -= 1  # a writer who is wrong
        nonce = chance.randbytes(6).hex().encode()
        filler = b"x" * (appending.MAX_RECORD_BYTES_IN_ROOT + 1 if chance.random() < 0.2 else 1)
        count = chance.choice([1, 1, 2])
        texts = [
            b"%s:%d:%s%s" % (tracker, version + 1 + number, nonce, filler)
            for number in range(count)
        ]
        indexed = chance.random() < 0.6
        name = b"\xffid %d" % chance.randrange(6) if indexed else nonce
        changed = HeadFields(
            status=chance.choice(["x", "y"]), due_at=chance.choice([1.0, 2.0, 3.0, None])
        )
        fields = chance.choice([None, changed])
        records = [(hashlib.sha256(text).digest(), text) for text in texts]
        return Append(key(stream), version, digest, tracker, name, records, fields)


def _trouble(space: Space, chance: random.Random, failing: float, killing: float) -> None:
    """Let requests fail on their way to the store, or on the way back. Called when the one who asks
    has the turn."""
    turn = space.before

    def before(operation: str, partition: str) -> None:
        turn(operation, partition)
        drawn = chance.random()
        if drawn < killing:
            raise Killed
        if drawn < killing + failing:
            certain = operation in READS or chance.random() < 0.5
            raise Unavailable("injected") if certain else OutcomeUnknown("injected")

    def after(operation: str, partition: str) -> None:
        drawn = chance.random()
        if drawn < killing:
            raise Killed
        if drawn < killing + failing:
            raise OutcomeUnknown("injected")

    space.before, space.after = before, after


def _run(seed: int, space: Space) -> int:
    chance, told = random.Random(seed), Told()
    turns = Turns(space, Moods(chance))
    _trouble(space, chance, *chance.choice(TROUBLE))
    turns.run(*[Process(space, chance, told).live for _ in range(PROCESSES)])
    space.before = space.after = lambda operation, partition: None
    _judge(ObjectsBackend(space, width=0), told)
    return len(told.stored)


def _judge(backend: ObjectsBackend, told: Told) -> None:
    for append, answer in told.stored:
        # A duplicate may be from another incarnation: the id is looked up first.
        end = answer.last if answer.duplicate else told.ends.get(append.incarnation, answer.last)
        assert answer.last <= end, "appended after the end"
    heads = [head for stream in STREAMS if (head := backend.head(stream)) is not None]
    for stream in STREAMS:
        records = read_all(backend, stream)
        assert versions(read_all(backend, stream, reverse=True, limit=3)) == versions(records)[::-1]
        told.see(records, told.tick())
        assert bool(records) == (stream in [head.stream for head in heads])
    for head in heads:
        _judge_stream(backend, head, told)
    assert ids(all_heads(backend)) == [head.stream.id for head in heads]
    for status in ("x", "y"):
        assert ids(all_heads(backend, status=status)) == ids(
            one for one in heads if one.fields.status == status
        )
    assert sorted(ids(all_due(backend))) == ids(one for one in heads if one.fields.due is not None)
    assert backend.list_damaged(*STREAMS[0][:2]) == []


def _judge_stream(backend: ObjectsBackend, head: Head, told: Told) -> None:
    records = read_all(backend, head.stream)
    assert (records[-1].version, records[-1].hash) == (head.version, head.hash)
    assert head.incarnation not in told.over
    first = records[0].version
    assert first == 1, "its beginning is lost"
    there = {record.version: record.body for record in records}
    assert not told.refused & set(there.values()), "what was refused is there"
    by_id: dict[bytes, list[int]] = {}
    for record in records:
        by_id.setdefault(record.append_id, []).append(record.version)
    assert all(len(found) <= 2 and found[-1] - found[0] < 2 for found in by_id.values()), (
        "an id is there twice"
    )
    for append, answer in told.stored:
        if append.incarnation != head.incarnation:
            continue
        assert answer.last <= head.version, "what was stored is lost"
        if not answer.duplicate:
            for version, (_, body) in enumerate(append.records, answer.first):
                assert version < first or there[version] == body, "something else was stored"
        if append.indexed:
            again = Append(head.stream, 0, b"", head.incarnation, append.id, append.records)
            assert stored(backend.append([again])) == [(answer.first, answer.last, True)], (
                "an id is forgotten"
            )


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("kind", [MemorySpace, FakeTableSpace])
def test_in_every_schedule_what_is_said_is_true(
    kind: type[Space], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb, "PART_BYTES", 120)  # nearly everything is in parts
    count = 0
    for seed in range(FIRST_SEED + chunk, FIRST_SEED + SEEDS, CHUNKS):
        try:
            count += _run(seed, kind())
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error
    assert count > SEEDS // CHUNKS * 8, "they did hardly anything"


# -- what such runs have found ---------------------------------------------------------------------


def opened(space: Space) -> ObjectsBackend:
    return ObjectsBackend(space, width=0)


def once(
    wanted: Callable[[str, str], bool], act: Callable[[], object]
) -> Callable[[str, str], None]:
    """A hook that acts the first time that a call is as wanted."""
    acted: list[bool] = []

    def hook(operation: str, partition: str) -> None:
        if not acted and wanted(operation, partition):
            acted.append(True)
            act()

    return hook


@pytest.mark.parametrize("indexed", [False, True])
def test_a_deletion_that_takes_the_parts_of_an_append_along_leaves_nobody_with_damage(
    monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    monkeypatch.setattr(dynamodb, "PART_BYTES", 1000)
    space, tracker, healthy = FakeTableSpace(), StreamTracker(), StreamTracker("healthy")
    one, other = opened(space), opened(space)
    healthy.write(one, b"a")
    tracker.write(one, b"a")
    large = tracker.next(b"y" * 5_000, indexed=indexed)
    puts: list[str] = []

    def is_behind_its_parts(operation: str, partition: str) -> bool:
        puts.extend([partition] if (operation, partition[0]) == ("put", "c") else [])
        return len(puts) == 2  # the first one says that there may be parts

    space.before = once(
        is_behind_its_parts,
        lambda: other.delete(tracker.stream, expected=must_head(other, tracker.stream)),
    )
    with pytest.raises(OutcomeUnknown):
        one.append([large])
    commits = form.commits_partition(form.lineage_of(tracker.stream, tracker.incarnation))
    assert space.list(commits, limit=9) == [], "what is torn is not left there"
    assert conflict(one.append([large])) is None
    assert one.head(tracker.stream) is None
    anew = StreamTracker()
    anew.write(other, b"anew")
    for backend in (one, other, opened(space)):
        assert must_head(backend, tracker.stream).incarnation == anew.incarnation
        assert ids(all_heads(backend)) == ["healthy", "s"]
        assert bodies(read_all(backend, tracker.stream)) == [b"anew"]


def test_a_beginning_whose_answer_was_lost_is_not_denied_when_others_have_changed_the_root() -> (
    None
):
    space, tracker = MemorySpace(), StreamTracker()
    one, other = opened(space), opened(space)
    first = tracker.next(b"x" * (appending.MAX_RECORD_BYTES_IN_ROOT + 1))
    gets: list[str] = []

    def fail(operation: str, partition: str) -> None:
        gets.append(operation + partition[0])
        if gets.count("getr") == 3:
            raise Unavailable("here")

    def go_on() -> None:
        tracker.follow(first)
        tracker.write(other, b"b")
        space.after = lambda operation, partition: None
        space.before = fail
        raise OutcomeUnknown("the answer was lost")

    space.after = once(
        lambda operation, partition: operation == "create" and partition[0] == "r", go_on
    )
    with pytest.raises(OutcomeUnknown):
        one.append([first])
    space.before = lambda operation, partition: None
    assert versions(read_all(one, tracker.stream)) == [1, 2]


def test_a_beginning_whose_answer_was_lost_is_known_again_although_the_root_has_changed() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    one, other = opened(space), opened(space)
    first = tracker.next(b"x" * (appending.MAX_RECORD_BYTES_IN_ROOT + 1))

    def go_on() -> None:
        tracker.follow(first)
        tracker.write(other, b"b")
        raise OutcomeUnknown("the answer was lost")

    space.after = once(
        lambda operation, partition: operation == "create" and partition[0] == "r", go_on
    )
    assert stored(one.append([first])) == [(1, 1, False)], "it was this very call"
    assert versions(read_all(one, tracker.stream)) == [1, 2]


def test_a_stream_that_is_read_beyond_its_end_may_grow_by_several_records_meanwhile() -> None:
    space, tracker = MemorySpace(), StreamTracker()
    writer, reader = opened(space), opened(space)
    tracker.write(writer, b"one")
    # The reader has found nothing behind version 1, and asks whether that is the end.
    grow = once(
        lambda operation, partition: operation == "list" and partition[0] == "c",
        lambda: tracker.write(writer, b"two", b"three"),
    )
    space.before = grow
    assert versions(reader.read(tracker.stream, after=2)) == [3]
    assert tracker.version == 3
