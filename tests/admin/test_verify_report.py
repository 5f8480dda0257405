"""What verify reads, and what its report says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import holdfast
from helpers.stored.store_copies import Wrapper
from helpers.stored.tampering import altered, found, key, rebuild, store_of, written
from holdfast.admin.verify import store as _verifying
from holdfast.backends import Head, Record, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import CorruptRecord
from holdfast.log import chain
from holdfast.types import VerifyProgress


def test_one_tenant_is_verified_alone_or_all_of_them() -> None:
    source = MemoryBackend()
    for tenant in ("acme", "globex"):
        for number in range(3):
            store_of(source).for_tenant(tenant).stream("s").append(("noted", number))
    target = MemoryBackend()
    rebuild(source, target, {key("s", tenant="globex"): altered(2)})
    store = store_of(target)
    assert store.for_tenant("acme").verify().ok
    assert found(store.for_tenant("globex").verify()) == [("s", 2, "altered")]
    assert found(store.verify(all_tenants=True)) == [("s", 2, "altered")]
    assert (store.for_tenant("acme").verify().streams, store.verify(all_tenants=True).streams) == (
        2,
        4,
    )


def test_a_tenant_is_told_that_its_own_registration_was_altered() -> None:
    target = MemoryBackend()
    rebuild(written(), target, {StreamKey("$system", "tenant", "default"): altered(1)})
    [problem] = store_of(target).verify().problems
    assert (problem.tenant, problem.kind, problem.what) == ("$system", "tenant", "altered")


def test_progress_is_told_and_ends_with_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_verifying, "SLICE_STREAMS", 1)
    told: list[VerifyProgress] = []
    report = store_of(written()).verify(progress=told.append)
    assert (told[-1].streams, told[-1].records, told[-1].bytes) == (
        report.streams,
        report.records,
        report.bytes,
    )
    assert [progress.streams for progress in told] == sorted(progress.streams for progress in told)
    assert told[-1].of in (None, report.streams)


def test_of_very_many_problems_the_first_are_listed_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_verifying, "MAX_PROBLEMS", 2)
    target = MemoryBackend()
    rebuild(written(), target, {key(name): altered(2) for name in "abc"})
    report = store_of(target).verify()
    assert (len(report.problems), report.found, report.ok) == (2, 3, False)
    assert str(report).startswith("3 problems in 4 streams")


def test_a_problem_in_words_says_where_and_what() -> None:
    target = MemoryBackend()
    rebuild(written(), target, {key("b"): altered(2)})
    [problem] = store_of(target).verify().problems
    assert str(problem).startswith("stream 'b' (version 2): altered: ")


def test_an_error_of_the_engine_is_a_problem_with_a_place_and_the_rest_is_read() -> None:
    class Broken(Wrapper):
        def read(self, stream: StreamKey, **options: Any) -> Sequence[Record]:  # type: ignore[override]
            page = self.inner.read(stream, **options)
            if stream.id == "b" and any(record.version == 4 for record in page):
                raise CorruptRecord(
                    str(stream), version=4, what="a page of the file cannot be read"
                )
            return page

    report = store_of(Broken(written())).verify()
    assert found(report) == [("b", 4, "unreadable")]
    assert report.records == 6 + 5 + 6 + 1


def test_an_engine_that_gives_the_same_page_again_and_again_is_not_asked_for_ever() -> None:
    class Stuck(Wrapper):
        def read(self, stream: StreamKey, **options: Any) -> Sequence[Record]:  # type: ignore[override]
            return self.inner.read(stream, after=0, limit=3)

    report = store_of(Stuck(written())).verify()
    assert found(report) == [(name, 4, "missing") for name in "abc"]


def test_a_verification_that_is_cancelled_ends() -> None:
    started = asyncio.Event()

    class Slow(Wrapper):
        def __init__(self, inner: MemoryBackend, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__(inner)
            self._loop, self.reads = loop, 0

        def read(self, stream: StreamKey, **options: Any) -> Sequence[Record]:  # type: ignore[override]
            self._loop.call_soon_threadsafe(started.set)
            self.reads += 1
            return self.inner.read(stream, **options)

    async def program() -> None:
        source = written()
        for number in range(500):
            store_of(source).stream(f"s-{number}").append(("noted", 1))
        slow = Slow(source, asyncio.get_running_loop())
        work = asyncio.ensure_future(store_of(slow).aio.verify())
        await started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(program())


def test_large_values_whose_owner_was_deleted_are_no_damage() -> None:
    """Killed between the stream and its large values: they stay, and the key is gone with the
    stream."""
    backend = Dying()
    with holdfast.open(backend, key=bytes(range(32))) as store:
        chat = store.conversation("chat")
        chat.append({"role": "user", "content": "x" * 100_000})
        backend.dies = True
        with pytest.raises(Died):
            chat.delete()
    with holdfast.open(backend, key=bytes(range(32))) as again:
        assert backend.heads(tenant="default", kind="blob")
        found = again.verify()
        assert found.ok and found.erased == 1


def test_nor_are_those_that_came_too_late_and_have_another_key() -> None:
    """Large values of a stream that is gone by now: each who was on the way may have made a key for
    it."""
    backend = Dying()
    with holdfast.open(backend, key=bytes(range(32))) as store:
        chat = store.conversation("chat")
        chat.append({"role": "user", "content": "x" * 100_000})
        backend.dies = True
        with pytest.raises(Died):
            chat.delete()
        [blob] = backend.heads(tenant="default", kind="blob")
        assert store._log.cipher is not None
        store._log.cipher.keys.ensure("default", blob.stream.id[:65])
        assert store.verify().ok


def test_a_large_value_that_was_altered_is_told_with_what_names_it() -> None:
    backend = Dying()
    with holdfast.open(backend, key=bytes(range(32))) as store:
        store.conversation("chat").append({"role": "user", "content": "x" * 100_000})
        store.conversation("other").append({"role": "user", "content": "y" * 100_000})
        blob = backend.heads(tenant="default", kind="blob")[0].stream
        held = backend._streams[blob]
        [record] = held.records
        body = record.body[:-1] + bytes([record.body[-1] ^ 1])
        seed = chain.seed(blob, held.incarnation)
        digest = chain.link(seed, chain.GENESIS, 1, record.append_id, body)
        held.records[0], held.hash = Record(1, record.append_id, digest, body), digest
        [problem] = store.verify().problems
        assert (problem.kind, problem.what) == ("conversation", "value")


def test_a_large_value_whose_key_is_gone_is_told_with_its_owner() -> None:
    backend = Dying()
    with holdfast.open(backend, key=bytes(range(32))) as store:
        store.conversation("chat").append({"role": "user", "content": "x" * 100_000})
        for head in backend.heads(tenant="default", kind="key"):
            if not head.stream.id.startswith("house"):
                backend.delete(head.stream, expected=head)
    with holdfast.open(backend, key=bytes(range(32))) as again:
        assert [(problem.kind, problem.id) for problem in again.verify().problems] == [
            ("conversation", "chat")
        ]


class Died(BaseException):
    """The process ends here."""


class Dying(MemoryBackend):
    """Outlives its stores; and dies when a large value is to be deleted."""

    dies = False

    def close(self) -> None:
        pass

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        if self.dies and stream.kind == "blob":
            self.dies = False
            raise Died
        return super().delete(stream, expected=expected)


def test_what_is_erased_while_it_is_verified_is_no_damage() -> None:
    """The keys are still in memory, and the large values are gone."""
    backend = Erasing()
    with (
        holdfast.open(backend, key=bytes(range(32))) as store,
        holdfast.open(backend, key=bytes(range(32))) as other,
    ):
        store.conversation("chat").append({"role": "user", "content": "x" * 100_000})
        assert store.verify().ok
        backend.then = lambda: other.erase(other.conversation("chat"))
        found = store.verify()
        assert backend.then is None
        assert (found.problems, found.erased) == ([], 1)


class Erasing(MemoryBackend):
    """Outlives its stores; and something happens right after somebody has asked where a
    conversation is."""

    then: Callable[[], object] | None = None

    def close(self) -> None:
        pass

    def head(self, stream: StreamKey) -> Head | None:
        found = super().head(stream)
        if self.then is not None and stream.kind == "conversation":
            then, self.then = self.then, None
            then()
        return found
