"""How long appends to a contended stream wait for their turn."""

from __future__ import annotations

import pytest

from holdfast.backends import StreamKey
from holdfast.log import contention
from holdfast.log.contention import APPENDS_PER_TURN, MAX_BACKOFF_SECONDS, ContendedStreams

STREAM = StreamKey("default", "stream", "s")
TOOK = 0.02
"""How long each append takes."""


class Longest:
    """A clock that stands still, and chance that always chooses the longest wait."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        return high

    @staticmethod
    def monotonic() -> float:
        return 100.0


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ContendedStreams:
    monkeypatch.setattr(contention, "jitter", Longest.uniform)
    monkeypatch.setattr(contention, "time", Longest)
    return ContendedStreams()


def lose(streams: ContendedStreams, times: int) -> list[float]:
    waits = []
    for _ in range(times):
        streams.note_conflict(STREAM, 5, TOOK)
        waits.append(round(streams.seconds_to_turn(STREAM), 3))
    return waits


def win(streams: ContendedStreams, first: int, times: int = 1) -> None:
    for version in range(first, first + times):
        streams.note_success(STREAM, version, version, TOOK)


def test_an_append_is_sent_again_at_once_after_its_first_loss(streams: ContendedStreams) -> None:
    assert not streams.streams
    assert lose(streams, 1) == [0.0]
    assert streams.streams
    assert not streams.start_turn(STREAM)


def test_waits_grow_and_then_shrink_so_that_the_oldest_append_comes_first(
    streams: ContendedStreams,
) -> None:
    waits = lose(streams, 9)
    assert waits == [0.0, 0.04, 0.08, 0.16, 0.32, 0.25, 0.125, 0.062, 0.031]
    assert max(waits) <= MAX_BACKOFF_SECONDS


def test_a_turn_starts_once_after_a_wait(streams: ContendedStreams) -> None:
    lose(streams, 2)
    assert streams.start_turn(STREAM)
    assert not streams.start_turn(STREAM)
    assert streams.seconds_to_turn(STREAM) == 0.0


def test_after_a_few_appends_in_a_row_others_get_the_time_that_they_took_before(
    streams: ContendedStreams,
) -> None:
    lose(streams, 1)
    win(streams, 16, APPENDS_PER_TURN - 1)  # version 5 was known: ten records of others
    assert streams.seconds_to_turn(STREAM) == 0.0
    win(streams, 16 + APPENDS_PER_TURN - 1)
    assert streams.seconds_to_turn(STREAM) == pytest.approx(1.5 * 10 * TOOK)


def test_a_process_that_appends_between_others_never_waits(streams: ContendedStreams) -> None:
    lose(streams, 1)
    for version in range(10, 1000, 10):
        win(streams, version)
        assert streams.seconds_to_turn(STREAM) == 0.0


def test_contention_ends_when_others_do_not_use_their_time(streams: ContendedStreams) -> None:
    lose(streams, 1)
    win(streams, 8, APPENDS_PER_TURN)
    assert streams.start_turn(STREAM)
    win(streams, 8 + APPENDS_PER_TURN)
    assert not streams.streams


def test_other_streams_do_not_wait(streams: ContendedStreams) -> None:
    lose(streams, 3)
    assert streams.seconds_to_turn(STREAM._replace(id="other")) == 0.0


def test_only_so_many_streams_are_kept(
    streams: ContendedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "MAX_CONTENDED_STREAMS", 2)
    for name in "abc":
        for _ in range(2):
            streams.note_conflict(STREAM._replace(id=name), 5, TOOK)
    waiting = [name for name in "abc" if streams.seconds_to_turn(STREAM._replace(id=name))]
    assert waiting == ["b", "c"]
