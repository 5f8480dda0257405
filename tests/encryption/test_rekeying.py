"""A new key for a store: killed at any write, everything stays readable, and the same call finishes
it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.stored.encrypted_stores import Killed, Lasting, Mortal, everything_in, say
from holdfast import Store, keys
from holdfast.backends import Append, AppendResult, Backend, Head, StreamKey, VersionMismatch
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.encryption import data_keys, rotation
from holdfast.encryption.data_keys import DataKeys, build_first_append
from holdfast.encryption.keyring import Keyring, store_append
from holdfast.errors import NotEncrypted, UnknownKey, WrongKey
from holdfast.log.events import AppendContext, NewEvent, encode_envelopes
from holdfast.log.ids import new_id

pytestmark = pytest.mark.unencrypted("uses keys of its own")

OLD, NEW, THIRD = keys.generate(), keys.generate(), keys.generate()


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


@pytest.mark.slow
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
        with (
            holdfast.open(backend, key=[NEW, OLD]) as store,
            pytest.raises(WrongKey, match="another new key"),
        ):
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


def test_a_process_with_the_old_key_only_goes_on_with_what_it_knows_and_says_what_it_does_not() -> (
    None
):
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


@pytest.mark.parametrize("same", [False, True], ids=["another key", "the same key"])
def test_a_store_gets_a_new_key_as_often_as_one_likes(same: bool) -> None:
    backend = Lasting()
    key = keys.generate()
    with holdfast.open(backend, key=key) as store:
        filled(store)
    for _ in range(60):
        new = key if same else keys.generate()
        with holdfast.open(backend, key=key) as store:
            assert store.rekey(new).now == 5
        key = new
    with holdfast.open(backend, key=key) as store:
        check(store)


class Counting:
    """A key of the owner's that counts how often it is asked."""

    id = None

    def __init__(self) -> None:
        self._key, self.asked = keys.raw(keys.generate()), 0

    def wrap(self, secret: bytes, about: bytes) -> keys.Wrapping:
        return self._key.wrap(secret, about)

    def unwrap(self, wrapping: keys.Wrapping, about: bytes) -> bytes | None:
        self.asked += 1
        return self._key.unwrap(wrapping, about)


def test_to_open_a_store_its_key_is_asked_once_however_often_it_was_new() -> None:
    backend, key = Lasting(), Counting()
    with holdfast.open(backend, key=key) as store:
        filled(store)
        for _ in range(5):
            store.rekey(key)
    key.asked = 0
    with holdfast.open(backend, key=key) as store:
        check(store)
    assert key.asked == 1


def test_of_former_master_keys_those_are_kept_that_somebody_may_still_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Lasting()
    store = holdfast.open(backend, key=OLD)
    filled(store)
    cipher = store._log.cipher
    assert cipher is not None
    ring, first, key = cipher.keys.ring, cipher.keys.ring.current, data_keys.DataKey(os.urandom(32))
    real = rotation._finish_rotation

    def end(*arguments: Any) -> None:
        """Somebody who has not yet heard of the new master key uses the former one, when all others
        are wrapped anew."""
        assert store_append(backend, cipher.keys.build_wrap_append("default", "late", key, first))
        real(*arguments)

    monkeypatch.setattr(rotation, "MAX_FORMER_MASTERS", 0)
    monkeypatch.setattr(rotation, "_finish_rotation", end)
    store.rekey(NEW)
    assert set(ring.masters) == {ring.current.id, first.id}
    monkeypatch.setattr(rotation, "_finish_rotation", real)
    store.rekey(THIRD)
    assert set(ring.masters) == {ring.current.id}
    monkeypatch.setattr(rotation, "MAX_FORMER_MASTERS", 3)
    for _ in range(6):
        store.rekey(NEW)
    assert len(ring.masters) == 4
    assert cipher.keys.load("default", "late").digest("x") == key.digest("x")


