"""Somebody who can write to an encrypted store, but has no key: nothing they altered, moved or
added is returned."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.example_counts import LONG
from helpers.stored.encrypted_stores import KEY, Lasting, bodies_of, planted, replace_body, say
from helpers.stored.tampering import chained, found, rebuild
from holdfast import HoldfastError, Store
from holdfast.backends import (
    Append,
    AppendResult,
    Head,
    HeadFields,
    Record,
    StreamKey,
    VersionMismatch,
)
from holdfast.backends.faulty import Fault, FaultyBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.encryption import cipher as _cipher
from holdfast.encryption import data_keys
from holdfast.errors import InvalidKey, NotEncrypted, TamperDetected, UnknownKey
from holdfast.log import operations as ops
from holdfast.log.appender import PendingAppend
from holdfast.log.events import NewEvent, encode_envelopes, new_append_context
from holdfast.log.ids import append_id

pytestmark = pytest.mark.unencrypted("uses keys of its own")

# -- somebody who can write to the store, but has no key -------------------------------------------


CHAT = StreamKey("default", "conversation", "chat")
STEP = 1 if LONG else 3


def talk(backend: MemoryBackend, name: str = "chat", tenant: str = "default") -> Store:
    store = holdfast.open(backend, key=KEY, tenant=tenant)
    for number in range(3):
        store.conversation(name).append(say(f"{name} {number}"))
    return store


def swapped(backend: MemoryBackend) -> None:
    one, two, three = bodies_of(backend, CHAT)
    planted(backend, CHAT, [one, three, two])


def swapped_with_their_ids(backend: MemoryBackend) -> None:
    one, two, three = backend.read(CHAT)
    planted(
        backend,
        CHAT,
        [one.body, three.body, two.body],
        [one.append_id, three.append_id, two.append_id],
    )


def replayed(backend: MemoryBackend) -> None:
    records = [*backend.read(CHAT)]
    planted(
        backend,
        CHAT,
        [*bodies_of(backend, CHAT), records[0].body],
        [r.append_id for r in [*records, records[0]]],
    )


def from_another_stream(backend: MemoryBackend) -> None:
    talk(backend, "other")
    planted(backend, CHAT, bodies_of(backend, CHAT._replace(id="other")))


def from_another_stream_with_its_key(backend: MemoryBackend) -> None:
    talk(backend, "other")
    other = CHAT._replace(id="other")
    names = [data_keys.data_key_name(s, backend._streams[s].incarnation) for s in (CHAT, other)]
    mine, theirs = (
        next(s for s in backend._streams if s.kind == "key" and s.id.startswith(name))
        for name in names
    )
    planted(backend, mine, bodies_of(backend, theirs))
    planted(backend, CHAT, bodies_of(backend, other))


def from_another_tenant(backend: MemoryBackend) -> None:
    talk(backend, tenant="globex")
    planted(backend, CHAT, bodies_of(backend, CHAT._replace(tenant="globex")))


def with_another_append_id(backend: MemoryBackend) -> None:
    planted(backend, CHAT, bodies_of(backend, CHAT), [os.urandom(16) for _ in range(3)])


def cut_short(backend: MemoryBackend) -> None:
    replace_body(backend, CHAT, 3, lambda body: body[:20])


def emptied(backend: MemoryBackend) -> None:
    replace_body(backend, CHAT, 3, lambda _: b"")


def in_clear(backend: MemoryBackend) -> None:
    plain = Lasting()
    store = holdfast.open(plain)
    for number in range(3):
        store.conversation("chat").append(say(f"planted {number}"))
    replace_body(backend, CHAT, 3, lambda _: bodies_of(plain, CHAT)[2])


def under_a_key_that_is_not_there(backend: MemoryBackend) -> None:
    replace_body(backend, CHAT, 3, lambda body: b"\1\4none" + body[2:])


def under_the_key_of_one_that_was_erased(backend: MemoryBackend) -> None:
    store = talk(backend, "other")
    other = CHAT._replace(id="other")
    name = data_keys.data_key_name(other, backend._streams[other].incarnation).encode()
    store.erase(store.conversation("other"))
    replace_body(backend, CHAT, 3, lambda body: bytes((1, len(name))) + name + body[2:])


def under_a_name_that_is_none(backend: MemoryBackend) -> None:
    replace_body(backend, CHAT, 3, lambda body: b"\1\4\xff\xfe\0/" + body[2:])


def without_its_key(backend: MemoryBackend) -> None:
    for stream in [s for s in backend._streams if s.kind == "key" and "-" in s.id]:
        del backend._streams[stream]


def with_a_forged_tombstone(backend: MemoryBackend) -> None:
    name = data_keys.data_key_name(CHAT, backend._streams[CHAT].incarnation)
    without_its_key(backend)
    tombstone = data_keys.build_first_append(
        StreamKey("default", "key", name + data_keys.ERASED_SUFFIX),
        [b'{"proof":"0"}'],
        holdfast.log.events.AppendContext(1, 0.0),
    )
    backend.append([tombstone])


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (swapped, TamperDetected),
        (swapped_with_their_ids, TamperDetected),
        (replayed, TamperDetected),
        (from_another_stream, TamperDetected),
        (from_another_stream_with_its_key, TamperDetected),
        (from_another_tenant, TamperDetected),
        (with_another_append_id, TamperDetected),
        (cut_short, TamperDetected),
        (emptied, NotEncrypted),
        (in_clear, NotEncrypted),
        (under_a_key_that_is_not_there, TamperDetected),
        (under_the_key_of_one_that_was_erased, TamperDetected),
        (under_a_name_that_is_none, TamperDetected),
        (without_its_key, UnknownKey),
        (with_a_forged_tombstone, TamperDetected),
    ],
    ids=lambda value: value.__name__,
)
def test_what_somebody_without_the_key_writes_is_never_read(
    attack: Callable[[MemoryBackend], None], error: type[Exception]
) -> None:
    backend = Lasting()
    talk(backend)
    attack(backend)
    with holdfast.open(backend, key=KEY) as store:
        with pytest.raises(error) as raised:
            store.conversation("chat").messages()
        assert "planted" not in str(raised.value)
        problems = store.verify().problems
        assert problems and all("planted" not in str(problem) for problem in problems)


SPACE = StreamKey("default", "memory", "space")


def remembered(backend: MemoryBackend) -> tuple[Store, str]:
    """Three memories, the second about somebody; and the name of the key that it is under."""
    store = holdfast.open(backend, key=KEY)
    for number in range(3):
        store.memory("space").remember(
            f"fact {number}", subject="person-7" if number == 1 else None
        )
    name = next(s.id for s in backend._streams if s.kind == "key" and s.id.startswith("subject-"))
    return store, name.partition(".")[0]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("length", [0, 40, 60])
def test_nothing_is_taken_for_an_erased_memory_but_what_was_one(version: int, length: int) -> None:
    """Of what was erased nobody has the key, so that any bytes might have been it."""
    backend = Lasting()
    store, name = remembered(backend)
    store.erase(subject="person-7")
    raw = name.encode()
    replace_body(backend, SPACE, version, lambda _: bytes((1, len(raw))) + raw + os.urandom(length))
    with holdfast.open(backend, key=KEY) as store:
        with pytest.raises(TamperDetected):
            list(store.memory("space").all())
        assert [problem.version for problem in store.verify().problems] == [version]


def test_an_erased_memory_is_bound_to_its_place() -> None:
    backend = Lasting()
    store, _ = remembered(backend)
    store.erase(subject="person-7")
    records = [*backend.read(SPACE)]
    order = [1, 0, *range(2, len(records))]
    planted(backend, SPACE, [records[n].body for n in order], [records[n].append_id for n in order])
    with holdfast.open(backend, key=KEY) as store:
        with pytest.raises(TamperDetected):
            list(store.memory("space").all())
        assert [problem.version for problem in store.verify().problems] == [1], (
            "and what follows it, as it says"
        )


def test_a_key_made_of_two_needs_both() -> None:
    one, two, three = (data_keys.DataKey(os.urandom(32)) for _ in range(3))
    assert one.join(two).digest("x") == one.join(two).digest("x")
    pairs = (one.join(two), one.join(three), three.join(two), two.join(one))
    assert len({key.digest("x") for key in (*pairs, one, two, three)}) == 7


def test_a_memory_whose_key_is_gone_without_a_tombstone_is_not_taken_for_erased() -> None:
    backend = Lasting()
    _, name = remembered(backend)
    for stream in [s for s in backend._streams if s.kind == "key" and s.id.startswith(name)]:
        del backend._streams[stream]
    with holdfast.open(backend, key=KEY) as store, pytest.raises(UnknownKey):
        list(store.memory("space").all())


def test_the_key_of_a_tenant_that_somebody_took_away_is_not_made_anew() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat").append(say("x" * 100_000))
    [house] = [
        stream
        for stream in backend._streams
        if stream.kind == "key" and stream.id.startswith("house")
    ]
    taken = backend._streams.pop(house)
    with holdfast.open(backend, key=KEY) as store:
        assert {problem.what for problem in store.verify().problems} == {"head", "value"}
        for attempt in (
            store.conversation("chat").messages,
            lambda: store.conversation("chat").append(say("more")),
        ):
            with pytest.raises(UnknownKey):
                attempt()
    assert house not in backend._streams
    backend._streams[house] = taken
    with holdfast.open(backend, key=KEY) as store:
        assert store.conversation("chat").messages() == [say("x" * 100_000)] and store.verify().ok


def test_a_tenant_whose_first_process_died_before_it_made_a_key_gets_one() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        store._log._append_registration("default")
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
        assert store.conversation("chat").messages() == [say("hello")]


# Each part of the associated data by itself: with the same key and the same bytes, only that part
# differs.
PLACE = (StreamKey("t", "memory", "i"), b"l" * 16, 7, b"a" * 16, "subject-a", b"h" * 32)


@pytest.mark.parametrize(
    "moved",
    [
        (StreamKey("u", "memory", "i"), *PLACE[1:]),
        (StreamKey("t", "state", "i"), *PLACE[1:]),
        (StreamKey("t", "memory", "j"), *PLACE[1:]),
        (StreamKey("tm", "emory", "i"), *PLACE[1:]),
        (PLACE[0], b"m" * 16, *PLACE[2:]),
        (*PLACE[:2], 8, *PLACE[3:]),
        (*PLACE[:3], b"b" * 16, *PLACE[4:]),
        (*PLACE[:4], "subject-b", PLACE[5]),
        (*PLACE[:5], b"i" * 32),
    ],
    ids=[
        "tenant",
        "kind",
        "id",
        "lengths",
        "incarnation",
        "version",
        "append id",
        "name of the key",
        "the record before",
    ],
)
@pytest.mark.parametrize("by", ["its key", "its proof"])
def test_a_record_is_bound_to_each_part_of_its_place(
    moved: tuple[StreamKey, bytes, int, bytes, str, bytes], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own key alone, if the proof fits anything; and by its proof alone, if its own key
    opens anything."""
    key = data_keys.DataKey(os.urandom(32))
    for method in ("find", "load", "ensure"):
        monkeypatch.setattr(data_keys.DataKeys, method, lambda *_: key)
    monkeypatch.setattr(_cipher, "_is_allowed_key", lambda *_: True)
    if by == "its key":
        monkeypatch.setattr(data_keys.DataKey, "proof", lambda *_: bytes(16))
    else:
        monkeypatch.setattr(_cipher, "_decrypt", lambda *_: b"content")
    with holdfast.open("memory://", key=KEY) as store:
        cipher = store._log.cipher
        assert cipher is not None
        stream, incarnation, version, append_id, name, previous = PLACE
        writer = cipher.make_writer(stream, incarnation, new=True)
        assert writer is not None
        [(_, sealed)] = writer.encrypt(
            bytes(32), previous, version - 1, append_id, [b"content"], [name]
        )
        assert (
            cipher.decrypt(stream, incarnation, Record(version, append_id, b"", sealed), previous)
            == b"content"
        )
        stream, incarnation, version, append_id, other, previous = moved
        sealed = sealed.replace(name.encode(), other.encode(), 1)
        with pytest.raises(TamperDetected):
            cipher.decrypt(stream, incarnation, Record(version, append_id, b"", sealed), previous)


