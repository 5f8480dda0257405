"""A store in clear becomes an encrypted one, and the reverse: the same events, killed at any write,
and compared at the end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.stored.encrypted_stores import (
    CANARY,
    KEY,
    WHO,
    Killed,
    Lasting,
    Mortal,
    about_somebody,
    everything_in,
    filled,
    say,
)
from holdfast import Store, keys
from holdfast.backends import StreamKey
from holdfast.errors import AlreadyExists, Erased, MissingKey, NotEncrypted, WrongKey

pytestmark = pytest.mark.unencrypted("uses keys of its own")


def everything(store: Store) -> Any:
    """What users see of it."""
    view = store.get_task("task")
    return (
        [
            (entry.version, entry.id, entry.message, entry.meta)
            for entry in store.conversation("chat").entries()
        ],
        store.task("task").history(),
        view,
        list(store.tasks()),
        store.artifact("task", "file.txt").read(),
        list(store.memory("space").all()),
        store.state("document").load(),
        list(store.stream("events").read()),
        [info.id for info in store.conversations()],
    )


@pytest.mark.every_engine
def test_there_and_back_it_is_the_same(durable_url: str, tmp_path: Path) -> None:
    sealed, again = tmp_path / "sealed.db", tmp_path / "again.db"
    with holdfast.open(durable_url) as store:
        filled(store)
        store.for_tenant("globex").conversation("chat").append(say("of globex"))
        before = everything(store)
    done = holdfast.encrypt(durable_url, sealed, key=KEY)
    assert done.streams > 5 and done.records > 10 and (done.skipped, done.erased) == (0, 0)
    with holdfast.open(sealed, key=KEY) as store:
        assert everything(store) == before
        assert store.for_tenant("globex").conversation("chat").messages() == [say("of globex")]
        assert store.verify(all_tenants=True).ok
    assert not any(
        CANARY.encode() in content
        for path in tmp_path.glob("sealed.db*")
        for content in [path.read_bytes()]
    )
    assert holdfast.encrypt(durable_url, sealed, key=KEY).skipped == done.streams
    holdfast.decrypt(sealed, again, key=KEY)
    with holdfast.open(again) as store:
        assert everything(store) == before
        assert store.verify(all_tenants=True).ok
        store.conversation("chat").append(say("it goes on"))


@pytest.mark.slow
def test_killed_at_any_write_the_same_call_goes_on() -> None:
    source = Lasting()
    with holdfast.open(source) as store:
        filled(store)
        before = everything(store)
    number, resumed = 0, 0
    while True:
        target = Mortal()
        target.dies_at = number
        try:
            holdfast.encrypt(source, target, key=KEY)
        except Killed:
            target.dies_at = -1
            resumed += holdfast.encrypt(source, target, key=KEY).skipped > 0
            with holdfast.open(target, key=KEY) as store:
                assert everything(store) == before
                assert store.verify().ok
            number += 3  # before a write, after one, and so on
            continue
        break
    assert number > 30 and resumed


def test_a_source_that_goes_on_is_followed() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        filled(store)
        holdfast.encrypt(source, target, key=KEY)
        store.conversation("chat").append(say("later"))
        assert holdfast.encrypt(source, target, key=KEY).records == 1
    with holdfast.open(target, key=KEY) as store:
        assert store.conversation("chat").messages()[-1] == say("later")


@pytest.mark.parametrize("again", [True, False])
def test_what_was_deleted_at_the_source_since_goes_at_the_destination_too(again: bool) -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        filled(store)
        store.conversation("chat").append(say("large" + "x" * 70_000))
        holdfast.encrypt(source, target, key=KEY)
        store.conversation("chat").delete()
        if again:
            store.conversation("chat").append(say("begun anew"))
        holdfast.encrypt(source, target, key=KEY)
        left = store.conversation("chat").messages()
        blobs = len(source.heads(tenant="default", kind="blob"))
    with holdfast.open(target, key=KEY) as store:
        assert store.conversation("chat").messages() == left
        assert len(target.heads(tenant="default", kind="blob")) == blobs
        assert store.verify().ok


def test_what_was_erased_at_the_source_since_is_not_left_in_clear() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source, key=KEY) as store:
        store.conversation("about").append(say(CANARY), say(CANARY + "x" * 70_000))
        store.conversation("other").append(say("stays"))
        holdfast.decrypt(source, target, key=KEY)
        store.erase(store.conversation("about"))
        holdfast.decrypt(source, target, key=KEY)
    with holdfast.open(target) as store:
        assert (store.conversation("about").messages(), store.conversation("other").messages()) == (
            [],
            [say("stays")],
        )
        assert target.heads(tenant="default", kind="blob") == []
        assert store.verify().ok


def test_memories_about_a_subject_that_was_erased_since_are_not_passed_over() -> None:
    """They cannot be taken out of what was written; so it is said, each time."""
    source, target, empty = Lasting(), Lasting(), Lasting()
    with holdfast.open(source, key=KEY) as store:
        about_somebody(store)
        holdfast.decrypt(source, target, key=KEY)
        store.erase(subject=WHO)
        for _ in range(2):
            with pytest.raises(AlreadyExists, match="subject was erased at the source"):
                holdfast.decrypt(source, target, key=KEY)
        holdfast.decrypt(source, empty, key=KEY)
        holdfast.decrypt(source, empty, key=KEY)
    with holdfast.open(target) as store:
        assert store.conversation("about").messages() == []


def test_a_copy_that_has_gone_on_is_not_deleted() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        filled(store)
        holdfast.encrypt(source, target, key=KEY)
        store.conversation("chat").delete()
    with holdfast.open(target, key=KEY) as store:
        store.conversation("chat").append(say("at the destination"))
    with suppress(AlreadyExists):
        holdfast.encrypt(source, target, key=KEY)
    with holdfast.open(target, key=KEY) as store:
        assert store.conversation("chat").messages()[-1] == say("at the destination")


def test_what_somebody_else_has_begun_at_the_destination_is_not_deleted() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        filled(store)
        holdfast.encrypt(source, target, key=KEY)
        store.conversation("new").append(say("at the source"))
        store.conversation("new").delete()
    with holdfast.open(target, key=KEY) as store:
        store.conversation("new").append(say("at the destination"))
    with suppress(AlreadyExists):
        holdfast.encrypt(source, target, key=KEY)
    with holdfast.open(target, key=KEY) as store:
        assert store.conversation("new").messages() == [say("at the destination")]


def test_appends_with_ids_are_still_known() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        store.conversation("chat").append(say("hello"), id="req-17")
    holdfast.encrypt(source, target, key=KEY)
    with holdfast.open(target, key=KEY) as store:
        assert store.conversation("chat").append(say("hello"), id="req-17").duplicate
        with pytest.raises(holdfast.errors.IdReused):
            store.conversation("chat").append(say("something else"), id="req-17")


def test_what_is_about_a_subject_can_be_erased_afterwards() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source) as store:
        about_somebody(store)
    holdfast.encrypt(source, target, key=KEY)
    with holdfast.open(target, key=KEY) as store:
        store.erase(subject=WHO)
        with pytest.raises(Erased):
            store.conversation("about").messages()
        assert CANARY not in str([memory.text for memory in store.memory("notes").all()])
        record = next(
            r for r in target.read(StreamKey("default", "memory", "notes")) if r.version == 1
        )
        assert b"subject-" in record.body[:20]


def test_what_was_erased_is_left_out() -> None:
    source, target = Lasting(), Lasting()
    with holdfast.open(source, key=KEY) as store:
        about_somebody(store)
        store.erase(subject=WHO)
    done = holdfast.decrypt(source, target, key=KEY)
    assert done.erased >= 3
    with holdfast.open(target) as store:
        assert store.conversation("other").messages() == [say("stays")]
        assert store.conversation("about").messages() == []
        assert CANARY not in str([memory.text for memory in store.memory("notes").all()])
        assert store.verify().ok


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    clear, sealed, foreign = (tmp_path / name for name in ("clear.db", "sealed.db", "foreign.db"))
    with holdfast.open(clear) as store:
        store.conversation("chat").append(say("hello"))
    with holdfast.open(sealed, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
    with holdfast.open(foreign, key=KEY) as store:
        store.conversation("chat").append(say("another"))
    with pytest.raises(NotEncrypted):
        holdfast.encrypt(sealed, tmp_path / "new.db", key=KEY)
    with pytest.raises(NotEncrypted):
        holdfast.decrypt(clear, tmp_path / "new2.db", key=KEY)
    with pytest.raises(WrongKey):
        holdfast.decrypt(sealed, tmp_path / "new3.db", key=keys.generate())
    with pytest.raises(MissingKey):
        holdfast.decrypt(sealed, tmp_path / "new4.db")
    with pytest.raises(AlreadyExists):
        holdfast.encrypt(clear, foreign, key=KEY)
    with pytest.raises(NotEncrypted):
        holdfast.encrypt(clear, clear, key=KEY)
    assert not any(b"another" in content for content in everything_in(tmp_path))


# -- copies ----------------------------------------------------------------------------------------


def test_what_is_encrypted_and_what_is_in_clear_are_never_copied_together(tmp_path: Path) -> None:
    clear, sealed, other = (str(tmp_path / name) for name in ("clear.db", "sealed.db", "other.db"))
    for url, key in ((clear, None), (sealed, KEY), (other, keys.generate())):
        with holdfast.open(url, key=key) as store:
            store.conversation(f"of {url}").append(say("hello"))
    for source, target, error in (
        (clear, sealed, NotEncrypted),
        (sealed, clear, AlreadyExists),
        (sealed, other, AlreadyExists),
    ):
        before = Path(target).read_bytes()
        with pytest.raises(error):
            holdfast.copy(source, target)
        assert Path(target).read_bytes() == before
    for _ in range(2):  # and once more, to bring it up to date
        assert holdfast.copy(sealed, tmp_path / "copy.db").verified
    with holdfast.open(tmp_path / "copy.db", key=KEY) as store:
        assert store.verify().ok and store.conversation(f"of {sealed}").messages() == [say("hello")]


def test_who_is_refused_leaves_no_store_behind(tmp_path: Path) -> None:
    clear, sealed, new = (str(tmp_path / name) for name in ("clear.db", "sealed.db", "new.db"))
    holdfast.open(clear).close()
    holdfast.open(sealed, key=KEY).close()
    for refused in (
        lambda: holdfast.encrypt(sealed, new, key=KEY),
        lambda: holdfast.encrypt(clear, new, key=b"short"),
        lambda: holdfast.decrypt(clear, new, key=KEY),
        lambda: holdfast.decrypt(sealed, new),
        lambda: holdfast.decrypt(sealed, new, key=keys.generate()),
    ):
        with pytest.raises(holdfast.HoldfastError):
            refused()
    assert not Path(new).exists()


def test_who_goes_on_with_the_destination_is_told_so(tmp_path: Path) -> None:
    clear, sealed = str(tmp_path / "clear.db"), str(tmp_path / "sealed.db")
    with holdfast.open(clear) as store:
        store.conversation("chat").append(say("one"))
    holdfast.encrypt(clear, sealed, key=KEY)
    for url, key in ((clear, None), (sealed, KEY)):
        with holdfast.open(url, key=key) as store:
            store.conversation("chat").append(say(f"two, {key is None}"))
    with pytest.raises(AlreadyExists, match="another process wrote to"):
        holdfast.encrypt(clear, sealed, key=KEY)
