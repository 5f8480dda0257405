"""Operations are tested by feeding them answers by hand: no backend, no event loop, no mocks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.backends import AppendResult, Head, HeadFields, Record, StreamKey
from holdfast.errors import Conflict, CorruptRecord, Unavailable
from holdfast.log import operations as ops
from holdfast.log.events import AppendContext, Blob, NewEvent
from holdfast.log.operations.blobs import delete_blobs, get_blob, put_blob
from holdfast.log.operations.stream_ops import append_events, delete_stream

KEY = StreamKey("t", "stream", "s")
INCARNATION = b"i".hex() * 16
STAMP = AppendContext(7 << 80 | 7 << 76, 1.5, "req-1")


def head_of(stream: StreamKey, version: int = 1) -> Head:
    return Head(stream, b"i" * 16, HeadFields(), 0.0, version, b"h" * 32)


def feed(operation: ops.Operation[Any], *answers: Any) -> tuple[list[ops.Request], Any]:
    """Run an operation on prepared answers; the requests it made and its result. An exception is
    thrown in."""
    requests = [next(operation)]
    for answer in answers:
        try:
            if isinstance(answer, Exception):
                requests.append(operation.throw(answer))
            else:
                requests.append(operation.send(answer))
        except StopIteration as done:
            return requests, done.value
    raise AssertionError(f"the operation asks for more: {requests[-1]}")


def test_small_data_is_one_append_and_nothing_else() -> None:
    requests, result = feed(append_events(KEY, [NewEvent("a", b"1")], STAMP), AppendResult(1, 1))
    assert result == AppendResult(1, 1)
    [request] = requests
    assert isinstance(request, ops.AppendRecords)
    assert request.bodies == [
        b'{"id":"00000000-0007-7000-0000-000000000000","type":"a","at":1.5,"correlation":"req-1","data":1}'
    ]


def test_large_data_is_stored_as_a_blob_before_the_event_that_names_it() -> None:
    data = b'"' + b"x" * 70_000 + b'"'
    requests, _ = feed(
        append_events(KEY, [NewEvent("a", data)], STAMP),
        None,
        None,
        AppendResult(1, 1),
        AppendResult(1, 1),
    )
    owner, look, blob, event = requests
    assert isinstance(owner, ops.GetHead) and owner.stream == KEY
    assert isinstance(look, ops.GetHead) and look.stream.kind == "blob"
    assert isinstance(blob, ops.AppendRecords) and blob.stream == look.stream and blob.expected == 0
    assert (
        isinstance(event, ops.AppendRecords)
        and event.stream == KEY
        and event.incarnation is not None
    )
    assert b"xxxx" not in event.bodies[0] and b'"blob":{"digest":"' in event.bodies[0]


def test_a_blob_that_is_already_there_is_not_stored_again() -> None:
    key = StreamKey("t", "blob", "x")
    requests, blob = feed(put_blob(KEY, INCARNATION, b"v" * 100, STAMP), head_of(key))
    assert len(requests) == 1 and blob.size == 100


def test_a_blob_stored_by_somebody_else_in_the_meantime_is_fine() -> None:
    _, blob = feed(
        put_blob(KEY, INCARNATION, b"v", STAMP), None, Conflict("blob", expected=0, actual=1)
    )
    assert blob.size == 1


def test_a_blob_that_does_not_match_its_digest_is_reported() -> None:
    operation = get_blob(KEY, Blob("0" * 64, 3, INCARNATION))
    with pytest.raises(CorruptRecord, match="missing or altered"):
        feed(operation, [Record(1, b"", b"", b"\0abc")], head_of(KEY))


def test_a_blob_that_went_with_its_stream_is_not_called_damage() -> None:
    with pytest.raises(Unavailable, match="deleted during the read"):
        feed(get_blob(KEY, Blob("0" * 64, 3, INCARNATION)), [], None)


def test_blobs_are_read_page_by_page() -> None:
    _, blob = feed(put_blob(KEY, INCARNATION, b"abcdef", STAMP), head_of(KEY))
    _, value = feed(
        get_blob(KEY, blob), [Record(1, b"", b"", b"\0abc")], [Record(2, b"", b"", b"\0def")]
    )
    assert value == b"abcdef"


def test_only_blobs_of_the_owner_are_deleted() -> None:
    _, blob = feed(put_blob(KEY, INCARNATION, b"mine", STAMP), head_of(KEY))
    from holdfast.log.operations.blobs import blob_key

    mine = head_of(blob_key(KEY, blob))
    stranger = head_of(StreamKey("t", "blob", "z" * 70))
    requests, count = feed(delete_blobs(KEY, INCARNATION), [mine, stranger], True)
    assert count == 1
    assert [r.stream for r in requests if isinstance(r, ops.Delete)] == [mine.stream]


def test_a_deletion_is_written_to_the_audit_stream_first() -> None:
    requests, deleted = feed(
        delete_stream(KEY, STAMP, "gdpr"), head_of(KEY, 9), AppendResult(1, 1), True, []
    )
    assert deleted is True
    look, audit, delete, _ = requests
    assert isinstance(look, ops.GetHead)
    assert (
        isinstance(audit, ops.AppendRecords)
        and audit.stream.kind == "audit"
        and b'"version":9' in audit.bodies[0]
    )
    assert isinstance(delete, ops.Delete) and delete.stream == KEY


def test_deleting_what_is_not_there_says_so_and_writes_nothing() -> None:
    requests, deleted = feed(delete_stream(KEY, STAMP, "x"), None, [])
    assert deleted is False and not any(
        isinstance(request, (ops.AppendRecords, ops.Delete)) for request in requests
    )


def test_a_deletion_that_lost_a_race_says_so_and_can_be_run_again() -> None:
    with pytest.raises(Conflict):
        feed(
            delete_stream(KEY, STAMP, "x"),
            head_of(KEY, 9),
            AppendResult(1, 1),
            False,
            head_of(KEY, 10),
        )


class Answering:
    """A handler that gives prepared answers."""

    timeout = 30.0

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def handle(self, request: ops.Request) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def handle_async(self, request: ops.Request) -> Any:
        await asyncio.sleep(0)
        return self.handle(request)

    def conflict_lock(self) -> threading.Lock:
        return threading.Lock()

    def conflict_lock_async(self) -> asyncio.Lock:
        return asyncio.Lock()


def twice(seen: list[Any]) -> ops.Operation[str]:
    try:
        seen.append((yield from ops.head(KEY)))
    except Unavailable:
        seen.append("caught")
    seen.append((yield from ops.head(KEY)))
    return "done"


def drive(kind: str, handler: Answering, operation: ops.Operation[Any]) -> Any:
    if kind == "sync":
        return ops.run(handler, operation)
    return asyncio.run(ops.run_async(handler, operation))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_driver_hands_answers_and_errors_to_the_operation(kind: str) -> None:
    seen: list[Any] = []
    assert drive(kind, Answering(Unavailable("x"), None), twice(seen)) == "done"
    assert seen == ["caught", None]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_driver_closes_the_operation_whatever_happens(kind: str) -> None:
    closed = []

    def operation() -> ops.Operation[None]:
        try:
            yield from ops.head(KEY)
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        drive(kind, Answering(KeyboardInterrupt()), operation())
    assert closed == [True]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_after_a_conflict_the_operation_runs_again_from_the_start(kind: str) -> None:
    runs = []

    def make() -> ops.Operation[str]:
        runs.append(True)
        return twice([])

    handler = Answering(None, Conflict("s", expected=1, actual=2), None, None)
    if kind == "sync":
        assert ops.run_until_settled(handler, make) == "done"
    else:
        assert asyncio.run(ops.run_until_settled_async(handler, make)) == "done"
    assert len(runs) == 2


def test_conflicts_without_end_reach_the_caller() -> None:
    handler = Answering(*[Conflict("s", expected=1, actual=2)] * ops.MAX_RERUNS)
    with pytest.raises(Conflict):
        ops.run_until_settled(handler, lambda: twice([]))
    assert handler.answers == []