@pytest.mark.parametrize("key", [b"short", "no key at all", [], [KEY, b"short"], 5])
def test_what_is_no_key_leaves_no_file_behind(key: Any, tmp_path: Path) -> None:
    for url in (str(tmp_path / "agents.db"), f"file://{tmp_path}/agents"):
        with pytest.raises((InvalidKey, TypeError, ValueError)):
            holdfast.open(url, key=key)
    assert [*tmp_path.iterdir()] == []


def test_two_histories_of_a_stream_cannot_be_mixed() -> None:
    """A backup was restored and went on: both histories are under the same keys, and each record is
    at the same place."""
    here, other = Lasting(), Lasting()
    with holdfast.open(here, key=KEY) as store:
        store.stream("s").append(("noted", {"number": 1}))
    holdfast.copy(here, other)
    for backend, words in ((here, "first"), (other, "second")):
        with holdfast.open(backend, key=KEY) as store:
            for number in (2, 3):
                store.stream("s").append(("noted", {words: number}), id=f"{number}")
    stream = StreamKey("default", "stream", "s")
    head, bodies = here.head(stream), [record.body for record in here.read(stream)]
    ids = [record.append_id for record in here.read(stream)]
    theirs = [record.body for record in other.read(stream)]
    assert head is not None
    for mixed in ([*bodies[:2], theirs[2]], [bodies[0], theirs[1], bodies[2]]):
        backend = Lasting()
        rebuild(
            here,
            backend,
            {stream: lambda _, mixed=mixed: chained(stream, head.incarnation, mixed, ids)},
        )
        with holdfast.open(backend, key=KEY) as store:
            with pytest.raises(TamperDetected):
                list(store.stream("s").read())
            assert found(store.verify()) == [("s", 3, "undecodable")]


