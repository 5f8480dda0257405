"""DynamoDB and S3 behind a network that loses answers, delays requests and cuts connections, and
services that are busy.

Real boto3 speaks to a real HTTP server, with a proxy of ours between them. What was acknowledged is
noted outside of the store; the store is looked at afterwards on the direct way.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pytest

import holdfast
from helpers.engines.aws_proxy import AwsProxy, Reply, Request, proxy_to
from helpers.servers import aws, url_on
from holdfast import Stream, _open
from holdfast.backends import (
    Append,
    AppendResult,
    Backend,
    Head,
    HeadFields,
    Record,
    VersionMismatch,
)
from holdfast.conformance.build import (
    StreamTracker,
    all_due,
    all_heads,
    ids,
    key,
    must_head,
    read_all,
)
from holdfast.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")
WRITES = ("PutItem", "BatchWriteItem", "UpdateItem", "PUT", "POST", "DELETE")


class Place(NamedTuple):
    """One store: by the direct way, and by the way with faults."""

    direct: str
    faulty: str
    proxy: AwsProxy

    def open(self, *, faults: bool) -> Backend:
        """With faults it may fail, as a request does that meets several in a row: then nothing came
        of it, and it is tried again."""
        for _ in range(50 if faults else 0):
            with suppress(Unavailable, OutcomeUnknown):
                return _open.open_backend(self.faulty, "disk")
        return _open.open_backend(self.faulty if faults else self.direct, "disk")


@pytest.fixture(params=["dynamodb", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    direct = url_on(request.param, tmp_path)
    with proxy_to(aws()) as proxy:
        place = Place(direct, direct.replace(aws(), proxy.endpoint), proxy)
        place.open(faults=False).close()  # so that faults hit the work, not the opening
        yield place


class Weather:
    """A rule under which one request in so many meets each of the faults, by the dice of a seed."""

    def __init__(self, seed: int, **one_in: int) -> None:
        self._dice, self._lock, self._one_in = random.Random(seed), threading.Lock(), one_in
        self._late: list[Request] = []

    def __call__(self, request: Request) -> Reply | None:
        with self._lock:
            met = [
                fault for fault, one_in in self._one_in.items() if self._dice.randrange(one_in) == 0
            ]
            late = self._late.pop(0) if self._late and self._dice.randrange(4) == 0 else None
        if late is not None:
            late.pass_on()  # what was sent long ago, and given up, arrives now
        fault = met[0] if met else ""
        if fault == "throttle":
            s3 = request.operation == request.method
            return request.refuse(
                *("SlowDown", 503) if s3 else ("ProvisionedThroughputExceededException", 400)
            )
        if fault == "fail":
            request.pass_on()
            return request.refuse("InternalError", 500)
        if fault == "cut":
            return request.cut()
        if request.operation in WRITES and fault == "lose":
            return request.lose()
        if request.operation in WRITES and fault == "late":
            with self._lock:
                self._late.append(request)
            request.proxy.faults["late"] += 1
            return None
        return request.pass_on()


# -- several writers -------------------------------------------------------------------------------


class Notes:
    """What a writer was told: the appends that are stored, and those that are surely not."""

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, tuple[Append, AppendResult]] = {}
        self.refused: dict[bytes, Append] = {}

    def tell(self, append: Append, answer: AppendResult | VersionMismatch | None) -> None:
        if isinstance(answer, AppendResult):
            self.acknowledged[append.id] = append, answer
        else:
            self.refused[append.id] = append


def settled(
    backend: Backend, append: Append, *, tries: int = 200
) -> AppendResult | VersionMismatch | None:
    """Send an append until its outcome is certain. None if the store says that surely nothing was
    stored."""
    in_doubt = False
    for _ in range(tries):
        try:
            return backend.append([append])[0]
        except OutcomeUnknown:
            in_doubt = True
        except Unavailable:
            if not in_doubt:
                return None
    raise AssertionError("an append did not become certain")


def at(head: Head | None, stream: str, *bodies: bytes) -> Append:
    """An append behind this head."""
    tracker = StreamTracker(stream)
    if head is not None:
        tracker.incarnation, tracker.version, tracker.hash = (
            head.incarnation,
            head.version,
            head.hash,
        )
    indexed = os.urandom(1)[0] % 3 == 0
    fields = (
        HeadFields(status=f"{os.urandom(1)[0] % 2}", due_at=1.0) if os.urandom(1)[0] % 2 else None
    )
    return tracker.next(*bodies, indexed=indexed, fields=fields)


def write(place: Place, writer: int, count: int) -> Notes:
    """Append so often to a stream that all write to, and to one of the writer's own."""
    backend, notes = place.open(faults=True), Notes()
    done = 0
    while done < count:
        stream = "shared" if done % 2 else f"own {writer}"
        try:
            head = backend.head(key(stream))
        except Unavailable:
            continue
        bodies = [b"%d %d %d" % (writer, done, part) for part in range(1 + done % 3)]
        append = at(head, stream, *bodies, *[os.urandom(500_000)] * (done % 8 == 0))
        answer = settled(backend, append)
        notes.tell(append, answer)
        done += isinstance(answer, AppendResult)
    backend.close()
    return notes


