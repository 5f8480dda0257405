"""The fields of a head are in no record. Whoever alters one is found: by each reader of the head,
and by `verify`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from helpers.stores import KEY
from holdfast.backends import Head, HeadFields, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptRecord, TamperDetected
from holdfast.log import chain
from holdfast.log.head_fields import decode_fields, encode_fields, pack_fields

BY_KEY = [pytest.param(None, id="plain"), pytest.param(KEY, id="encrypted")]
STREAM = StreamKey("default", "task", "t")


Change = Callable[[HeadFields], HeadFields]


class Lasting(MemoryBackend):
    def close(self) -> None: ...


def write_tasks(key: str | None) -> Lasting:
    backend = Lasting()
    with holdfast.open(backend, key=key) as store:
        for name in ("s", "t", "u"):
            with pytest.raises(holdfast.Suspended), store.task(name, goal="work") as task:
                task.sleep(timedelta(days=1))
        store.conversation("c").append({"role": "user", "content": "hi"})
        store.conversation("c").expire(timedelta(days=1))
    return backend


def alter(backend: MemoryBackend, stream: StreamKey, change: Change) -> None:
    backend._streams[stream].fields = change(backend._streams[stream].fields)


def replace(**fields: object) -> Change:
    return lambda old: msgspec.structs.replace(old, **fields)


def flip_label(old: HeadFields) -> HeadFields:
    assert old.label is not None
    return msgspec.structs.replace(old, label=old.label[:-1] + bytes([old.label[-1] ^ 1]))


CHANGES = [
    pytest.param(replace(status="failed"), id="status"),
    pytest.param(replace(owner="somebody"), id="owner"),
    pytest.param(replace(due_at=1.0), id="due"),
    pytest.param(replace(due_at=None), id="no due time"),
    pytest.param(replace(expires_at=5e9), id="expires"),
    pytest.param(flip_label, id="label"),
    pytest.param(replace(label=None), id="no label"),
    pytest.param(replace(label=b""), id="empty label"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("key", BY_KEY)
def test_a_field_that_was_altered_is_refused_and_reported_and_ends_no_listing(
    change: Change, key: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    backend = write_tasks(key)
    alter(backend, STREAM, change)
    with holdfast.open(backend, key=key) as store:
        with pytest.raises((CorruptRecord, TamperDetected)):
            store.task("t").view()
        assert sorted(task.id for task in store.tasks()) == ["s", "u"]
        assert "left out of a listing: task 't'" in caplog.text
        report = store.verify()
        assert [(problem.id, problem.what) for problem in report.problems] == [("t", "head")]


@pytest.mark.parametrize("key", BY_KEY)
def test_a_stream_that_lost_all_its_fields_can_be_read_and_is_reported(key: str | None) -> None:
    """As after a copy of it that was not finished."""
    backend = write_tasks(key)
    alter(backend, STREAM, lambda _: HeadFields())
    with holdfast.open(backend, key=key) as store:
        assert store.task("t").view().goal == "work"
        report = store.verify()
        assert [(problem.id, problem.what) for problem in report.problems] == [("t", "head")]


@pytest.mark.parametrize("key", BY_KEY)
def test_the_fields_of_another_stream_are_refused(key: str | None) -> None:
    backend = write_tasks(key)
    alter(backend, STREAM, lambda _: backend._streams[STREAM._replace(id="s")].fields)
    with holdfast.open(backend, key=key) as store:
        with pytest.raises((CorruptRecord, TamperDetected)):
            store.task("t").view()
        assert [problem.what for problem in store.verify().problems] == ["head"]


@pytest.mark.parametrize("key", BY_KEY)
def test_a_page_of_altered_entries_does_not_end_a_listing(key: str | None) -> None:
    backend = Lasting()
    with holdfast.open(backend, key=key) as store:
        for number in range(12):
            store.conversation(f"c{number:02}").append({"role": "user", "content": "hi"})
    for number in range(11):
        alter(backend, StreamKey("default", "conversation", f"c{number:02}"), replace(status="x"))
    with holdfast.open(backend, key=key) as store:
        listed = store._log.handle(
            holdfast.log.operations.ListHeads("default", "conversation", limit=3)
        )
        assert [head.stream.id for head in listed] == ["c11"]


@pytest.mark.parametrize("key", BY_KEY)
def test_every_head_has_a_checksum_from_its_first_record_on(key: str | None) -> None:
    backend = Lasting()
    with holdfast.open(backend, key=key) as store:
        store.stream("s").append(("noted", 1))
        store.state("d").save({"a": 1})
        store.memory("m").remember("The sky is blue.")
        store.conversation("c").append({"role": "user", "content": "x" * 100_000})
        store.conversation("c").delete()
        assert store.verify(all_tenants=True).ok
    assert all(stream.fields.label for stream in backend._streams.values())


texts = st.none() | st.text(max_size=4)
times = st.none() | st.floats(allow_nan=False)
all_fields = st.builds(
    HeadFields,
    status=texts,
    label=st.none() | st.binary(max_size=4),
    owner=texts,
    due_at=times,
    expires_at=times,
)


@given(all_fields)
def test_stored_fields_come_back(fields: HeadFields) -> None:
    stored = encode_fields(chain.seed(STREAM, b"l" * 16), fields)
    assert decode_fields(Head(STREAM, b"l" * 16, stored, 0.0, 1, b"")) == fields


@given(all_fields, all_fields)
def test_no_two_different_fields_are_packed_alike(one: HeadFields, other: HeadFields) -> None:
    same = [one.status, one.owner, one.due_at, one.expires_at] == [
        other.status,
        other.owner,
        other.due_at,
        other.expires_at,
    ]
    if not same:
        assert pack_fields(one) != pack_fields(other)
