"""Encryption at rest: what is on disk tells nothing, and which key opens it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.servers import aws, free_port
from helpers.stored.encrypted_stores import (
    CANARY,
    KEY,
    OTHER,
    Lasting,
    everything_in,
    filled,
    replace_body,
    say,
)
from holdfast import HoldfastError, keys
from holdfast.backends import Backend, Head, StreamKey
from holdfast.errors import (
    AccessDenied,
    CorruptRecord,
    InvalidKey,
    MissingKey,
    NotEncrypted,
    TamperDetected,
    Unavailable,
    UnknownKey,
    WrongKey,
)
from holdfast.log.ids import KINDS, SYSTEM_TENANT

pytestmark = pytest.mark.unencrypted("uses keys of its own")


def test_what_was_stored_comes_back_and_is_not_to_be_seen_on_disk(
    local_url: str, tmp_path: Path
) -> None:
    with holdfast.open(local_url, key=KEY) as store:
        filled(store)
        assert not any(CANARY.encode() in content for content in everything_in(tmp_path))
    with holdfast.open(local_url, key=KEY) as store:
        assert store.conversation("chat").messages()[0] == say(CANARY)
        view = store.get_task("task")
        assert view is not None and view.goal == f"goal {CANARY}" and view.result == CANARY
        assert [info.goal for info in store.tasks()] == [f"goal {CANARY}"]
        assert store.memory("space").recall("who likes tea?")[0].text == f"{CANARY} likes tea"
        assert store.state("document").load() == {"name": CANARY}
        assert store.artifact("task", "file.txt").read() == CANARY.encode()
        assert store.verify().ok
    assert not any(CANARY.encode() in content for content in everything_in(tmp_path))


@pytest.mark.every_engine
def test_what_is_stored_is_sealed_on_every_engine(url: str) -> None:
    with holdfast.open(url, key=KEY) as store:
        store.conversation("chat").append(say(CANARY), say("x" * 70_000))
        with store.task("task", goal=CANARY) as task:
            task.finish(task.step("one", lambda: CANARY))
        assert store.conversation("chat").messages() == [say(CANARY), say("x" * 70_000)]
        assert [info.goal for info in store.tasks()] == [CANARY]
        assert_sealed(store._log.backend)


@pytest.mark.every_engine
def test_what_an_async_store_keeps_is_sealed_on_every_engine(url: str) -> None:
    async def run() -> None:
        async with holdfast.aopen(url, key=KEY) as store:
            await store.conversation("chat").append(say(CANARY), say("x" * 70_000))
            async with store.task("task", goal=CANARY) as task:
                await task.finish(await task.step("one", lambda: CANARY))
            assert await store.conversation("chat").messages() == [say(CANARY), say("x" * 70_000)]
            assert_sealed(store._log.backend)

    asyncio.run(run())


def assert_sealed(backend: Backend) -> None:
    for kind in ("conversation", "task", "blob"):
        for head in backend.heads(tenant="default", kind=kind):
            assert CANARY.encode() not in (head.fields.label or b"")
            for record in backend.read(head.stream):
                assert record.body[0] == 1 and CANARY.encode() not in record.body


def test_the_names_of_large_values_tell_nothing_of_their_content() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        with store.task("task") as task:
            task.attach("phone.txt", b"+49 151 12345678")
        blobs = [head.stream.id for head in backend.heads(tenant="default", kind="blob")]
    from hashlib import sha256

    assert len(blobs) == 1
    assert not any(sha256(b"+49 151 12345678").hexdigest() in name for name in blobs)


# -- which key -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (None, MissingKey),
        (OTHER, WrongKey),
        (keys.raw(OTHER, id="of-another-store"), UnknownKey),
        (keys.passphrase("some other words", n=1 << 14), WrongKey),
        ([OTHER, keys.generate()], WrongKey),
    ],
    ids=["none", "another", "another id", "passphrase", "two others"],
)
def test_without_the_right_key_nothing_is_read_or_written(
    durable_url: str, key: Any, error: type[Exception]
) -> None:
    with holdfast.open(durable_url, key=KEY) as store:
        store.conversation("chat").append(say(CANARY))
        before = store._log.backend.head(StreamKey("default", "conversation", "chat"))
    with pytest.raises(error) as raised:
        holdfast.open(durable_url, key=key)
    assert CANARY not in str(raised.value)
    with holdfast.open(durable_url, key=KEY) as store:
        after = store._log.backend.head(StreamKey("default", "conversation", "chat"))
        assert after is not None and before is not None and after.hash == before.hash


def test_a_store_in_clear_is_not_opened_with_a_key_and_is_left_as_it_is(durable_url: str) -> None:
    with holdfast.open(durable_url) as store:
        store.conversation("chat").append(say("in clear"))
    with pytest.raises(NotEncrypted, match="copy"):
        holdfast.open(durable_url, key=KEY)
    with holdfast.open(durable_url) as store:
        assert store.conversation("chat").messages() == [say("in clear")]


def test_a_process_that_opened_an_empty_store_in_clear_does_not_write_once_it_is_encrypted() -> (
    None
):
    backend = Lasting()
    plain = holdfast.open(backend)
    with holdfast.open(backend, key=KEY) as sealed:
        with pytest.raises(MissingKey):
            plain.conversation("chat").append(say(CANARY))
        assert sealed.conversation("chat").messages() == []


def test_two_who_begin_a_store_at_once_share_its_ring() -> None:
    backend = Lasting()
    stores = [holdfast.open(backend, key=KEY) for _ in range(3)]
    for number, store in enumerate(stores):
        store.conversation("chat").append(say(str(number)))
    assert len(stores[0].conversation("chat").messages()) == 3


def test_without_the_right_key_not_one_byte_changes(local_url: str, tmp_path: Path) -> None:
    with holdfast.open(local_url, key=KEY) as store:
        filled(store)
    # But for the locks of SQLite, which whoever looks takes.
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and not path.name.endswith("-shm")
    ]
    before = {path: path.read_bytes() for path in files}
    assert before
    for key in (
        None,
        OTHER,
        keys.raw(OTHER, id="another"),
        keys.passphrase("some words", n=1 << 14),
        unreachable,
    ):
        with pytest.raises((HoldfastError, ConnectionError)):
            holdfast.open(local_url, key=key)
    assert {path: path.read_bytes() for path in files} == before


def unreachable() -> bytes:
    raise ConnectionError("the vault is away")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"short",
        b"correct horse battery staple 123",
        "base64:0123456789abcdef0123456789abcdef",
        bytes(32),
        b"x" * 33,
        "a passphrase without a form",
        "base64:bm8=",
        "env:HOLDFAST_NO_SUCH",
        "file:/none/at/all",
    ],
)
def test_what_is_no_key_is_refused_and_never_shown(bad: Any) -> None:
    with pytest.raises(InvalidKey) as raised:
        holdfast.open("memory://", key=bad)
    assert "bm8=" not in str(raised.value) and "a passphrase" not in str(raised.value)


def test_keys_come_from_files_functions_texts_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = keys.generate()
    file = tmp_path / "key"
    file.write_bytes(secret)
    file.chmod(0o600)
    hexadecimal = tmp_path / "hex"
    hexadecimal.write_text(secret.hex() + "\n")
    hexadecimal.chmod(0o600)
    monkeypatch.setenv("HOLDFAST_TEST_KEY", f"file:{file}")
    backend = Lasting()
    holdfast.open(backend, key=secret).conversation("chat").append(say("hello"))
    for key in (
        file,
        f"file:{file}",
        hexadecimal,
        "env:HOLDFAST_TEST_KEY",
        lambda: secret,
        [OTHER, secret],
    ):
        assert holdfast.open(backend, key=key).conversation("chat").messages() == [say("hello")]


def test_a_key_by_name_is_asked_for_by_its_name() -> None:
    vault = {"2026-01": keys.generate(), "2026-07": keys.generate()}
    asked: list[str] = []

    def fetch(name: str) -> bytes:
        asked.append(name)
        return vault[name]

    backend = Lasting()
    with holdfast.open(backend, key=keys.from_function(fetch, id="2026-01")) as store:
        store.conversation("chat").append(say("hello"))
    ring = [keys.from_function(fetch, id=name) for name in ("2026-07", "2026-01")]
    asked.clear()
    with holdfast.open(backend, key=ring) as store:
        assert store.conversation("chat").messages() == [say("hello")]
    assert asked == ["2026-01"]
    with pytest.raises(UnknownKey, match="2026-01"):
        holdfast.open(backend, key=ring[0])


def test_a_passphrase_opens_with_the_parameters_that_are_stored() -> None:
    backend = Lasting()
    with holdfast.open(backend, key=keys.passphrase("four words are better", n=1 << 14)) as store:
        store.conversation("chat").append(say("hello"))
    with holdfast.open(backend, key=keys.passphrase("four words are better")) as store:
        assert store.conversation("chat").messages() == [say("hello")]


def test_parameters_that_would_take_all_memory_are_refused() -> None:
    backend = Lasting()
    holdfast.open(backend, key=keys.passphrase("four words are better", n=1 << 14)).close()
    replace_body(
        backend,
        StreamKey(SYSTEM_TENANT, "key", "ring"),
        1,
        lambda body: body.replace(b'"n":16384', b'"n":1073741824'),
    )
    with pytest.raises(TamperDetected):
        holdfast.open(backend, key=keys.passphrase("four words are better"))


def test_a_ring_that_would_take_hours_to_open_is_refused() -> None:
    """Each wrapping by a passphrase costs a run of scrypt, and each by KMS a call."""
    backend = Lasting()
    holdfast.open(backend, key=keys.passphrase("four words are better", n=1 << 14)).close()
    runs: list[int] = []
    counted = keys.passphrase("four words are better")
    real = counted.unwrap

    def unwrap(wrapping: keys.Wrapping, about: bytes) -> bytes | None:
        runs.append(1)
        return real(wrapping, about)

    counted.unwrap = unwrap  # type: ignore[method-assign]

    def many(body: bytes) -> bytes:
        envelope = json.loads(body)
        first = envelope["data"]["masters"][0]
        envelope["data"]["masters"] += [{**first, "id": str(number)} for number in range(100)]
        return json.dumps(envelope).encode()

    replace_body(backend, RING, 1, many)
    with pytest.raises(CorruptRecord):
        holdfast.open(backend, key=counted)
    assert not runs


def test_keys_are_not_shown() -> None:
    secret = keys.generate()
    with holdfast.open("memory://", key=secret) as store:
        cipher = store._log.cipher
        assert cipher is not None
        store.conversation("chat").append(say("hello"))
        shown = [
            repr(each)
            for each in (
                keys.raw(secret),
                keys.raw(secret, id="mine"),
                keys.passphrase("four words are better", n=1 << 14),
                keys.from_function(lambda: secret),
                cipher,
                cipher.keys,
                cipher.keys.ring,
                cipher.keys.ring.current,
                *cipher.keys._known.values(),
                store,
            )
        ]
    text = " ".join(shown)
    assert secret.hex() not in text and repr(secret)[2:-1] not in text and "four words" not in text


# -- somebody who can write to the store, but has no key -------------------------------------------


RING = StreamKey(SYSTEM_TENANT, "key", "ring")


# -- KMS -------------------------------------------------------------------------------------------


@pytest.fixture
def vault() -> Any:
    """A client of KMS."""
    import boto3

    endpoint = aws()  # it sets credentials, for all tests of this process
    return boto3.client("kms", region_name="eu-central-1", endpoint_url=endpoint)


@pytest.mark.server
def test_a_key_in_kms_opens_the_store_and_is_asked_once(vault: Any) -> None:
    made = vault.create_key()["KeyMetadata"]["KeyId"]
    backend = Lasting()
    with holdfast.open(backend, key=keys.kms(made, client=vault)) as store:
        store.conversation("chat").append(say("hello"))
    calls: list[str] = []
    vault.meta.events.register("before-call.kms.*", lambda model, **_: calls.append(model.name))
    with holdfast.open(backend, key=keys.kms(made, client=vault)) as store:
        assert store.conversation("chat").messages() == [say("hello")]
        store.conversation("another").append(say("hello"))
    assert calls == ["Decrypt"]
    with holdfast.open(backend, key=keys.kms(made, region="eu-central-1", endpoint=aws())) as store:
        assert store.conversation("chat").messages() == [say("hello")]


@pytest.mark.server
def test_another_key_of_kms_or_none_is_refused(vault: Any) -> None:
    made, other = (vault.create_key()["KeyMetadata"]["KeyId"] for _ in range(2))
    backend = Lasting()
    holdfast.open(backend, key=keys.kms(made, client=vault)).close()
    with pytest.raises((WrongKey, TamperDetected, AccessDenied)):
        holdfast.open(backend, key=keys.kms(other, client=vault))
    with pytest.raises(AccessDenied):
        holdfast.open(Lasting(), key=keys.kms("alias/none", client=vault))
    with pytest.raises(WrongKey):
        holdfast.open(backend, key=KEY)


@pytest.mark.slow
def test_kms_that_cannot_be_reached_is_said_to_be_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    key = keys.kms(
        "alias/agents", region="eu-central-1", endpoint=f"http://127.0.0.1:{free_port()}"
    )
    with pytest.raises(Unavailable, match="KMS is unreachable"):
        holdfast.open(Lasting(), key=key)


@pytest.mark.server
def test_a_store_moves_from_a_file_to_kms(vault: Any) -> None:
    made = vault.create_key()["KeyMetadata"]["KeyId"]
    backend = Lasting()
    with holdfast.open(backend, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
        store.rekey(keys.kms(made, client=vault))
    with holdfast.open(backend, key=keys.kms(made, client=vault)) as store:
        assert store.conversation("chat").messages() == [say("hello")]
    with pytest.raises(WrongKey):
        holdfast.open(backend, key=KEY)


# -- copies ----------------------------------------------------------------------------------------


def test_a_copy_needs_no_key_and_opens_with_the_same_one(durable_url: str, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "source.db", key=KEY) as store:
        filled(store)
    holdfast.copy(tmp_path / "source.db", durable_url)
    with holdfast.open(durable_url, key=KEY) as store:
        assert store.conversation("chat").messages()[0] == say(CANARY)
        assert store.artifact("task", "file.txt").read() == CANARY.encode()
        assert store.verify().ok
    with pytest.raises(MissingKey):
        holdfast.open(durable_url)


class Live(Lasting):
    """Somebody does something when streams of a kind are listed."""

    at = ""
    then: Callable[[], object] | None = None

    def heads(self, **options: Any) -> Sequence[Head]:
        if self.then is not None and (options["tenant"], options["kind"]) == ("default", self.at):
            then, self.then = self.then, None
            then()
        return super().heads(**options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["begun", "rekeyed"])
def test_a_copy_of_a_store_that_is_in_use_can_be_read(kind: str, what: str) -> None:
    """What is begun while it is copied comes with its key, and whatever key the store gets, one of
    the two opens the copy."""
    source, target = Live(), Lasting()
    with holdfast.open(source, key=KEY) as store:
        store.conversation("chat").append(say("hello"))

        def begin() -> None:
            store.conversation("new").append(say("new"), say("x" * 70_000))

        source.at, source.then = kind, begin if what == "begun" else lambda: store.rekey(OTHER)
        holdfast.copy(source, target)
        assert source.then is None
    with holdfast.open(target, key=[KEY, OTHER]) as copied:
        for info in copied.conversations():
            assert copied.conversation(info.id).messages()[0] in (say("hello"), say("new"))
        assert copied.verify().ok


def test_a_copy_follows_deletions_if_it_can_read_of_them(tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    with holdfast.open(source, key=KEY) as store:
        store.conversation("chat").append(say("hello"))
        store.conversation("other").append(say("stays"))
        holdfast.copy(source, target)
        store.conversation("chat").delete()
        with pytest.raises(MissingKey):
            holdfast.copy(source, target, delete=True)
        assert holdfast.copy(source, target, delete=True, key=KEY).deleted >= 1
        store.conversation("other").delete()
        assert holdfast.copy(store, target, delete=True).deleted >= 1
    with holdfast.open(target, key=KEY) as store:
        assert list(store.conversations()) == []


def test_an_export_in_clear_must_be_meant(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db", key=KEY) as store:
        chat = store.conversation("chat")
        chat.append(say(CANARY))
        with pytest.raises(NotEncrypted, match="plaintext"):
            chat.export_json(tmp_path / "out.json")
        assert not (tmp_path / "out.json").exists()
        chat.export_json(tmp_path / "out.json", plaintext=True)
        assert CANARY in (tmp_path / "out.json").read_text()
