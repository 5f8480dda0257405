"""Copying beside programs that write and delete: what was deleted at the source may go, what is
nobody else's stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.stored.store_copies import LARGE, Meddler, Recorder, Wrapper, bodies, key, many, on
from holdfast.admin.copy import writer as writing
from holdfast.backends import Append, Backend, Head, HeadFields, StreamKey, memory
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import AlreadyExists
from holdfast.log import chain
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context
from holdfast.log.operations.stream_ops import append_audit_event
from holdfast.testing import fake_clock
from holdfast.types import CopyProgress


@pytest.fixture
def source() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def target() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages and batches, so that few streams make many of them."""
    monkeypatch.setattr(memory, "PAGE_BYTES", 700)
    monkeypatch.setattr(writing, "BATCH_APPENDS", 3)
    monkeypatch.setattr(writing, "SLICE_STREAMS", 2)


# -- deleted at the source -------------------------------------------------------------------------


def test_a_stream_begun_anew_at_the_source_replaces_its_former_copy(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("former", LARGE), ("former", 2))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))
    holdfast.copy(source, target)
    assert bodies(target, "s") == bodies(source, "s")
    assert len(bodies(target, "s")) == 1


def test_a_lost_answer_to_a_deletion_is_no_reason_to_stop(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("former", 1))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))

    class Mute(Wrapper):
        lost = False

        def delete(self, stream: StreamKey, *, expected: Head) -> bool:
            done = target.delete(stream, expected=expected)
            if not self.lost:
                self.lost = True
                raise holdfast.OutcomeUnknown("the answer was lost")
            return done

    mute = Mute(target)
    with fake_clock():
        holdfast.copy(source, mute)
    assert mute.lost and bodies(target, "s") == bodies(source, "s")


def test_a_former_copy_that_went_on_is_not_replaced(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("former", 1))
    holdfast.copy(source, target)
    on(source).stream("s").delete()
    on(source).stream("s").append(("new", 1))
    on(target).stream("s").append(("valuable", 1))
    with pytest.raises(AlreadyExists, match="is not a copy"):
        holdfast.copy(source, target)
    assert len(bodies(target, "s")) == 2