def test_one_who_is_late_does_not_disturb_the_next_change() -> None:
    """He is stopped at each of his writes; there others finish what he does, and go on to a third
    key."""
    number = 0
    while True:
        backend = Mortal()
        store = holdfast.open(backend, key=OLD)
        filled(store)
        backend.writes, backend.dies_at = 0, number
        real = backend._boundary

        def others(backend: Mortal = backend, real: Callable[[], None] = real) -> None:
            try:
                real()
            except Killed:
                backend.dies_at = -1
                with holdfast.open(backend, key=[OLD, NEW]) as other:
                    other.rekey(NEW)
                    other.rekey(THIRD)

        backend._boundary = others  # type: ignore[method-assign]
        with suppress(WrongKey, UnknownKey):
            store.rekey(NEW)
        if backend.dies_at != -1:
            break
        with holdfast.open(backend, key=THIRD) as after:
            check(after)
        number += 1
    assert number > 20


def test_the_late_one_meets_the_next_change_in_the_middle() -> None:
    """The next change is stopped at each of its writes, and there he does the rest of his."""
    number = 0
    while True:
        backend = Mortal()
        late = holdfast.open(backend, key=OLD)
        filled(late)
        cipher = late._log.cipher
        assert cipher is not None
        ring = Keyring(backend, [keys.raw(NEW), keys.raw(OLD)])
        ring.reload()
        rotation._start_rotation(ring, keys.raw(NEW))
        turn = rotation._Rotation(DataKeys(backend, ring), ring.current, dict(ring.masters))
        with holdfast.open(backend, key=[OLD, NEW]) as other:
            other.rekey(NEW)
        store = holdfast.open(backend, key=NEW)
        backend.writes, backend.dies_at = 0, number
        real = backend._boundary

        def goes_on(
            backend: Mortal = backend, real: Callable[[], None] = real, turn: Any = turn
        ) -> None:
            try:
                real()
            except Killed:
                backend.dies_at = -1
                for head in list(rotation._key_streams(backend)):
                    rotation._delete_former(backend, turn, head)

        backend._boundary = goes_on  # type: ignore[method-assign]
        store.rekey(THIRD)
        if backend.dies_at != -1:
            break
        with holdfast.open(backend, key=THIRD) as after:
            check(after)
        number += 1
    assert number > 20


def test_the_late_one_does_not_end_the_next_change() -> None:
    backend = Lasting()
    store = holdfast.open(backend, key=OLD)
    filled(store)
    late = Keyring(backend, [keys.raw(NEW), keys.raw(OLD), keys.raw(THIRD)])
    late.reload()
    rotation._start_rotation(late, keys.raw(NEW))
    begun = late.current
    store.rekey(NEW)
    other = Keyring(backend, [keys.raw(THIRD), keys.raw(NEW)])
    other.reload()
    rotation._start_rotation(other, keys.raw(THIRD))
    late.reload()
    rotation._finish_rotation(late, begun, backend)
    assert late.state == other.state and late.state.retiring
    with holdfast.open(backend, key=[THIRD, NEW]) as after:
        after.rekey(THIRD)
    with holdfast.open(backend, key=THIRD) as after:
        check(after)


def test_nothing_that_the_old_key_opens_is_left_on_disk(local_url: str, tmp_path: Path) -> None:
    with holdfast.open(local_url, key=OLD) as store:
        filled(store)
        backend = store._log.backend
        heads = backend.heads(tenant="default", kind="key")
        wrapped = [
            backend.read(head.stream)[0].body.split(b'"wrapped":"')[1].split(b'"')[0]
            for head in heads
        ]
        assert any(each in content for content in everything_in(tmp_path) for each in wrapped)
        store.rekey(NEW)
        assert not any(each in content for content in everything_in(tmp_path) for each in wrapped)


def test_a_store_in_clear_has_no_key_to_change() -> None:
    with holdfast.open("memory://") as store, pytest.raises(NotEncrypted):
        store.rekey(NEW)


