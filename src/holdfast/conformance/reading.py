"""Tests of reads: both directions, from any version, page by page."""

from __future__ import annotations

from ..backends import Backend, Head, SupportsFirstHead
from .build import StreamTracker, bodies, key, must_head, read_all, versions

FIVE_MIB = 5 * 1024 * 1024


def _write_ten(backend: Backend) -> StreamTracker:
    tracker = StreamTracker()
    for size in (1, 4, 2, 3):
        tracker.write(backend, *(b"%d" % (tracker.version + n) for n in range(1, size + 1)))
    return tracker


def _is_at(head: Head | None, tracker: StreamTracker) -> bool:
    return head is not None and (head.stream, *head.position) == (
        tracker.stream,
        tracker.version,
        tracker.hash,
        tracker.incarnation,
    )


class ReadingTests:
    def test_a_missing_stream_reads_as_empty_and_has_no_head(self, backend: Backend) -> None:
        StreamTracker("other").write(backend)
        for reverse in (False, True):
            for after in (0, 1, 7):
                assert list(backend.read(key("missing"), after=after, reverse=reverse)) == []
        assert backend.head(key("missing")) is None

    def test_the_first_head_is_of_the_first_stream_that_exists(self, backend: Backend) -> None:
        if not isinstance(backend, SupportsFirstHead):
            return  # optional
        one, two = StreamTracker("one"), StreamTracker("two")
        missing = [key("missing"), one.stream._replace(kind="other")]
        assert backend.first_head([*missing, one.stream, two.stream]) is None
        two.write(backend, b"1", b"2")
        assert _is_at(backend.first_head([*missing, one.stream, two.stream]), two)
        one.write(backend)
        assert _is_at(backend.first_head([*missing, one.stream, two.stream]), one)
        assert _is_at(backend.first_head([two.stream, one.stream]), two)
        assert backend.first_head(missing) is None
        assert backend.delete(one.stream, expected=must_head(backend, one.stream))
        assert _is_at(backend.first_head([one.stream, two.stream]), two)
        assert backend.first_head([one.stream]) is None
        one = StreamTracker("one")
        one.write(backend, b"again")
        assert _is_at(backend.first_head([one.stream, two.stream]), one)

    def test_reading_starts_behind_after(self, backend: Backend) -> None:
        stream = _write_ten(backend).stream
        for after in range(11):
            assert versions(backend.read(stream, after=after)) == list(range(after + 1, 11))

    def test_reading_in_reverse_starts_before_after_and_zero_means_the_newest(
        self, backend: Backend
    ) -> None:
        stream = _write_ten(backend).stream
        assert versions(backend.read(stream, reverse=True)) == list(range(10, 0, -1))
        for after in range(1, 12):
            assert versions(backend.read(stream, after=after, reverse=True)) == list(
                range(after - 1, 0, -1)
            )

    def test_reading_behind_the_newest_is_empty(self, backend: Backend) -> None:
        stream = _write_ten(backend).stream
        for after in (10, 11, 2**40):
            assert list(backend.read(stream, after=after)) == []

    def test_reading_in_reverse_from_beyond_the_newest_starts_at_the_newest(
        self, backend: Backend
    ) -> None:
        stream = _write_ten(backend).stream
        for after in (11, 12, 2**40):
            assert versions(backend.read(stream, after=after, reverse=True, limit=2)) == [10, 9]

    def test_a_page_holds_at_most_limit_records(self, backend: Backend) -> None:
        stream = _write_ten(backend).stream
        assert versions(backend.read(stream, limit=1)) == [1]
        assert versions(backend.read(stream, after=3, limit=4)) == [4, 5, 6, 7]
        assert versions(backend.read(stream, after=8, limit=4)) == [9, 10]
        assert versions(backend.read(stream, limit=3, reverse=True)) == [10, 9, 8]
        assert versions(backend.read(stream, after=3, limit=3, reverse=True)) == [2, 1]

    def test_pages_of_any_size_make_up_the_whole_stream(self, backend: Backend) -> None:
        stream = _write_ten(backend).stream
        texts = [b"%d" % number for number in range(1, 11)]
        for limit in (1, 2, 3, 7, 10, 11, None):
            assert bodies(read_all(backend, stream, limit=limit)) == texts
            assert bodies(read_all(backend, stream, limit=limit, reverse=True)) == texts[::-1]

    def test_a_page_is_bounded_in_bytes_and_only_an_empty_one_is_the_end(
        self, backend: Backend
    ) -> None:
        tracker = StreamTracker()
        big = [bytes([number]) * FIVE_MIB for number in range(3)]
        tracker.write(backend, big[0])
        tracker.write(backend, big[1], big[2])
        tracker.write(backend, b"small")
        expected = [*big, b"small"]
        for reverse in (False, True):
            assert 1 <= len(backend.read(tracker.stream, reverse=reverse)) < 4, (
                "15 MiB is too much for one page"
            )
            found = bodies(read_all(backend, tracker.stream, reverse=reverse))
            # No single assert on the lists: pytest would take minutes to explain how 15 MiB differ.
            assert [len(body) for body in found] == [
                len(body) for body in expected[:: -1 if reverse else 1]
            ]
            assert all(
                a == b for a, b in zip(found, expected[:: -1 if reverse else 1], strict=True)
            )

    def test_the_head_is_the_newest_record(self, backend: Backend) -> None:
        tracker = _write_ten(backend)
        head = must_head(backend, tracker.stream)
        [newest] = backend.read(tracker.stream, reverse=True, limit=1)
        assert (newest.version, newest.hash) == (head.version, head.hash)

    def test_what_was_read_does_not_change_when_the_stream_grows(self, backend: Backend) -> None:
        tracker = _write_ten(backend)
        page, head = backend.read(tracker.stream), backend.head(tracker.stream)
        kept = list(page)
        tracker.write(backend, b"11")
        assert list(page) == kept
        assert head is not None
        assert head.version == 10
