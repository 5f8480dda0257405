"""The log: places, ids, lost answers, engines that went back in time, and data that is checked
before anybody sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.stored.scripted_log import Scripted, numbers
from holdfast._store import Store
from holdfast.backends import Append, Record, StreamKey
from holdfast.errors import (
    CorruptRecord,
    HeadRegressed,
    IdReused,
    OutcomeUnknown,
    StorageFull,
    StoreClosed,
    Unavailable,
)
from holdfast.log import operations as ops
from holdfast.log.events import NewEvent, encode_envelopes, new_append_context
from holdfast.log.log import Log

KEY = StreamKey("default", "stream", "s")


def request(number: int, **place: Any) -> ops.AppendRecords:
    stamp = new_append_context()
    return ops.AppendRecords(
        KEY, encode_envelopes([NewEvent("n", b"%d" % number)], stamp, {}), stamp, **place
    )


def foreign_writer(backend: Scripted) -> holdfast.Stream:
    """Another process on the same store: a log of its own."""
    return Store(Log(backend), "default").stream("s")


def taken(backend: Scripted) -> Append:
    """What the other process appended: the only append of version 2 that was not ours."""
    stored = backend.read(KEY, after=1, limit=1)[0]
    return next(batch[0] for batch in backend.batches if batch[0].id == stored.append_id)


def raising(error: Exception) -> Callable[[Sequence[Append]], Any]:
    def answer(batch: Sequence[Append]) -> Any:
        raise error

    return answer


# -- where an append goes --------------------------------------------------------------------------


def test_a_plain_append_goes_wherever_the_stream_is(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).append(("n", 2))
    appended = stream.append(("n", 3), ("n", 4))
    assert (appended.first, appended.last, appended.duplicate) == (3, 4, False)
    assert numbers(stream) == [1, 2, 3, 4]


def test_an_expected_version_that_is_no_longer_true_writes_nothing(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).append(("n", 2))
    with pytest.raises(holdfast.Conflict) as caught:
        stream.append(("n", 3), if_version=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert numbers(stream) == [1, 2]


def test_an_append_that_has_seen_everything_foreign_goes_on_after_our_own(
    log: Log, stream: holdfast.Stream
) -> None:
    log.handle(request(1))
    log.handle(request(2))
    assert log.handle(request(3, seen=0)).last == 3
    assert numbers(stream) == [1, 2, 3]


def test_an_append_that_has_not_seen_what_somebody_else_wrote_is_refused(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    log.handle(request(1))
    foreign_writer(backend).append(("n", 2))
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, seen=1))
    assert log.handle(request(4, seen=2)).last == 3
    assert numbers(stream) == [1, 2, 4]


def test_reading_alone_does_not_count_as_having_seen(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    """A view that reads the stream in another thread must not let an operation pass that decided
    before it."""
    log.handle(request(1))
    foreign_writer(backend).append(("n", 2))
    assert numbers(stream) == [1, 2]
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, seen=1))


def test_a_deleted_stream_gets_a_new_incarnation(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    foreign_writer(backend).delete()
    assert stream.append(("n", 2)).first == 1
    assert numbers(stream) == [2]


# -- ids -------------------------------------------------------------------------------------------


def test_the_same_id_again_is_a_no_op_that_says_where_it_is(stream: holdfast.Stream) -> None:
    first = stream.append(("n", 1), ("n", 2), id="req-1")
    stream.append(("n", 3))
    again = stream.append(("n", 1), ("n", 2), id="req-1")
    assert (again.first, again.last, again.duplicate) == (first.first, first.last, True)
    assert numbers(stream) == [1, 2, 3]


def test_content_is_compared_by_value_and_not_by_its_bytes(stream: holdfast.Stream) -> None:
    stream.append(("n", {"a": 1, "b": {"c": 2, "d": 3}}), id="req-1")
    assert stream.append(("n", {"b": {"d": 3, "c": 2}, "a": 1}), id="req-1").duplicate


@pytest.mark.parametrize("actor", [5, "", "a\0b", "\ud800"])
def test_an_actor_that_could_not_be_read_back_is_refused(
    stream: holdfast.Stream, actor: Any
) -> None:
    with pytest.raises(holdfast.errors.InvalidId), holdfast.correlate("req-1", actor=actor):
        stream.append(("n", 1))
    assert numbers(stream) == []


@pytest.mark.parametrize("other", [[("n", 9)], [("m", 1)], [("n", 1), ("n", 2)]])
def test_other_content_under_a_known_id_is_refused(
    stream: holdfast.Stream, other: list[tuple[str, int]]
) -> None:
    stream.append(("n", 1), id="req-1")
    with pytest.raises(IdReused, match="req-1"):
        stream.append(*other, id="req-1")
    assert numbers(stream) == [1]


def test_a_large_value_repeated_under_its_id_is_recognised(stream: holdfast.Stream) -> None:
    stream.append(("n", "x" * 100_000), id="big")
    assert stream.append(("n", "x" * 100_000), id="big").duplicate
    with pytest.raises(IdReused):
        stream.append(("n", "y" * 100_000), id="big")


def test_an_id_is_looked_at_before_the_version(backend: Scripted, stream: holdfast.Stream) -> None:
    stream.append(("n", 1), id="a", if_version=0)
    assert stream.append(("n", 1), id="a", if_version=0).duplicate
    assert foreign_writer(backend).append(("n", 1), id="a", if_version=0).duplicate
    with pytest.raises(IdReused):
        stream.append(("n", 2), id="a", if_version=0)
    with pytest.raises(holdfast.Conflict):
        stream.append(("n", 2), id="b", if_version=0)
    assert stream.append(("n", 2), id="b", if_version=1).last == 2
    assert numbers(stream) == [1, 2]


def test_a_repeat_is_recognised_although_somebody_else_has_written_since(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    log.handle(request(1, id="a", seen=0))
    foreign_writer(backend).append(("n", 2))
    assert log.handle(request(1, id="a", seen=0)).duplicate
    with pytest.raises(holdfast.Conflict):
        log.handle(request(3, id="b", seen=0))
    assert numbers(stream) == [1, 2]


def test_after_a_duplicate_the_next_append_still_finds_its_place(stream: holdfast.Stream) -> None:
    stream.append(("n", 1), id="a")
    stream.append(("n", 1), id="a")
    assert stream.append(("n", 2)).last == 2


# -- lost answers ----------------------------------------------------------------------------------


def test_an_answer_lost_after_the_commit_is_settled_as_done(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))

    def store_and_lose(batch: Sequence[Append]) -> Any:
        backend.really_append(batch)
        raise OutcomeUnknown("lost")

    backend.script.append(store_and_lose)
    assert stream.append(("n", 2)).last == 2
    assert numbers(stream) == [1, 2]


def test_an_append_that_is_absent_is_sent_again_with_the_same_bytes_for_the_same_version(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    backend.script.append(raising(OutcomeUnknown("lost")))
    stream.append(("n", 2))
    first, again = backend.batches[-2:]
    assert first == again
    assert numbers(stream) == [1, 2]


def test_an_error_that_is_not_ours_is_taken_for_doubt(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    def store_and_crash(batch: Sequence[Append]) -> Any:
        backend.really_append(batch)
        raise RuntimeError("a bug in the driver")

    backend.script.append(store_and_crash)
    stream.append(("n", 1))
    assert numbers(stream) == [1]


def test_if_somebody_else_took_the_version_the_append_moves_on_under_its_id(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    other = foreign_writer(backend)

    def lose_to_another(batch: Sequence[Append]) -> Any:
        backend.script.clear()
        other.append(("n", 2))
        raise OutcomeUnknown("lost")

    backend.script.append(lose_to_another)
    assert stream.append(("n", 3)).last == 3
    lost, moved = (
        batch[0]
        for batch in backend.batches
        if batch[0].expected >= 1 and batch[0] is not taken(backend)
    )
    assert lost.id == moved.id and (lost.expected, moved.expected) == (1, 2)
    assert numbers(stream) == [1, 2, 3]


def test_past_the_deadline_the_outcome_is_unknown_and_a_repeat_settles_it(
    backend: Scripted, log: Log, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    held: list[Sequence[Append]] = []

    def swallow(batch: Sequence[Append]) -> Any:
        held.append(batch)
        raise OutcomeUnknown("lost")

    backend.script[:] = [swallow] * 100_000
    with pytest.raises(OutcomeUnknown) as caught:
        stream.append(("n", 2))
    backend.script.clear()
    assert caught.value.id is not None
    # The packet arrives after all, late: the repeat must find it and not store it twice.
    backend.really_append(held[0])
    assert stream.append(("n", 2), id=caught.value.id).duplicate
    assert numbers(stream) == [1, 2]


def test_an_append_that_always_comes_second_ends_at_the_deadline(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    other = foreign_writer(backend)

    def come_first(batch: Sequence[Append]) -> Any:
        backend.script, before = [], backend.script
        other.append(("n", 0))
        backend.script = before
        return backend.really_append(batch)

    backend.script[:] = [come_first] * 100_000
    with pytest.raises(Unavailable, match=r"other writers changed .* nothing was written"):
        stream.append(("n", 2))
    backend.script.clear()
    assert 2 not in numbers(stream) and len(numbers(stream)) > 10
    stream.append(("n", 2))
    assert numbers(stream)[-1] == 2


def test_a_repeat_of_an_append_that_never_arrived_stores_it(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    backend.script[:] = [raising(OutcomeUnknown("lost"))] * 100_000
    with pytest.raises(OutcomeUnknown) as caught:
        stream.append(("n", 1), id="req-1")
    backend.script.clear()
    assert caught.value.id == "req-1"
    stream.append(("n", 1), id="req-1")
    assert stream.append(("n", 1), id="req-1").duplicate
    assert numbers(stream) == [1]


@pytest.mark.slow
def test_a_repeat_with_other_content_is_refused_even_after_doubt(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    backend.script[:] = [raising(OutcomeUnknown("lost"))] * 100_000
    with pytest.raises(OutcomeUnknown):
        stream.append(("n", 1), id="req-1")
    backend.script.clear()
    with pytest.raises(IdReused):
        stream.append(("n", 2), id="req-1")


def test_a_certain_error_means_not_stored_and_the_store_goes_on(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    for error in (Unavailable("down"), StorageFull("full")):
        backend.script.append(raising(error))
        with pytest.raises(type(error)):
            stream.append(("n", 2))
    assert stream.append(("n", 3)).last == 2
    assert numbers(stream) == [1, 3]


def test_one_member_that_cannot_be_stored_does_not_fail_the_others(
    backend: Scripted, log: Log
) -> None:
    async def main() -> list[Any]:
        store = Store(log, "default").aio
        await store.stream("warm-up").append(("n", 0))
        for name in "abc":
            await store.stream(name).append(("n", 0))

        def full(batch: Sequence[Append]) -> Any:
            if any(append.stream.id == "b" for append in batch):
                raise StorageFull("no room")
            return backend.really_append(batch)

        backend.script[:] = [full] * 4
        appends = [store.stream(name).append(("n", 1)) for name in "abc"]
        return await asyncio.gather(*appends, return_exceptions=True)

    first, second, third = asyncio.run(main())
    assert isinstance(second, StorageFull)
    assert (first.last, third.last) == (2, 2)


# -- an engine that went back in time --------------------------------------------------------------


def test_an_engine_that_lost_acknowledged_writes_is_noticed(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    for number in range(3):
        stream.append(("n", number))
    kept = backend._streams[KEY]
    kept.records, kept.version, kept.hash = kept.records[:1], 1, kept.records[0].hash
    with pytest.raises(HeadRegressed) as caught:
        stream.append(("n", 9))
    assert (caught.value.acknowledged, caught.value.actual) == (3, 1)
    with pytest.raises(HeadRegressed):
        stream.append(("n", 9))
    assert len(backend._streams[KEY].records) == 1


def test_another_history_of_the_same_length_is_noticed(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    kept = backend._streams[KEY]
    kept.records[0] = msgspec.structs.replace(kept.records[0], hash=b"?" * 32)
    kept.hash = b"?" * 32
    with pytest.raises(HeadRegressed):
        stream.append(("n", 2))


# -- what is read ----------------------------------------------------------------------------------


def tampered(backend: Scripted, change: Callable[[list[Record]], None]) -> holdfast.Stream:
    """The stream of five records after `change`, seen by a process that knows nothing of it."""
    writer = foreign_writer(backend)
    for number in range(5):
        writer.append(("n", number))
    change(backend._streams[KEY].records)
    return foreign_writer(backend)


def edit(records: list[Record]) -> None:
    records[2] = msgspec.structs.replace(
        records[2], body=records[2].body.replace(b'"data":2', b'"data":7')
    )


def swap(records: list[Record]) -> None:
    one, two = records[1], records[2]
    records[1] = msgspec.structs.replace(two, version=2)
    records[2] = msgspec.structs.replace(one, version=3)


def cut_the_middle(records: list[Record]) -> None:
    del records[2]


def cut_the_tail(records: list[Record]) -> None:
    del records[3:]


def cut_the_front(records: list[Record]) -> None:
    del records[:2]


@pytest.mark.parametrize("change", [edit, swap, cut_the_middle, cut_the_tail, cut_the_front])
def test_tampering_is_reported_and_never_returned(
    backend: Scripted, change: Callable[[list[Record]], None]
) -> None:
    stream = tampered(backend, change)
    seen: list[Any] = []
    with pytest.raises(CorruptRecord) as caught:
        for event in stream.read():
            seen.append(event.data)
    assert seen == list(range(len(seen)))
    assert caught.value.version is not None and caught.value.stream == str(KEY)
    with pytest.raises(CorruptRecord):
        foreign_writer(backend).last(4)


def test_reading_from_the_middle_and_from_the_end_is_checked_too(backend: Scripted) -> None:
    stream = tampered(backend, edit)
    with pytest.raises(CorruptRecord):
        list(stream.read(after=2))
    assert [event.data for event in stream.read(after=3)] == [3, 4]
    assert [event.data for event in stream.last(2)] == [3, 4]
    with pytest.raises(CorruptRecord):
        stream.last(3)


def test_the_record_before_a_page_anchors_it_but_is_not_returned(stream: holdfast.Stream) -> None:
    for number in range(6):
        stream.append(("n", number))
    for after in range(7):
        assert [event.version for event in stream.read(after=after)] == list(range(after + 1, 7))
    for count in range(9):
        assert [event.version for event in stream.last(count)] == list(range(max(7 - count, 1), 7))
    assert list(stream.read(after=10)) == []


def test_a_record_taken_from_another_stream_is_refused(backend: Scripted) -> None:
    for name in ("s", "t"):
        Store(Log(backend), "default").stream(name).append(("n", name))
    backend._streams[KEY].records[0] = backend._streams[
        StreamKey("default", "stream", "t")
    ].records[0]
    with pytest.raises(CorruptRecord):
        list(foreign_writer(backend).read())


def test_a_stream_that_was_created_again_is_read_as_it_is_now(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    for number in range(3):
        stream.append(("n", number))
    other = foreign_writer(backend)
    other.delete()
    other.append(("n", "new"))
    assert numbers(stream) == ["new"]


# -- closing, logging ------------------------------------------------------------------------------


def test_a_closed_store_says_so(log: Log, stream: holdfast.Stream) -> None:
    stream.append(("n", 1))
    log.close()
    for call in (
        lambda: stream.append(("n", 2)),
        stream.version,
        lambda: list(stream.read()),
        stream.delete,
    ):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed):
        asyncio.run(Store(log, "default").aio.stream("s").append(("n", 3)))


def test_every_append_is_logged_with_its_correlation_id_and_without_content(
    stream: holdfast.Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.DEBUG, logger="holdfast"),
        holdfast.correlate("req-17", actor="alice"),
    ):
        stream.append(("n", "CANARY-content"), ("n", 2))
    record: Any = caplog.records[-1]
    assert record.correlation == "req-17"
    assert (record.stream, record.version, record.event, record.tenant) == (
        "s",
        2,
        "appended",
        "default",
    )
    assert record.bytes > 0 and record.milliseconds >= 0
    assert "CANARY" not in caplog.text
    assert [(event.correlation, event.by) for event in stream.read()] == [("req-17", "alice")] * 2


def test_appends_are_events_on_the_current_span_of_a_program_that_traces(
    stream: holdfast.Stream,
) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("turn"), holdfast.correlate("req-17"):
        stream.append(("n", "CANARY-content"), ("n", 2))
    [span] = exporter.get_finished_spans()
    event = span.events[-1]
    assert event.name == "holdfast.appended" and event.attributes is not None
    assert event.attributes["holdfast.correlation"] == "req-17"
    assert (event.attributes["holdfast.stream"], event.attributes["holdfast.version"]) == ("s", 2)
    assert "CANARY" not in span.to_json()


def test_an_append_is_reported_in_the_callers_context(stream: holdfast.Stream) -> None:
    """So that filters which add a request id to log records find it, in threads and in async code
    alike."""
    request_id: ContextVar[str] = ContextVar("request_id", default="none")
    seen = []

    class Filter(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            seen.append(request_id.get())
            return False

    logger, filter_ = logging.getLogger("holdfast"), Filter()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(filter_)
    try:
        request_id.set("sync")
        stream.append(("n", 1))

        async def main() -> None:
            request_id.set("async")
            await Store(stream._log, "default").aio.stream("s").append(("n", 2))

        asyncio.run(main())
    finally:
        logger.removeFilter(filter_)
        logger.setLevel(before)
    assert {"sync", "async"} <= set(seen)


def test_a_logging_filter_that_fails_does_not_make_a_stored_append_look_failed(
    stream: holdfast.Stream,
) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("broken filter")

    logger, broken = logging.getLogger("holdfast"), Broken()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addFilter(broken)
    try:
        with pytest.warns(RuntimeWarning, match="could not be reported"):
            assert stream.append(("n", 1)).last == 1
    finally:
        logger.removeFilter(broken)
        logger.setLevel(before)
    assert numbers(stream) == [1]


def test_a_logging_handler_may_append_to_the_same_store(log: Log, stream: holdfast.Stream) -> None:
    audit = Store(log, "default").stream("audit")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "stream", "") == "s":
                audit.append(("logged", record.getMessage()))

    logger, handler = logging.getLogger("holdfast"), Handler()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        stream.append(("n", 1))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert audit.version() == 1


def test_an_append_from_inside_a_commit_is_refused_rather_than_left_waiting_for_itself(
    backend: Scripted, stream: holdfast.Stream
) -> None:
    stream.append(("n", 1))
    errors = []

    def reenter(batch: Sequence[Append]) -> Any:
        try:
            stream.append(("n", 9))
        except RuntimeError as error:
            errors.append(error)
        return backend.really_append(batch)

    backend.script.append(reenter)
    stream.append(("n", 2))
    assert len(errors) == 1 and numbers(stream) == [1, 2]


def test_correlation_ids_nest_and_end_with_their_block(stream: holdfast.Stream) -> None:
    with holdfast.correlate("outer", actor="alice"):
        with holdfast.correlate("inner"):
            stream.append(("n", 1))
        stream.append(("n", 2))
    stream.append(("n", 3))
    assert [(event.correlation, event.by) for event in stream.read()] == [
        ("inner", "alice"),
        ("outer", "alice"),
        (None, None),
    ]


def test_tenants_are_registered_before_their_first_stream(backend: Scripted, log: Log) -> None:
    for tenant in ("acme", "globex"):
        Store(log, tenant).stream("s").append(("n", tenant))
    Store(log, "nobody").stream("s").version()
    registered = backend.heads(tenant="$system", kind="tenant")
    assert [head.stream.id for head in registered] == ["acme", "globex"]