class DyingSQLite(SQLiteBackend):
    """Ends its process by kill -9 at one of its commits."""

    left = -1

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        self._count()
        return super().append(batch)

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        self._count()
        return super().delete(stream, expected=expected)

    def _count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


@pytest.mark.slow
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


@pytest.mark.every_engine
def test_a_store_gets_a_new_key_while_it_is_open(url: str) -> None:
    with holdfast.open(url, key=OLD) as store:
        filled(store)
        assert store.rekey(NEW).now == 5
        check(store)
        assert len(wrapped_by(store._log.backend)) == 1


@pytest.mark.every_engine
def test_an_async_store_gets_a_new_key_while_it_is_open(url: str) -> None:
    async def run() -> None:
        async with holdfast.aopen(url, key=OLD) as store:
            await store.conversation("chat").append(say("hello"))
            assert (await store.rekey(NEW)).now == 2
            assert await store.conversation("chat").messages() == [say("hello")]
            await store.conversation("new").append(say("hello"))
            assert len(wrapped_by(store._log.backend)) == 1

    asyncio.run(run())


def test_who_reads_and_writes_while_a_store_gets_a_new_key_notices_nothing() -> None:
    """In the process that does it, after each key that was deleted, with none of them in memory."""
    backend = Noisy()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
        heard: list[str] = []

        def use(stream: StreamKey) -> None:
            if stream.kind == "key":
                heard.append(stream.id)
                assert store._log.cipher is not None
                store._log.cipher.keys._known.clear()
                assert store.conversation("chat").messages()[0] == say("hello")
                store.conversation(f"new-{len(heard)}").append(say("new"))

        backend.heard = use
        store.rekey(NEW)
        backend.heard = None
        check(store)
    with holdfast.open(backend, key=NEW) as after:
        check(after)
        assert len(heard) > 3
        for number in range(1, len(heard) + 1):
            assert after.conversation(f"new-{number}").messages() == [say("new")]


class Noisy(Lasting):
    """Tells of what was deleted."""

    heard: Callable[[StreamKey], None] | None = None

    def delete(self, stream: StreamKey, *, expected: Head) -> bool:
        done = super().delete(stream, expected=expected)
        if self.heard is not None:
            heard, self.heard = self.heard, None  # not of what it does itself
            heard(stream)
            self.heard = heard
        return done


def test_a_refused_new_key_leaves_an_open_store_as_it_was() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
        assert store._log.cipher is not None
        ring = store._log.cipher.keys.ring
        ring.reload()
        moving = Keyring(backend, [*keys_of(NEW), *ring.keys])
        moving.reload()
        rotation._start_rotation(moving, moving.keys[0])
        with pytest.raises(WrongKey):
            store.rekey(THIRD)
        assert len(ring.keys) == 1
        check(store)


def keys_of(secret: bytes) -> Sequence[keys.Key]:
    return keys.parse_keys(secret)


def test_a_key_that_moves_to_the_next_master_key_while_it_is_looked_for_is_found() -> None:
    """It is looked for where it goes to, then it goes there, then it is looked for where it was."""
    backend = Lasting()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
    with holdfast.open(backend, key=[OLD, NEW]) as reader, holdfast.open(backend, key=OLD) as other:
        ring = Keyring(backend, [*keys_of(NEW), *keys_of(OLD)])
        ring.reload()
        rotation._start_rotation(ring, ring.keys[0])
        assert reader._log.cipher is not None
        looked = reader._log.cipher.keys
        looked.ring.reload()
        real, moved = looked.read, list[bool]()

        def read(*args: Any) -> Any:
            found = real(*args)
            if found is None and not moved:
                moved.append(True)
                current = ring.current
                turn = rotation._Rotation(DataKeys(backend, ring), current, dict(ring.masters))
                for step in (rotation._rewrap, rotation._delete_former):
                    for head in list(rotation._key_streams(backend)):
                        step(backend, turn, head)
            return found

        looked.read = read  # type: ignore[method-assign]
        assert reader.conversation("chat").messages()[0] == say("hello")
        assert moved
        other.close()