@pytest.mark.parametrize("seed", [1, 2])
def test_what_several_writers_were_told_is_true(seed: int, place: Place) -> None:
    place.proxy.rule = Weather(seed, lose=9, throttle=12, cut=14, late=15, fail=20)
    with ThreadPoolExecutor(3) as pool:
        told = list(pool.map(lambda writer: write(place, writer, 20), range(3)))
    place.proxy.rule = Request.pass_on
    faults = place.proxy.faults
    assert min(faults[fault] for fault in ("lost", "refused", "cut", "late")) > 0, faults

    backend = place.open(faults=False)
    records: dict[str, list[Record]] = {}
    for stream in ("shared", "own 0", "own 1", "own 2"):
        records[stream] = read_all(backend, key(stream))
        assert [record.version for record in records[stream]] == list(
            range(1, len(records[stream]) + 1)
        )
        head = must_head(backend, key(stream))
        assert (head.version, head.hash) == (records[stream][-1].version, records[stream][-1].hash)
    stored: dict[tuple[str, bytes], list[Record]] = {}
    for stream, some in records.items():
        for record in some:
            stored.setdefault((stream, record.append_id), []).append(record)
    for notes in told:
        assert len(notes.acknowledged) == 20
        for append, answer in notes.acknowledged.values():
            found = stored.pop((append.stream.id, append.id))
            assert [record.version for record in found] == list(
                range(answer.first, answer.last + 1)
            )
            assert [(record.hash, record.body) for record in found] == list(append.records)
        for append in notes.refused.values():
            assert (append.stream.id, append.id) not in stored
    assert stored == {}, "something was stored that nobody was told of"
    assert set(ids(all_heads(backend))) == set(records)
    backend.close()


def test_streams_that_are_deleted_and_begun_again_are_as_they_were_left(place: Place) -> None:
    place.proxy.rule = Weather(3, lose=9, throttle=14, cut=14, late=12)
    backend = place.open(faults=True)
    trackers: dict[str, int] = {}
    for number in range(24):
        stream = f"s{number % 4}"
        head = until_answered(partial(backend.head, key(stream)))
        assert (head.version if head else 0) == trackers.get(stream, 0)
        if head is not None and number % 3:
            assert until_answered(partial(deleted, backend, head))
            trackers.pop(stream)
            continue
        append = at(head, stream, b"%d" % number)
        while (answer := settled(backend, append)) is None:
            pass
        assert isinstance(answer, AppendResult)
        trackers[stream] = append.expected + 1
    backend.close()
    place.proxy.rule = Request.pass_on
    assert place.proxy.faults["late"] > 0, place.proxy.faults
    assert place.proxy.faults["lost"] > 0, place.proxy.faults
    direct = place.open(faults=False)
    assert {head.stream.id: head.version for head in all_heads(direct)} == trackers
    due = [head.stream.id for head in all_heads(direct) if head.fields.due is not None]
    assert sorted(ids(all_due(direct))) == sorted(due)
    direct.close()


def until_answered(call: Callable[[], T]) -> T:
    for _ in range(200):
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            pass
    raise AssertionError("there was no answer for too long")


