"""A new key for a store: killed at any write, everything stays readable, and the same call finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast import NotEncrypted, Store, UnknownKey, WrongKey, keys
from holdfast.backends import Append, Appended, Backend, Conflict, Head, StreamKey
from holdfast.backends.sqlite import SQLiteBackend
from test_encryption import Lasting, say

OLD, NEW, THIRD = keys.generate(), keys.generate(), keys.generate()


class Killed(BaseException):
    """The process ends here."""


class Mortal(Lasting):
    """Dies at one of its writes: before it (even numbers), or after it (odd ones)."""

    def __init__(self) -> None:
        super().__init__()
        self.writes, self.dies_at = 0, -1

    def _boundary(self) -> None:
        if self.writes == self.dies_at:
            raise Killed
        self.writes += 1

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        self._boundary()
        answers = super().append(batch)
        self._boundary()
        return answers

    def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
        self._boundary()
        done = super().delete(stream, expected=expected, upto=upto)
        self._boundary()
        return done


def filled(store: Store) -> None:
    store.conversation("chat").append(say("hello"), say("x" * 70_000))
    with store.task("task", goal="goal") as task:
        task.attach("file", b"content")
        task.finish("result")
    store.for_tenant("globex").conversation("chat").append(say("of globex"))


def check(store: Store) -> None:
    assert store.conversation("chat").messages() == [say("hello"), say("x" * 70_000)]
    view = store.get_task("task")
    assert view is not None and (view.goal, view.result) == ("goal", "result")
    assert [info.goal for info in store.tasks()] == ["goal"]
    assert store.artifact("task", "file").read() == b"content"
    assert store.for_tenant("globex").conversation("chat").messages() == [say("of globex")]
    assert store.verify(all_tenants=True).ok


def wrapped_by(backend: Backend) -> set[str]:
    """The master keys that data keys are wrapped by."""
    return {
        head.stream.id.rpartition(".")[2]
        for tenant in ("default", "globex")
        for head in backend.heads(tenant=tenant, kind="key")
    }


def test_a_store_gets_a_new_key_and_no_record_changes(durable_url: str) -> None:
    with holdfast.open(durable_url, key=OLD) as store:
        filled(store)
        before = store._log.backend.read(StreamKey("default", "conversation", "chat"))
        told: list[int] = []
        done = store.rekey(NEW, progress=told.append)
        assert done.keys == done.now == 5 and told == [1, 2, 3, 4, 5]
        assert store._log.backend.read(StreamKey("default", "conversation", "chat")) == before
        check(store)
        store.conversation("new").append(say("with the new key"))
    with pytest.raises(WrongKey):
        holdfast.open(durable_url, key=OLD)
    with holdfast.open(durable_url, key=NEW) as store:
        check(store)
        assert store.conversation("new").messages() == [say("with the new key")]
        assert len(wrapped_by(store._log.backend)) == 1
        assert store.rekey(keys.passphrase("four words are better", n=1 << 14)).now == 6
    with holdfast.open(durable_url, key=keys.passphrase("four words are better")) as store:
        check(store)


def sweep() -> Iterator[tuple[int, Mortal]]:
    """A store for each boundary of each write of a change of keys, killed there."""
    number = 0
    while True:
        backend = Mortal()
        store = holdfast.open(backend, key=OLD)
        filled(store)
        backend.writes, backend.dies_at = 0, number
        try:
            store.rekey(NEW)
        except Killed:
            backend.dies_at = -1
            yield number, backend
            number += 1
            continue
        assert number > 20, "there are more writes than that"
        return


def test_killed_at_any_write_everything_is_readable_and_the_same_call_finishes_it() -> None:
    for number, backend in sweep():
        with holdfast.open(backend, key=[NEW, OLD]) as store:
            check(store)
            store.conversation(f"meanwhile {number}").append(say("goes on"))
        with holdfast.open(backend, key=[OLD, NEW]) as store:
            check(store)
            store.rekey(NEW)
        with holdfast.open(backend, key=NEW) as store:
            check(store)
            assert store.conversation(f"meanwhile {number}").messages() == [say("goes on")]
        assert len(wrapped_by(backend)) == 1
        with pytest.raises(WrongKey):
            holdfast.open(backend, key=OLD)


def test_half_way_to_one_key_another_is_refused() -> None:
    for number, backend in sweep():
        if number < 2:
            continue
        with holdfast.open(backend, key=[NEW, OLD]) as store, pytest.raises(WrongKey, match="another new key"):
            store.rekey(THIRD)
        return


def test_two_who_give_the_same_new_key_at_once_do_it_together() -> None:
    """One is stopped at each of its writes, and the other does all of it there."""
    for _, backend in sweep():
        one = holdfast.open(backend, key=[OLD, NEW])
        with holdfast.open(backend, key=[OLD, NEW]) as two:
            two.rekey(NEW)
        one.rekey(NEW)
        check(one)
        assert len(wrapped_by(backend)) == 1


def test_a_process_with_the_old_key_only_goes_on_with_what_it_knows_and_says_what_it_does_not() -> None:
    backend = Lasting()
    old = holdfast.open(backend, key=OLD)
    filled(old)
    old.conversation("chat").messages()
    with holdfast.open(backend, key=[NEW, OLD]) as store:
        store.conversation("new").append(say("later"))
        store.rekey(NEW)
    assert old.conversation("chat").messages()[0] == say("hello")
    with pytest.raises((UnknownKey, WrongKey)):
        old.conversation("new").messages()
    with pytest.raises((UnknownKey, WrongKey)):
        old.conversation("another").append(say("nothing is begun with a key that was replaced"))


def test_what_was_begun_with_a_former_master_key_meanwhile_stays_readable() -> None:
    backend = Lasting()
    old = holdfast.open(backend, key=OLD)
    filled(old)
    cipher = old._log.cipher
    assert cipher is not None
    ring = cipher.keys.ring
    ring.reload = lambda: False  # type: ignore[method-assign]  it looked just before the change
    with holdfast.open(backend, key=[NEW, OLD]) as store:
        store.rekey(NEW)
    old.conversation("late").append(say("with a former master key"))
    with holdfast.open(backend, key=NEW) as store:
        assert store.conversation("late").messages() == [say("with a former master key")]
        store.rekey(THIRD)
    assert len(wrapped_by(backend)) == 1
    with holdfast.open(backend, key=THIRD) as store:
        assert store.conversation("late").messages() == [say("with a former master key")]


def test_a_store_in_clear_has_no_key_to_change() -> None:
    with holdfast.open("memory://") as store, pytest.raises(NotEncrypted):
        store.rekey(NEW)


class DyingSQLite(SQLiteBackend):
    """Ends its process by kill -9 at one of its commits."""

    left = -1

    def append(self, batch: Sequence[Append]) -> Sequence[Appended | Conflict]:
        self._count()
        return super().append(batch)

    def delete(self, stream: StreamKey, *, expected: Head, upto: int | None = None) -> bool:
        self._count()
        return super().delete(stream, expected=expected, upto=upto)

    def _count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


def test_kill_9_in_the_middle_of_it(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    with holdfast.open(path, key=OLD) as store:
        filled(store)
    kills = 0
    for left in range(2, 40, 4):
        process = os.fork()
        if process == 0:
            backend = DyingSQLite(path)
            store = holdfast.open(backend, key=[OLD, NEW])
            backend.left = left
            store.rekey(NEW)
            os._exit(0)
        kills += os.WIFSIGNALED(os.waitpid(process, 0)[1])
        with holdfast.open(path, key=[NEW, OLD]) as store:
            check(store)
        if kills and left > 20:
            break
    assert kills
    with holdfast.open(path, key=[OLD, NEW]) as store:
        store.rekey(NEW)
    with holdfast.open(path, key=NEW) as store:
        check(store)


def test_a_store_gets_a_new_key_while_it_is_open(url: str) -> None:
    with holdfast.open(url, key=OLD) as store:
        filled(store)
        assert store.rekey(NEW).now == 5
        check(store)
        assert len(wrapped_by(store._log.backend)) == 1


def test_an_async_store_gets_a_new_key_while_it_is_open(url: str) -> None:
    async def run() -> None:
        async with holdfast.aopen(url, key=OLD) as store:
            await store.conversation("chat").append(say("hello"))
            assert (await store.rekey(NEW)).now == 2
            assert await store.conversation("chat").messages() == [say("hello")]
            await store.conversation("new").append(say("hello"))
            assert len(wrapped_by(store._log.backend)) == 1

    asyncio.run(run())