def test_another_thread_that_looked_at_the_ring_first_does_not_make_a_key_unknown() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
    with holdfast.open(backend, key=[OLD, NEW]) as reader, holdfast.open(backend, key=OLD) as other:
        other.rekey(NEW)
        assert reader._log.cipher is not None
        ring = reader._log.cipher.keys.ring
        real = ring.reload

        def reload() -> bool:
            real()  # by the other thread
            return real()

        ring.reload = reload  # type: ignore[method-assign]
        assert reader.conversation("chat").messages()[0] == say("hello")


def test_an_erased_key_that_a_killed_change_of_keys_has_wrapped_goes_with_the_next() -> None:
    """Killed between two lines: it has wrapped the key again, and has not looked yet whether it was
    erased meanwhile."""
    number = 0
    while True:
        backend = Struck()
        with holdfast.open(backend, key=OLD) as store:
            filled(store)
            backend.at = number
            try:
                store.rekey(NEW)
            except Killed:
                pass
            else:
                break
        with holdfast.open(backend, key=[NEW, OLD]) as again:
            again.rekey(NEW)
        left = {name.rpartition(".")[0] for name in backend.names() if not name.endswith(".erased")}
        buried = {
            name.removesuffix(".erased") for name in backend.names() if name.endswith(".erased")
        }
        assert buried and not left & buried
        number += 1
    assert number > 2


class Struck(Lasting):
    """When a key is wrapped anew, a conversation is erased just before, and the process killed just
    after."""

    at = -1

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if self.at >= 0 and batch[0].stream.kind == "key" and batch[0].stream.tenant == "default":
            self.at -= 1
            if self.at == -1:
                with holdfast.open(self, key=[OLD, NEW]) as other:
                    other.erase(other.conversation("chat"))
                super().append(batch)
                raise Killed
        return super().append(batch)

    def names(self) -> list[str]:
        return [head.stream.id for head in self.heads(tenant="default", kind="key")]


def test_a_forged_tombstone_is_not_in_the_way_of_a_new_key() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
        stamp = AppendContext(new_id(), 0.0)
        bodies = encode_envelopes([NewEvent("key.erased", b'{"proof":""}')], stamp, {})
        assert store_append(
            backend, build_first_append(StreamKey("default", "key", "nobody.erased"), bodies, stamp)
        )
        store.rekey(NEW)
    with holdfast.open(backend, key=NEW) as after:
        assert after.conversation("chat").messages()[0] == say("hello")


class Asked(Lasting):
    """Counts what it is asked for."""

    asked = 0

    def read(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        return super().read(*args, **options)

    def heads(self, **options: Any) -> Any:
        self.asked += 1
        return super().heads(**options)


def test_to_begin_a_stream_costs_the_same_however_often_a_store_got_a_new_key() -> None:
    backend = Asked()
    costs = []
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
        for number in range(40):
            store.rekey(NEW if number % 2 else OLD)
            backend.asked = 0
            store.conversation(f"chat-{number}").append(say("hello"))
            costs.append(backend.asked)
    assert max(costs[10:]) <= costs[2]


def test_a_key_that_is_wrapped_by_one_of_many_former_master_keys_is_found() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=OLD) as store:
        filled(store)
        assert store._log.cipher is not None
        held = store._log.cipher.keys
        masters = [held.ring.current]
        for number in range(6):
            store.rekey(NEW if number % 2 else OLD)
            masters.append(held.ring.current)
        for number, master in enumerate(masters):
            late = data_keys.DataKey(os.urandom(32))
            for name in (f"late{number}", f"late{number}x"):  # one begins like the other
                assert store_append(backend, held.build_wrap_append("default", name, late, master))
            assert held.load("default", f"late{number}").digest("same") == late.digest("same")
        with pytest.raises(UnknownKey):
            held.load("default", "late")
