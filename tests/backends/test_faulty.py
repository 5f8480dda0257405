"""The fault-injecting backend: each fault does what it says, no more, and the same again for the
same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backends import Append, AppendResult, Backend, StreamKey, VersionMismatch
from holdfast.backends.faulty import Fault, FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.conformance import BackendConformance
from holdfast.conformance.build import StreamTracker, bodies, key, must_head, read_all, stored
from holdfast.errors import HoldfastError, OutcomeUnknown, StorageFull, Unavailable


class TestWithoutFaults(BackendConformance):
    """At rates of zero the wrapper is a backend like any other."""

    def open_backend(self, place: Path) -> Backend:
        return FaultyBackend(MemoryBackend(), seed=0)


@pytest.fixture
def inner() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def faulty(inner: MemoryBackend) -> FaultyBackend:
    return FaultyBackend(inner, seed=1)


@pytest.mark.parametrize(
    ("fault", "error", "kept"),
    [
        ("unavailable", Unavailable, False),
        ("full", StorageFull, False),
        ("lost_request", OutcomeUnknown, False),
        ("lost_answer", OutcomeUnknown, True),
        ("driver_error", RuntimeError, False),
        ("driver_error_stored", RuntimeError, True),
    ],
)
def test_an_append_that_fails_is_stored_or_not_as_the_fault_says(
    inner: MemoryBackend, faulty: FaultyBackend, fault: Fault, error: type[Exception], kept: bool
) -> None:
    append = StreamTracker().next(b"a")
    faulty.next(fault)
    with pytest.raises(error):
        faulty.append([append])
    assert bodies(inner.read(append.stream)) == ([b"a"] if kept else [])
    assert faulty.injected[fault] == 1
    assert stored(faulty.append([append])) == [(1, 1, kept)]


def test_a_late_append_arrives_before_one_of_the_next_calls(
    inner: MemoryBackend, faulty: FaultyBackend
) -> None:
    append = StreamTracker().next(b"a")
    faulty.next("late")
    with pytest.raises(OutcomeUnknown):
        faulty.append([append])
    assert inner.head(append.stream) is None
    assert faulty.in_flight == 1
    while faulty.in_flight:
        faulty.head(key("other"))
    assert bodies(inner.read(append.stream)) == [b"a"]
    assert faulty.injected == Counter(late=1, late_stored=1, delay=0)


def test_a_late_append_that_was_retried_meanwhile_is_not_stored_twice(
    inner: MemoryBackend, faulty: FaultyBackend
) -> None:
    append = StreamTracker().next(b"a")
    faulty.next("late")
    with pytest.raises(OutcomeUnknown):
        faulty.append([append])
    inner.append([append])
    faulty.deliver()
    assert bodies(inner.read(append.stream)) == [b"a"]
    assert faulty.injected["late_stored"] == 0


def test_a_late_append_that_another_overtook_conflicts_in_silence(
    inner: MemoryBackend, faulty: FaultyBackend
) -> None:
    late, other = StreamTracker().next(b"late"), StreamTracker()
    faulty.next("late")
    with pytest.raises(OutcomeUnknown):
        faulty.append([late])
    other.write(inner, b"first")
    faulty.deliver()
    assert bodies(inner.read(late.stream)) == [b"first"]


def test_some_members_of_a_batch_may_arrive_late_and_others_at_once_or_never() -> None:
    fates: Counter[tuple[bool, bool]] = Counter()
    for seed in range(20):
        inner = MemoryBackend()
        faulty = FaultyBackend(inner, seed=seed)
        batch = [StreamTracker(f"{number}").next(b"x") for number in range(3)]
        faulty.next("late_part")
        with pytest.raises(OutcomeUnknown):
            faulty.append(batch)
        at_once = [inner.head(one.stream) is not None for one in batch]
        faulty.deliver()
        in_the_end = [inner.head(one.stream) is not None for one in batch]
        assert 1 <= sum(in_the_end) - sum(at_once) < 3
        fates.update(zip(at_once, in_the_end, strict=True))
    assert set(fates) == {(True, True), (False, True), (False, False)}


def test_a_batch_of_one_has_no_parts(faulty: FaultyBackend) -> None:
    faulty.next("late_part")
    assert stored(faulty.append([StreamTracker().next(b"x")])) == [(1, 1, False)]
    with pytest.raises(OutcomeUnknown):
        faulty.append([StreamTracker("a").next(b"x"), StreamTracker("b").next(b"x")])


def test_a_foreign_writer_gets_ahead_and_causes_a_true_conflict(
    inner: MemoryBackend, faulty: FaultyBackend
) -> None:
    tracker = StreamTracker()
    for version in (1, 2):
        faulty.next("foreign")
        [answer] = faulty.append([tracker.next(b"mine")])
        assert isinstance(answer, VersionMismatch)
        assert answer.head is not None
        assert answer.head.version == version
        tracker.version, tracker.hash, tracker.incarnation = (
            version,
            answer.head.hash,
            answer.head.incarnation,
        )
    assert [body[:8] for body in bodies(inner.read(tracker.stream))] == [b"foreign "] * 2


def test_the_foreign_append_can_be_given(inner: MemoryBackend) -> None:
    rival = StreamTracker()
    faulty = FaultyBackend(
        inner, seed=1, foreign=1.0, foreign_append=lambda append: rival.next(b"rival")
    )
    [answer] = faulty.append([StreamTracker().next(b"mine")])
    assert isinstance(answer, VersionMismatch)
    assert bodies(inner.read(rival.stream)) == [b"rival"]


@pytest.mark.parametrize(
    "read",
    [
        lambda backend: backend.read(key()),
        lambda backend: backend.head(key()),
        lambda backend: backend.heads(tenant="t", kind="k"),
        lambda backend: backend.due(tenant="t", kind="k"),
    ],
)
def test_a_read_that_fails_says_unavailable_and_works_again(
    faulty: FaultyBackend, read: Callable[[Backend], object]
) -> None:
    faulty.next("read_unavailable")
    with pytest.raises(Unavailable):
        read(faulty)
    assert not read(faulty)
    assert faulty.injected["read_unavailable"] == 1


@pytest.mark.parametrize(
    ("fault", "error", "gone"),
    [
        ("unavailable", Unavailable, False),
        ("lost_request", OutcomeUnknown, False),
        ("lost_answer", OutcomeUnknown, True),
    ],
)
def test_a_deletion_that_fails_is_done_or_not_as_the_fault_says(
    inner: MemoryBackend, faulty: FaultyBackend, fault: Fault, error: type[Exception], gone: bool
) -> None:
    tracker = StreamTracker()
    tracker.write(faulty, b"a")
    head = must_head(faulty, tracker.stream)
    faulty.next(fault)
    with pytest.raises(error):
        faulty.delete(tracker.stream, expected=head)
    assert (inner.head(tracker.stream) is None) == gone
    assert faulty.injected[f"delete_{fault}"] == 1


def test_a_fault_waits_for_the_next_call_that_can_have_it(faulty: FaultyBackend) -> None:
    faulty.next("full")
    faulty.read(key())
    with pytest.raises(StorageFull):
        faulty.append([StreamTracker().next(b"a")])


def test_an_empty_batch_cannot_fail(inner: MemoryBackend) -> None:
    assert list(FaultyBackend(inner, seed=1, unavailable=1.0).append([])) == []


def test_closing_delivers_what_is_in_flight(inner: MemoryBackend, faulty: FaultyBackend) -> None:
    arrived: list[StreamKey] = []
    inner_append = inner.append

    def watch(batch: list[Append]) -> object:
        arrived.extend(append.stream for append in batch)
        return inner_append(batch)

    inner.append = watch  # type: ignore[method-assign, assignment]
    faulty.next("late")
    with pytest.raises(OutcomeUnknown):
        faulty.append([StreamTracker().next(b"a")])
    faulty.close()
    assert arrived == [key()]


def test_delays_call_the_given_function_and_nothing_by_default(inner: MemoryBackend) -> None:
    waited: list[float] = []
    faulty = FaultyBackend(inner, seed=1, delay=0.5, wait=waited.append)
    for _ in range(100):
        faulty.head(key())
    assert len(waited) == faulty.injected["delay"]
    assert 20 < len(waited) < 80
    assert all(0 <= seconds < 1 for seconds in waited)
    FaultyBackend(inner, seed=1, delay=1.0).head(key())


def test_rates_that_are_no_probabilities_and_unknown_faults_are_refused(
    inner: MemoryBackend, faulty: FaultyBackend
) -> None:
    for late, full in ((-0.1, 0.0), (1.1, 0.0), (0.6, 0.6)):
        with pytest.raises(ValueError, match="rates must be from 0 to 1"):
            FaultyBackend(inner, seed=1, late=late, full=full)
    with pytest.raises(ValueError, match="got nonsense"):
        faulty.next("nonsense")  # type: ignore[arg-type]


def run(seed: int) -> tuple[list[str], Counter[str], list[bytes], int]:
    """A writer who never gives up, over an engine with every fault; what it got, what went wrong,
    what is stored."""
    inner = MemoryBackend()
    faulty = FaultyBackend(
        inner,
        seed=seed,
        unavailable=0.08,
        full=0.08,
        lost_answer=0.08,
        lost_request=0.08,
        late=0.08,
        late_part=0.08,
        driver_error=0.08,
        driver_error_stored=0.08,
        read_unavailable=0.1,
        delay=0.1,
    )
    tracker, other = StreamTracker(), StreamTracker("other")
    tracker.incarnation, other.incarnation = b"one", b"two"
    got: list[str] = []
    for number in range(60):
        batch = [
            tracker.next(b"%d" % number, id=b"%d" % number),
            other.next(b"%d" % number, id=b"%d" % number),
        ]
        while True:
            try:
                answers = faulty.append(batch)
            except (HoldfastError, RuntimeError) as error:
                got.append(type(error).__name__)
                continue
            break
        assert all(isinstance(answer, AppendResult) for answer in answers)
        tracker.follow(batch[0])
        other.follow(batch[1])
    faulty.deliver()
    return (
        got,
        faulty.injected,
        bodies(read_all(inner, tracker.stream)),
        len(read_all(inner, other.stream)),
    )


def test_a_writer_who_repeats_the_same_append_until_it_is_answered_stores_each_exactly_once() -> (
    None
):
    faults: Counter[str] = Counter()
    for seed in range(10):
        _, injected, found, others = run(seed)
        assert found == [b"%d" % number for number in range(60)]
        assert others == 60
        faults += injected
    # A fault that never happened proved nothing.
    for fault in (
        "unavailable",
        "full",
        "lost_answer",
        "lost_request",
        "late",
        "late_part",
        "late_stored",
        "delay",
    ):
        assert faults[fault], fault
    assert faults["driver_error"]
    assert faults["driver_error_stored"]


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert run(3) == run(3)
    assert run(3)[0] != run(4)[0]