@pytest.mark.parametrize(
    "moved",
    [
        (StreamKey("u", "task", "i"), b"l" * 16),
        (StreamKey("t", "conversation", "i"), b"l" * 16),
        (StreamKey("t", "task", "j"), b"l" * 16),
        (StreamKey("t", "task", "i"), b"m" * 16),
    ],
    ids=["tenant", "kind", "id", "incarnation"],
)
def test_the_fields_of_a_head_are_bound_to_its_stream(
    moved: tuple[StreamKey, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = data_keys.DataKey(os.urandom(32))
    monkeypatch.setattr(data_keys.DataKeys, "tenant_key", lambda *_: key)
    with holdfast.open("memory://", key=KEY) as store:
        cipher = store._log.cipher
        assert cipher is not None
        stream, incarnation = StreamKey("t", "task", "i"), b"l" * 16
        fields = cipher.encrypt_fields(stream, incarnation, HeadFields("open", b"label"))
        assert fields.label is not None and b"label" not in fields.label
        assert cipher.decrypt_fields(Head(stream, incarnation, fields, 0.0, 1, b"")) == HeadFields(
            "open", b"label"
        )
        with pytest.raises(TamperDetected):
            cipher.decrypt_fields(Head(moved[0], moved[1], fields, 0.0, 1, b""))


def test_a_wrapped_key_is_bound_to_its_tenant_its_name_and_its_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with holdfast.open("memory://", key=KEY) as store:
        cipher = store._log.cipher
        assert cipher is not None
        master = cipher.keys.ring.current
        wrapped = data_keys.DataKey(os.urandom(32)).wrap_with(master, "t", "name")
        assert len(master.unwrap(wrapped, data_keys.wrapping_data("t", "name", master.id))) == 32
        for place in (
            ("u", "name", master.id),
            ("t", "other", master.id),
            ("t", "name", "other"),
            ("tn", "ame", master.id),
        ):
            with pytest.raises(TamperDetected):
                master.unwrap(wrapped, data_keys.wrapping_data(*place))


@pytest.mark.slow
def test_a_flipped_byte_of_any_record_is_noticed() -> None:
    """Of ciphertext, header, wrapped keys and the ring, with a chain that fits: every third byte,
    and in `make soak` every byte."""
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
        with store.task("task", goal="goal") as task:
            task.step("one", lambda: 1)
        store.memory("space").remember("fact", subject="person-7")
    flips = 0
    for stream in list(backend._streams):
        if stream.kind == "tenant":
            continue
        for version, body in enumerate(bodies_of(backend, stream), 1):
            for place in range(flips % STEP, len(body), STEP):
                changed = bytearray(body)
                changed[place] ^= 0x01
                replace_body(backend, stream, version, lambda _, changed=changed: bytes(changed))  # type: ignore[misc]
                assert is_noticed(backend, stream), f"{stream} version {version} byte {place}"
                flips += 1
            replace_body(backend, stream, version, lambda _, body=body: body)  # type: ignore[misc]
    assert flips > 1_900 // STEP


def is_noticed(backend: MemoryBackend, stream: StreamKey) -> bool:
    """Whether a store with this record in it says so, or gives back exactly what was stored."""
    try:
        with holdfast.open(backend, key=KEY) as store:
            if not store.verify().ok:
                return True
            chat, view = store.conversation("chat").messages(), store.get_task("task")
            # What is in clear and means nothing: the id or time of the event that wrapped a key.
            return (
                stream.kind == "key"
                and chat == [say("hello")]
                and view is not None
                and view.goal == "goal"
            )
    except HoldfastError:
        return True


def test_a_record_that_is_sent_again_is_the_same_and_one_that_is_placed_anew_is_not() -> None:
    """The same nonce never seals two different things."""
    backend = Lasting()
    one, two = holdfast.open(backend, key=KEY), holdfast.open(backend, key=KEY)
    for number in range(20):
        (one, two)[number % 2].conversation("chat").append(say("the same text"))
    bodies = bodies_of(backend, CHAT)
    nonces = {body[2:14] for body in bodies}
    assert len(bodies) == len(nonces) == 20


class Interrupted(Lasting):
    """Where Ctrl-C strikes while a new key is stored: before, or after it was."""

    strikes: str | None = None

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        strikes = self.strikes if batch[0].stream.kind == "key" else None
        if strikes is not None:
            self.strikes = None
        if strikes == "before":
            raise KeyboardInterrupt
        answers = super().append(batch)
        if strikes == "after":
            raise KeyboardInterrupt
        return answers


@pytest.mark.parametrize("strikes", ["before", "after"])
@pytest.mark.parametrize("named", [True, False])
def test_what_was_sealed_with_a_key_that_is_not_stored_is_not_sent(
    strikes: str, named: bool
) -> None:
    """Whoever leads is interrupted while it stores the keys for all; the next one finds their
    appends prepared."""
    backend = Interrupted()
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
        appender, entries = store._log._appender, list[PendingAppend]()
        for name in ("one", "two", "two", "three"):
            stamp = new_append_context()
            bodies = encode_envelopes([NewEvent("said", b'"hello"')], stamp, {})
            name_of_it, incarnation = (
                (f"id{len(entries)}", append_id(name)) if named else (None, None)
            )
            entries.append(
                PendingAppend(
                    ops.AppendRecords(
                        store.stream(name)._key, bodies, stamp, name_of_it, incarnation=incarnation
                    ),
                    timeout=math.inf,
                )
            )
        backend.strikes = strikes
        with pytest.raises(KeyboardInterrupt):
            appender.commit(entries)
        while unsettled := [entry for entry in entries if not entry.is_settled]:
            appender.commit(unsettled)
        assert [entry.error for entry in entries] == [None] * 4
    with holdfast.open(backend, key=KEY) as again:
        assert [len(list(again.stream(name).read())) for name in ("one", "two", "three")] == [
            1,
            2,
            1,
        ]
        assert again.verify().ok


class BadWithKeys(FaultyBackend):
    """Each key that is stored goes wrong once."""

    fault: Fault | None = None

    def append(self, batch: Sequence[Append]) -> Sequence[AppendResult | VersionMismatch]:
        if self.fault is not None and batch[0].stream.kind == "key":
            fault, self.fault = self.fault, None
            self.next(fault)
        return super().append(batch)


@pytest.mark.parametrize(
    "fault", ["driver_error", "driver_error_stored", "lost_answer", "lost_request"]
)
def test_a_key_is_stored_whatever_the_driver_says(fault: Fault) -> None:
    """No error of a driver's comes out where one of ours is promised."""
    backend = BadWithKeys(Lasting(), seed=1)
    with holdfast.open(backend, key=KEY) as store:
        attempts: list[Callable[[], object]] = [
            lambda: store.for_tenant("globex").conversation("chat").append(say("hello")),
            lambda: store.memory("m").remember("about somebody", subject="somebody"),
            lambda: store.erase(subject="somebody"),
            lambda: store.rekey(KEY),
        ]
        for attempt in attempts:
            backend.fault = fault
            attempt()
        assert backend.injected[fault] == len(attempts)
        assert list(store.memory("m").all()) == []
        assert store.for_tenant("globex").conversation("chat").messages() == [say("hello")]
        assert store.verify(all_tenants=True).ok


def test_a_fake_source_of_randomness_does_not_reach_the_nonces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.log.ids.random_bytes", lambda count: b"\1" * count)
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        for _ in range(5):
            store.stream("events").append(("said", "the same"))
    bodies = bodies_of(backend, StreamKey("default", "stream", "events"))
    assert len({body[2:14] for body in bodies}) == 5