def test_what_was_deleted_at_the_source_is_told_and_deleted_if_wanted(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("gone").append(("noted", LARGE))
    on(source).stream("kept").append(("noted", LARGE))
    holdfast.copy(source, target)
    on(source).stream("gone").delete()
    on(target).stream("theirs").append(("noted", LARGE))
    copied = holdfast.copy(source, target)
    assert (copied.extra, copied.deleted) == (4, 0)
    assert "stream 'gone'" in copied.extra_names and "stream 'theirs'" in copied.extra_names
    assert bodies(target, "gone")
    copied = holdfast.copy(source, target, delete=True)
    assert (copied.extra, copied.deleted) == (2, 2)
    assert not bodies(target, "gone")
    assert bodies(target, "kept") and bodies(target, "theirs")
    assert [event.data for event in on(target).stream("kept").read()] == [LARGE]
    assert [event.data for event in on(target).stream("theirs").read()] == [LARGE]
    assert len(target.heads(tenant="default", kind="blob")) == 2


def test_what_is_begun_while_the_copy_looks_is_not_taken_for_deleted(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Early(Wrapper):
        """Has listed its streams just before one of them was begun."""

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            return [head for head in source.heads(**options) if head.stream.id != "s-0001"]

    many(on(source), 3)
    holdfast.copy(source, target)
    assert holdfast.copy(Early(source), target, delete=True).extra == 0


def test_a_copy_that_went_on_is_not_deleted(source: MemoryBackend, target: MemoryBackend) -> None:
    on(source).stream("gone").append(("noted", 1))
    holdfast.copy(source, target)
    on(source).stream("gone").delete()
    on(target).stream("gone").append(("valuable", 1))
    copied = holdfast.copy(source, target, delete=True)
    assert (copied.extra, copied.deleted) == (1, 0)
    assert len(bodies(target, "gone")) == 2


def test_the_large_values_of_what_stays_stay(source: MemoryBackend, target: MemoryBackend) -> None:
    here, there = on(source), on(target)
    here.conversation("chat").append({"role": "user", "content": LARGE})
    here.state("team").save({"text": LARGE})
    here.stream("s").append(("noted", LARGE))
    with here.task("claim") as task:
        task.step("large", lambda: LARGE)
        task.attach("claim.bin", LARGE.encode())
    holdfast.copy(source, target)
    there.conversation("chat").append({"role": "user", "content": "And?"})
    there.state("team").save({"text": LARGE, "round": 2})
    there.stream("s").append(("noted", 2))
    with there.task("claim") as task:
        task.step("next", lambda: 1)
    blobs = target.heads(tenant="default", kind="blob")
    for owner in (
        here.conversation("chat"),
        here.state("team"),
        here.stream("s"),
        here.task("claim"),
    ):
        owner.delete()
    copied = holdfast.copy(source, target, delete=True)
    assert (copied.extra, copied.deleted) == (4 + len(blobs), 0)
    assert [message["content"] for message in there.conversation("chat").messages()] == [
        LARGE,
        "And?",
    ]
    assert there.state("team").load() == {"text": LARGE, "round": 2}
    assert [event.data for event in there.stream("s").read()] == [LARGE, 2]
    assert [step.result for step in there.get_task("claim").steps] == [LARGE, 1]
    assert there.artifact("claim", "claim.bin").read() == LARGE.encode()


@pytest.mark.parametrize("delete", [False, True])
def test_large_values_go_after_what_names_them(
    delete: bool, source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("noted", LARGE))
    holdfast.copy(source, target)
    on(source).stream("s").delete()

    class Watched(Wrapper):
        deleted: list[str] = []

        def delete(self, stream: StreamKey, *, expected: Head) -> bool:
            self.deleted.append(stream.kind)
            return super().delete(stream, expected=expected)

    watched = Watched(target)
    watched.deleted = []
    holdfast.copy(source, watched, delete=delete)
    assert watched.deleted == (["stream", "blob"] if delete else [])


def test_a_large_value_that_both_have_written_is_never_taken_away(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("noted", 1))
    holdfast.copy(source, target)
    for backend in (source, target):
        on(backend).stream("s").append(("noted", LARGE))

    class Keeping(Wrapper):
        def delete(self, stream: StreamKey, *, expected: Head) -> bool:
            raise AssertionError(f"{stream} is deleted")

    for _ in range(2):
        with pytest.raises(AlreadyExists, match="stream 's' at the destination"):
            holdfast.copy(source, Keeping(target), delete=True)
    assert [event.data for event in on(target).stream("s").read()] == [1, LARGE]


def left_behind(source: MemoryBackend, target: MemoryBackend, *theirs: str) -> None:
    """A stream that was copied, gone on with at the source (and at the destination), and then
    deleted at the source."""
    on(source).stream("s").append(("both", 1))
    holdfast.copy(source, target)
    for text in theirs:
        on(target).stream("s").append(("theirs", text))
    for number in range(2):
        on(source).stream("s").append(("ours", number))
    on(source).stream("s").delete()


@pytest.mark.parametrize("again", [False, True])
def test_what_may_have_records_of_its_own_stays_unless_the_destination_is_to_follow(
    again: bool, source: MemoryBackend, target: MemoryBackend
) -> None:
    left_behind(source, target, "valuable")
    before = bodies(target, "s")
    if again:
        on(source).stream("s").append(("new", 1))
        with pytest.raises(AlreadyExists, match="shorter version of its previous incarnation"):
            holdfast.copy(source, target)
    else:
        assert holdfast.copy(source, target).extra_names == ["stream 's'"]
    assert bodies(target, "s") == before
    copied = holdfast.copy(source, target, delete=True)
    assert bodies(target, "s") == bodies(source, "s")
    assert (copied.extra, copied.deleted) == (0, 0 if again else 1)


@pytest.mark.parametrize("again", [False, True])
def test_what_has_records_of_its_own_for_certain_stays_in_any_case(
    again: bool, source: MemoryBackend, target: MemoryBackend
) -> None:
    left_behind(
        source, target, "valuable", "precious"
    )  # at the version of the deletion, with another hash
    before = bodies(target, "s")
    if again:
        on(source).stream("s").append(("new", 1))
        with pytest.raises(AlreadyExists, match="is not a copy"):
            holdfast.copy(source, target, delete=True)
    else:
        copied = holdfast.copy(source, target, delete=True)
        assert (copied.extra, copied.deleted) == (1, 0)
    assert bodies(target, "s") == before


def tell(store: holdfast.Store, name: str) -> None:
    """The audit stream tells of a deletion, which is then cut off."""
    head = store._log.backend.head(key(name))
    assert head is not None
    ops.run(store._log, append_audit_event(head, new_append_context(), "cut off"))


def test_each_place_where_a_deletion_was_tried_is_proof(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    for name in ("copied", "apart"):
        store.stream(name).append(("both", 1))
    holdfast.copy(source, target)
    on(target).stream("apart").append(("theirs", "valuable"))
    store.stream("apart").append(("ours", 1))
    for name in ("copied", "apart"):
        tell(store, name)
        store.stream(name).append(("ours", "more"))
        store.stream(name).delete()
        store.stream(name).append(("new", 1))
    before = bodies(target, "apart")
    with pytest.raises(AlreadyExists, match="stream 'apart' at the destination is not a copy"):
        holdfast.copy(source, target)
    assert bodies(target, "copied") == bodies(source, "copied")
    assert bodies(target, "apart") == before


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_file_that_both_have_written_is_replaced_only_by_more_of_it(
    chunks: int, source: MemoryBackend, target: MemoryBackend
) -> None:
    with on(source).task("claim") as task:
        task.attach("claim.bin", bytes(5_000_000))
    [blob] = source.heads(tenant="default", kind="blob")
    half = [record.body for record in source.read(blob.stream)][:chunks]
    incarnation = b"another one 1234"
    records = chain.extend(chain.seed(blob.stream, incarnation), chain.GENESIS, 0, b"i" * 16, half)
    target.append([Append(blob.stream, 0, b"", incarnation, b"i" * 16, records)])
    if chunks == 3:  # then let there be no more at the source either
        assert source.delete(blob.stream, expected=blob)
        mine = chain.extend(
            chain.seed(blob.stream, b"incarnation"), chain.GENESIS, 0, b"i" * 16, half
        )
        source.append([Append(blob.stream, 0, b"", b"incarnation", b"i" * 16, mine)])
    for skipped in (1 if chunks == 3 else 0, 3):
        copied = holdfast.copy(source, target)
        assert (copied.skipped, copied.verified) == (skipped, 3)
    there = target.head(blob.stream)
    assert there is not None and (there.incarnation == incarnation) == (chunks == 3)


def test_after_a_deletion_an_id_is_as_unknown_at_the_copy_as_at_the_source(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    on(source).stream("s").append(("noted", 1), id="req-1")
    on(source).stream("s").delete()
    holdfast.copy(source, target)
    for backend in (source, target):
        assert not on(backend).stream("s").append(("noted", 1), id="req-1").duplicate


# -- written and deleted in the middle -------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_a_stream_begun_anew_in_the_middle_is_copied_as_it_is_then(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    for number in range(30):
        store.stream("s").append(("former", number))

    def meddle() -> None:
        store.stream("s").delete()
        for number in range(20):
            store.stream("s").append(("new", number))

    meddler = Meddler(source, "s", 10, meddle)
    holdfast.copy(meddler, target)
    assert meddler.meddled
    assert [event.type for event in on(target).stream("s").read()] == ["new"] * 20


def test_what_the_source_tells_of_deletions_is_read_again_after_one(
    source: MemoryBackend, target: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = on(source)
    for name in ("a", "b"):
        store.stream(name).append(("former", 1))
    holdfast.copy(source, target)
    store.stream("a").delete()
    store.stream("a").append(("new", 1))
    store.stream("b").append(("former", "x" * 1000))
    store.stream("b").append(("former", "y" * 1000))
    monkeypatch.setattr(memory, "PAGE_BYTES", 700)

    def begin_anew() -> None:
        assert bodies(target, "a") == bodies(source, "a")
        store.stream("b").delete()
        store.stream("b").append(("new", 1))

    monkeypatch.setattr(writing, "BATCH_APPENDS", 1)
    meddler = Meddler(source, "b", 2, begin_anew)
    holdfast.copy(meddler, target)
    assert meddler.meddled
    assert bodies(target, "b") == bodies(source, "b")


@pytest.mark.usefixtures("small")
def test_of_a_stream_deleted_in_the_middle_nothing_is_left(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store, recorder = on(source), Recorder(target)
    many(store, 3)
    for number in range(30):
        store.stream("s").append(("former", number))
    meddler = Meddler(source, "s", 10, lambda: store.stream("s").delete())
    copied = holdfast.copy(meddler, recorder)
    assert meddler.meddled and any(append.stream == key("s") for append in recorder.stored)
    assert target.head(key("s")) is None
    assert copied.extra == 0


def test_what_went_on_elsewhere_is_not_deleted_with_the_source(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    store.stream("s").append(("noted", 1))
    holdfast.copy(source, target)
    for number in range(2):
        on(target).stream("s").append(("valuable", number))
    for number in range(3):
        store.stream("s").append(("ours", number))

    def begin_anew() -> None:
        head = source.head(key("s"))
        assert head is not None and source.delete(
            head.stream, expected=head
        )  # nobody told the audit stream
        store.stream("s").append(("new", 1))

    with pytest.raises(AlreadyExists):
        holdfast.copy(Meddler(source, "s", 0, begin_anew), target)
    assert len(bodies(target, "s")) == 3


@pytest.mark.usefixtures("small")
def test_a_stream_that_grows_in_the_middle_is_copied_as_it_was(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    for number in range(30):
        store.stream("s").append(("noted", number))
    meddler = Meddler(source, "s", 10, lambda: store.stream("s").append(("late", 1), ("late", 2)))
    copied = holdfast.copy(meddler, target)
    assert meddler.meddled
    assert bodies(target, "s") == bodies(source, "s")[:30]
    assert copied.verified == copied.streams
    assert holdfast.copy(source, target).records == 2


def test_a_large_value_stored_in_the_middle_arrives_with_the_event_that_names_it(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    store = on(source)
    store.stream("a").append(("noted", LARGE))
    store.stream("b").append(("noted", 1))

    class Late(Wrapper):
        met = False

        def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
            if (options["tenant"], options["kind"]) == ("default", "stream") and not self.met:
                self.met = True
                store.stream("b").append(("noted", LARGE + "y"))
            return source.heads(**options)

    late = Late(source)
    holdfast.copy(late, target)
    assert late.met
    assert [event.data for event in on(target).stream("b").read()] == [1, LARGE + "y"]


class Hints(Wrapper):
    """Lists heads as they were, or as they are going to be."""

    def __init__(self, inner: Backend, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind

    def heads(self, **options: Any) -> Sequence[Head]:  # type: ignore[override]
        return [self._hint(head) for head in self.inner.heads(**options)]

    def _hint(self, head: Head) -> Head:
        if self._kind == "early":
            return msgspec.structs.replace(head, version=head.version + 1, hash=b"?" * 32)
        if self._kind == "other incarnation":
            return msgspec.structs.replace(head, incarnation=b"?" * 16)
        [first] = self.inner.read(head.stream, limit=1)
        return msgspec.structs.replace(head, version=1, hash=first.hash, fields=HeadFields())


@pytest.mark.parametrize("kind", ["early", "other incarnation"])
def test_listings_are_hints_and_heads_are_exact(
    kind: str, source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 3)
    copied = holdfast.copy(Hints(source, kind), Hints(target, kind))
    again = holdfast.copy(Hints(source, kind), Hints(target, kind))
    assert (copied.streams, again.streams, again.verified) == (4, 0, 4)
    for name in ("s-0000", "s-0001", "s-0002"):
        assert target.read(key(name)) == source.read(key(name))


def test_an_old_listing_of_the_source_is_no_reason_to_stop(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 2)
    holdfast.copy(source, target)
    on(source).stream("s-0001").append(("noted", "new"))
    copied = holdfast.copy(Hints(source, "old"), target)
    assert (copied.records, copied.verified) == (1, 3)


def test_an_old_listing_of_the_destination_is_no_reason_to_stop(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    many(on(source), 3)
    holdfast.copy(source, target)
    on(source).stream("s-0001").append(("noted", "new"))
    copied = holdfast.copy(source, Hints(target, "old"))
    assert (copied.records, copied.verified) == (1, 4)


@pytest.mark.usefixtures("small")
def test_what_disappears_at_the_source_without_a_word_stays(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    for number in range(30):
        on(source).stream("s").append(("noted", number))

    def lose() -> None:
        del source._streams[key("s")]

    copied = holdfast.copy(Meddler(source, "s", 10, lose), target)
    assert copied.extra_names == ["stream 's'"]
    assert bodies(target, "s")


def test_a_stream_that_another_copy_is_replacing_is_not_missing(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Between(Wrapper):
        """Is called once after the former incarnation is deleted and before the new one exists."""

        armed = False

        def head(self, stream: StreamKey) -> Head | None:
            if self.armed and stream == key("s"):
                self.armed = False
                return None
            return super().head(stream)

    store, between = on(source), Between(target)
    store.stream("s").append(("noted", 1))

    def progress(told: CopyProgress) -> None:
        if told.phase == "copying" and told.streams == 2:
            store.stream("s").append(("noted", 2))
            between.armed = True

    assert holdfast.copy(source, between, progress=progress).verified == 2
    assert not between.armed


def test_a_stream_deleted_while_it_is_verified_is_not_damaged(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Deleting(Wrapper):
        """Deletes a stream between two questions about it."""

        armed = deleted = False

        def head(self, stream: StreamKey) -> Head | None:
            head = super().head(stream)
            if self.armed and stream == key("s"):
                self.armed = False
                self.deleted = store.stream("s").delete()
            return head

    store, deleting = on(source), Deleting(source)
    store.stream("s").append(("noted", 1))

    def progress(told: CopyProgress) -> None:
        if told.phase == "copying" and told.streams == 2:
            store.stream("s").append(("noted", 2))  # so that it has to be looked at again
            deleting.armed = True

    copied = holdfast.copy(deleting, target, progress=progress)
    assert deleting.deleted
    assert (copied.streams, copied.verified) == (2, 1)


def test_a_stream_that_goes_on_at_both_while_it_is_verified_is_looked_at_again(
    source: MemoryBackend, target: MemoryBackend
) -> None:
    class Growing(Wrapper):
        """Answers, and then the stream goes on and somebody copies it too."""

        times = 0

        def head(self, stream: StreamKey) -> Head | None:
            head = super().head(stream)
            if self.times and stream == key("s"):
                self.times -= 1
                store.stream("s").append(("noted", "more"))
                holdfast.copy(source, target, verify=False)
            return head

    store, growing = on(source), Growing(source)
    store.stream("s").append(("noted", 1))

    def progress(told: CopyProgress) -> None:
        if told.phase == "copying" and told.streams == 2:
            store.stream("s").append(("noted", 2))
            growing.times = 3

    assert holdfast.copy(growing, target, progress=progress).verified == 2
    assert growing.times == 0