def deleted(backend: Backend, head: Head) -> bool:
    # False also if an earlier attempt, whose answer was lost, has deleted it.
    return backend.delete(head.stream, expected=head) or backend.head(head.stream) is None


def test_a_reader_gets_everything_or_an_error(place: Place) -> None:
    direct, tracker = place.open(faults=False), StreamTracker()
    for number in range(12):
        tracker.write(
            direct,
            b"%d" % number,
            b"x" * 400_000 * (number % 5 == 0),
            fields=HeadFields(status="s", due_at=1.0),
        )
    records = read_all(direct, tracker.stream)
    direct.close()
    place.proxy.rule = Weather(4, throttle=12, cut=12, fail=15)
    backend = place.open(faults=True)
    for _ in range(5):
        assert until_answered(lambda: read_all(backend, tracker.stream)) == records
        assert (
            until_answered(lambda: read_all(backend, tracker.stream, limit=5, reverse=True))
            == records[::-1]
        )
        assert (
            until_answered(lambda: must_head(backend, tracker.stream)).version
            == records[-1].version
        )
        assert until_answered(lambda: ids(all_heads(backend, status="s"))) == ["s"]
        assert until_answered(lambda: ids(all_due(backend))) == ["s"]
    backend.close()
    assert min(place.proxy.faults[fault] for fault in ("refused", "cut")) > 2, place.proxy.faults


# -- through the log -------------------------------------------------------------------------------


def test_a_hundred_appends_whose_answers_are_lost_at_random_are_stored_once_each(
    place: Place,
) -> None:
    place.proxy.rule = Weather(5, lose=4, late=20)
    with holdfast.open(place.faulty) as store:
        stream = store.stream("orders")
        for number in range(100):
            say(stream, number)
    place.proxy.rule = Request.pass_on
    assert place.proxy.faults["lost"] > 15, place.proxy.faults
    assert place.proxy.faults["late"] > 0, place.proxy.faults
    with holdfast.open(place.direct) as store:
        assert [event.data for event in store.stream("orders").read()] == [
            {"number": n} for n in range(100)
        ]


def test_writers_of_several_stores_lose_and_double_nothing(place: Place) -> None:
    place.proxy.rule = Weather(6, lose=8, throttle=10, cut=14, late=15, fail=16)

    def work(writer: int) -> None:
        with holdfast.open(place.faulty) as store:
            for number in range(writer * 100, writer * 100 + 15):
                say(store.stream("orders"), number)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    place.proxy.rule = Request.pass_on
    assert min(place.proxy.faults[fault] for fault in ("lost", "refused", "cut", "late")) > 0, (
        place.proxy.faults
    )
    with holdfast.open(place.direct) as store:
        numbers = [
            cast("dict[str, int]", event.data)["number"] for event in store.stream("orders").read()
        ]
    assert sorted(numbers) == [writer * 100 + number for writer in range(3) for number in range(15)]
    assert all(numbers.index(n) < numbers.index(n + 1) for n in numbers if n + 1 in numbers)


def say(stream: Stream, number: int) -> None:
    """Append a number once, as a program would: what surely was not stored is repeated, what is in
    doubt by its id."""
    known: str | None = None
    for _ in range(50):
        try:
            stream.append(("said", {"number": number}), id=known)
            return
        except OutcomeUnknown as error:
            known = error.id
        except Unavailable:
            pass
    raise AssertionError("an append did not become certain")


def test_a_service_that_is_busy_for_long_is_unavailable_and_stores_nothing(place: Place) -> None:
    with holdfast.open(place.faulty) as store:
        stream = store.stream("orders")
        stream.append(("said", {"number": 1}))
        place.proxy.rule = Weather(7, throttle=1)
        with pytest.raises(Unavailable, match="busy"):
            stream.append(("said", {"number": 2}))
        with pytest.raises(Unavailable, match="busy"):
            list(stream.read())
        place.proxy.rule = Request.pass_on
        stream.append(("said", {"number": 3}))
        assert [event.data for event in stream.read()] == [{"number": 1}, {"number": 3}]
