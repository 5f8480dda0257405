"""Anchors: what is gone from a store, or was written anew as a whole, is found with one; and one
that was altered is refused."""

from __future__ import annotations

import asyncio
import base64
import hmac
import io
import json
import shutil
import stat
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import holdfast
from helpers.stored.store_copies import Wrapper, populate
from helpers.stored.tampering import (
    Change,
    Link,
    altered,
    chained,
    found,
    key,
    links,
    rebuild,
    store_of,
    truncated,
    written,
)
from holdfast._open import open_backend
from holdfast.admin.anchors import AnchorFile, load_signer
from holdfast.backends import Backend, Head, StreamKey
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import AlreadyExists, AnchorRefused, CorruptRecord
from holdfast.log import operations as ops
from holdfast.log.events import new_append_context
from holdfast.log.operations.stream_ops import append_audit_event
from holdfast.types import VerifyResult

pytestmark = pytest.mark.unencrypted(
    "changes stored records, of which encryption leaves nothing to change"
)

SECRET = bytes(range(32))
OTHER = bytes(range(1, 33))


def gone(old: list[Link]) -> list[Link]:
    return []


def rewritten(backend: Backend, stream: StreamKey, at: int) -> Change:
    """The whole chain made anew, with another record in it: without an anchor nobody can tell."""
    head = backend.head(stream)
    assert head is not None
    bodies = [link.body for link in links(backend, stream)]
    bodies[at - 1] = b'{"id":"x","type":"noted","at":0,"data":"forged"}'
    return lambda _: chained(stream, head.incarnation, bodies)


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    return tmp_path / "monday.anchor"


def verified(
    store: holdfast.Store, anchor: Path, since: bool = False, **options: Any
) -> VerifyResult:
    options = {"anchor_key": SECRET, **options}
    return store.verify(since=anchor, **options) if since else store.verify(anchor, **options)


# -- on every engine -------------------------------------------------------------------------------


@pytest.mark.every_engine
@pytest.mark.long("dynamodb", "s3")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_store_that_went_on_is_in_order(
    asynchronous: bool, store: holdfast.Store, anchor: Path
) -> None:
    populate(store)
    made = (
        asyncio.run(store.aio.anchor(anchor, key=SECRET, all_tenants=True))
        if asynchronous
        else store.anchor(anchor, key=SECRET, all_tenants=True)
    )
    assert (made.streams, made.signed, made.tenant) == (20, "hmac-sha256", None)
    store.stream("A").append(("named", 2))
    store.stream("a").delete(reason="asked to")
    store.stream("a").append(("begun", "anew"))
    store.conversation("old-2").expire(0)
    assert len(store.sweep(grace=0).deleted) == 1
    for since in (False, True):
        report = verified(store, anchor, since, all_tenants=True)
        assert report.ok and report.problems == []
        assert (report.anchored, report.deleted, report.complete) == ("hmac-sha256", 2, not since)
        assert report.anchor_at is not None and "in the audit stream: 2 streams" in str(report)


@pytest.mark.every_engine
def test_what_is_gone_or_was_written_anew_is_found(url: str, anchor: Path) -> None:
    source = MemoryBackend()
    names = ["cut", "forged", "gone", "other incarnation", "whole"]
    for name in names:
        for number in range(6):
            store_of(source).stream(name).append(("noted", {"number": number}))
    store_of(source).anchor(anchor, key=SECRET)
    backend = open_backend(url)
    changes = {key("cut"): truncated(4), key("forged"): rewritten(source, key("forged"), 2)}
    rebuild(source, backend, {**changes, key("gone"): gone, key("other incarnation"): gone})
    with store_of(backend) as store:
        store.stream("other incarnation").append(*[("noted", number) for number in range(6)])
        assert store.verify().ok  # without the anchor nothing is to be seen
        for since in (False, True):
            report = verified(store, anchor, since)
            assert found(report) == [
                ("cut", 4, "truncated"),
                ("forged", 6, "forked"),
                ("gone", None, "stream_missing"),
                ("other incarnation", None, "rolled_back"),
            ]
            assert "compared with an anchor (hmac-sha256)" in str(report)
            assert report.streams == 5  # each of them once


def test_an_sqlite_file_that_was_put_back_is_found(tmp_path: Path, anchor: Path) -> None:
    path, backup = tmp_path / "agents.db", tmp_path / "backup.db"
    with holdfast.open(path) as store:
        for name in ("a", "b"):
            store.stream(name).append(("noted", 1))
        holdfast.backup(store, backup)
        store.stream("a").append(("noted", 2))
        store.stream("new").append(("noted", 1))
        store.stream("b").delete()
        store.anchor(anchor, key=SECRET, all_tenants=True)
    shutil.copy(backup, path)
    with holdfast.open(path) as store:
        assert store.verify().ok
        assert found(verified(store, anchor, all_tenants=True)) == [
            ("log", None, "stream_missing"),
            ("a", 1, "truncated"),
            ("new", None, "stream_missing"),
        ]


# -- deletions -------------------------------------------------------------------------------------


def test_a_note_that_a_stream_was_deleted_earlier_than_the_anchor_saw_it_proves_nothing(
    anchor: Path,
) -> None:
    source = written()
    store = store_of(source)
    early = source.head(key("b"))
    assert early is not None
    ops.run(store._log, append_audit_event(early, new_append_context(), "never done"))
    store.stream("b").append(("noted", "later"))
    store.anchor(anchor, key=SECRET)
    del source._streams[key("b")]
    assert found(verified(store_of(source), anchor)) == [("b", None, "stream_missing")]


def test_a_note_of_a_deletion_with_another_hash_proves_nothing(anchor: Path) -> None:
    source = written()
    store = store_of(source)
    store.anchor(anchor, key=SECRET)
    head = source.head(key("b"))
    assert head is not None
    other = msgspec.structs.replace(head, hash=b"\1" * 32)
    ops.run(store._log, append_audit_event(other, new_append_context(), "false"))
    del source._streams[key("b")]
    assert found(verified(store_of(source), anchor)) == [("b", None, "stream_missing")]


def test_an_entry_of_the_audit_stream_that_was_altered_proves_nothing(anchor: Path) -> None:
    source = written()
    store = store_of(source)
    store.stream("a").delete()
    store.anchor(anchor, key=SECRET)
    store.stream("b").delete()
    store.stream("c").delete()
    target = MemoryBackend()
    body = source.read(key("log", "audit"))[1].body
    rebuild(
        source,
        target,
        {key("log", "audit"): altered(2, body.replace(b"deleted by", b"DELETED by"))},
    )
    report = verified(store_of(target), anchor)
    assert found(report) == [("log", 2, "altered"), ("b", None, "stream_missing")]
    assert report.deleted == 1


def test_a_deletion_that_was_told_before_the_anchor_and_done_after_it_is_in_order(
    anchor: Path,
) -> None:
    source = written()
    store = store_of(source)
    head = source.head(key("b"))
    assert head is not None
    ops.run(store._log, append_audit_event(head, new_append_context(), "on its way"))
    store.anchor(anchor, key=SECRET)
    source.delete(key("b"), expected=head)
    report = verified(store_of(source), anchor)
    assert report.ok and report.deleted == 1


def test_a_tenant_whose_registration_is_gone_is_looked_at_all_the_same(anchor: Path) -> None:
    source = MemoryBackend()
    for tenant in ("acme", "globex"):
        for _ in range(3):
            store_of(source).for_tenant(tenant).stream("s").append(("noted", 1))
    store_of(source).anchor(anchor, key=SECRET, all_tenants=True)
    del source._streams[StreamKey("$system", "tenant", "globex")]
    source._streams[key("s", tenant="globex")].records.pop(1)
    report = verified(store_of(source), anchor, all_tenants=True)
    assert {(problem.tenant, problem.what) for problem in report.problems} >= {
        ("$system", "stream_missing"),
        ("globex", "missing"),
    }


def test_tenants_of_any_name_are_found_again_in_an_anchor(anchor: Path) -> None:
    store = store_of(MemoryBackend())
    tenants = ["!", '"', "%", "A", "a", "ä", "\U0001f600", "\uffee"]
    for tenant in tenants:
        for name in ("ä", "z", "\U0001f600", "\uffee"):
            store.for_tenant(tenant).stream(name).append(("noted", 1))
            store.for_tenant(tenant).conversation(name).append({"role": "user", "content": "Hello"})
    store.anchor(anchor, key=SECRET, all_tenants=True)
    for since in (False, True):
        report = verified(store, anchor, since, all_tenants=True)
        assert (report.ok, report.streams, report.records) == (
            True,
            9 * len(tenants),
            0 if since else 9 * len(tenants),
        )


# -- since -----------------------------------------------------------------------------------------


def test_since_an_anchor_only_what_came_after_is_read(anchor: Path) -> None:
    source = written()
    store_of(source).anchor(anchor, key=SECRET)
    store_of(source).stream("b").append(("noted", "new"), ("noted", "newer"))
    store_of(source).stream("d").append(("noted", "new"))
    report = verified(store_of(source), anchor, since=True)
    assert (report.ok, report.records, report.streams, report.complete) == (True, 3, 5, False)
    target = MemoryBackend()
    rebuild(source, target, {key("b"): altered(7), key("d"): altered(1)})
    assert found(verified(store_of(target), anchor, since=True)) == [
        ("b", 7, "altered"),
        ("d", 1, "altered"),
    ]


def test_since_an_anchor_old_records_are_trusted_and_a_full_verification_is_not_so_easily_content(
    anchor: Path,
) -> None:
    source, target = written(), MemoryBackend()
    store_of(source).anchor(anchor, key=SECRET)
    rebuild(source, target, {key("b"): altered(3)})
    assert verified(store_of(target), anchor, since=True).ok
    assert found(verified(store_of(target), anchor)) == [("b", 3, "altered")]


def test_since_an_anchor_a_stream_with_another_record_there_is_read_from_its_beginning(
    anchor: Path,
) -> None:
    source, target = written(), MemoryBackend()
    store_of(source).anchor(anchor, key=SECRET)
    rebuild(
        source,
        target,
        {key("b"): altered(3), key("c"): lambda old: [*old[:5], old[5]._replace(hash=b"\1" * 32)]},
    )
    assert found(verified(store_of(target), anchor, since=True)) == [("c", 6, "altered")]


# -- what is written -------------------------------------------------------------------------------


def test_an_anchor_is_json_lines_and_says_where_each_stream_stands(anchor: Path) -> None:
    source = written(2)
    store_of(source).anchor(anchor, key=SECRET)
    header, *places, seal = map(json.loads, anchor.read_text().splitlines())
    assert (header["format"], header["tenant"]) == ("holdfast anchor 1", "default")
    assert [(place["kind"], place["id"], place["version"]) for place in places] == [
        ("tenant", "default", 1),
        ("stream", "a", 2),
        ("stream", "b", 2),
        ("stream", "c", 2),
    ]
    head = source.head(key("b"))
    assert head is not None
    assert (places[2]["hash"], places[2]["incarnation"]) == (
        head.hash.hex(),
        head.incarnation.hex(),
    )
    assert (seal["streams"], seal["signed"]) == (4, "hmac-sha256")
    assert SECRET.hex() not in anchor.read_text()


def test_an_anchor_is_readable_by_its_owner_alone_and_replaces_nothing(anchor: Path) -> None:
    store = store_of(written(1))
    store.anchor(anchor)
    assert stat.S_IMODE(anchor.stat().st_mode) == 0o600
    before = anchor.read_bytes()
    with pytest.raises(AlreadyExists):
        store.anchor(anchor)
    assert anchor.read_bytes() == before
    store.stream("a").append(("noted", 1))
    store.anchor(anchor, overwrite=True)
    assert anchor.read_bytes() != before


def test_an_anchor_can_be_written_to_any_text_file(anchor: Path) -> None:
    store, to = store_of(written(1)), io.StringIO()
    store.anchor(to, key=SECRET)
    anchor.write_text(to.getvalue())
    assert verified(store, anchor).ok
    with pytest.raises(TypeError, match="must be a path"):
        store.anchor(3)  # type: ignore[arg-type]


def test_of_a_store_that_cannot_be_read_no_anchor_is_made(anchor: Path) -> None:
    class Broken(Wrapper):
        def head(self, stream: StreamKey) -> Head | None:
            if stream.id == "b":
                raise CorruptRecord(str(stream), what="an object does not match its digest")
            return super().head(stream)

    with pytest.raises(CorruptRecord, match="'b'"):
        store_of(Broken(written(1))).anchor(anchor)
    assert list(anchor.parent.iterdir()) == []


def test_a_folder_that_is_not_there_is_a_plain_error(anchor: Path) -> None:
    with pytest.raises(holdfast.errors.Unavailable, match="cannot write"):
        store_of(written(1)).anchor(anchor.parent / "nowhere" / "a")


# -- what is refused -------------------------------------------------------------------------------


@pytest.fixture
def signed(anchor: Path) -> tuple[holdfast.Store, Path]:
    store = store_of(written(2))
    store.anchor(anchor, key=SECRET)
    return store, anchor


def test_another_key_is_refused(signed: tuple[holdfast.Store, Path]) -> None:
    store, anchor = signed
    with pytest.raises(AnchorRefused, match="altered, or signed with another key") as caught:
        store.verify(anchor, anchor_key=OTHER)
    assert OTHER.hex() not in str(caught.value) and str(anchor) in str(caught.value)


def test_a_signed_anchor_is_not_taken_without_its_key(signed: tuple[holdfast.Store, Path]) -> None:
    with pytest.raises(AnchorRefused, match="pass the key"):
        signed[0].verify(signed[1])


def test_an_anchor_without_a_signature_is_not_taken_where_a_key_is_given(anchor: Path) -> None:
    store = store_of(written(2))
    store.anchor(anchor)
    report = store.verify(anchor)
    assert report.anchored == "unsigned" and "an unsigned anchor" in str(report)
    with pytest.raises(AnchorRefused, match="it is unsigned"):
        store.verify(anchor, anchor_key=SECRET)


def test_an_anchor_that_was_changed_anywhere_is_refused(anchor: Path) -> None:
    """Bits of every byte flipped (letters made small or large among them), cut off, every line left
    out or doubled."""
    store = store_of(MemoryBackend())
    store.stream("s").append(("noted", 1))
    store.anchor(anchor, key=SECRET)
    content = anchor.read_bytes()
    lines = content.splitlines(keepends=True)
    changed = [content[:at] for at in range(0, len(content), 5)]
    for at in range(len(content)):
        changed += [
            content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]
            for bit in {1 << at % 8, 32}
        ]
    for line in range(len(lines)):
        changed.append(b"".join(lines[:line] + lines[line + 1 :]))
        changed.append(b"".join(lines[: line + 1] + lines[line:]))
    assert len(list(AnchorFile(anchor, SECRET).read_entries())) == 2
    for other in changed:
        anchor.write_bytes(other)
        with pytest.raises(AnchorRefused):
            list(AnchorFile(anchor, SECRET).read_entries())


def test_an_unsigned_anchor_that_was_altered_is_refused(anchor: Path) -> None:
    store = store_of(written(1))
    store.anchor(anchor)
    content = anchor.read_text()
    for changed in (
        content.replace('"version":1', '"version":2', 1),
        content.replace('"streams":4', '"streams":3'),
    ):
        anchor.write_text(changed)
        with pytest.raises(AnchorRefused, match="altered"):
            store.verify(anchor)


def sealed_again(anchor: Path, lines: list[bytes]) -> None:
    """An unsigned anchor of these lines, as anybody can make one."""
    seal = {
        "streams": len(lines) - 1,
        "sha256": sha256(b"".join(lines)).hexdigest(),
        "signed": "unsigned",
    }
    anchor.write_bytes(b"".join(lines) + json.dumps(seal).encode() + b"\n")


def test_lines_that_were_exchanged_are_refused_even_if_nobody_signed_them(anchor: Path) -> None:
    store = store_of(written(1))
    store.anchor(anchor)
    header, one, two, *rest, _ = anchor.read_bytes().splitlines(keepends=True)
    sealed_again(anchor, [header, two, one, *rest])
    with pytest.raises(AnchorRefused, match="out of order"):
        store.verify(anchor)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": -1},
        {"version": 1 << 63},
        {"version": "1"},
        {"kind": "blob"},
        {"kind": "nothing"},
        {"hash": 1},
        {"id": None},
    ],
)
@pytest.mark.parametrize("since", [False, True])
def test_lines_that_no_store_has_written_are_refused(
    change: dict[str, Any], since: bool, anchor: Path
) -> None:
    store = store_of(written(1))
    store.anchor(anchor)
    header, *places, _ = anchor.read_bytes().splitlines(keepends=True)
    places[1] = json.dumps({**json.loads(places[1]), **change}).encode() + b"\n"
    sealed_again(anchor, [header, *places])
    with pytest.raises(AnchorRefused, match="line 3"):
        store.verify(since=anchor) if since else store.verify(anchor)


@pytest.mark.parametrize(
    "change", [{"format": "holdfast anchor 2"}, {"at": 1e300}, {"at": -1.0}, {"tenant": 3}]
)
def test_a_beginning_that_no_store_has_written_is_refused(
    change: dict[str, Any], anchor: Path
) -> None:
    store = store_of(written(1))
    store.anchor(anchor)
    header, *places, _ = anchor.read_bytes().splitlines(keepends=True)
    sealed_again(anchor, [json.dumps({**json.loads(header), **change}).encode() + b"\n", *places])
    with pytest.raises(AnchorRefused):
        store.verify(anchor)


@pytest.mark.parametrize("text", ["", "zz", "00", "ä"])
def test_a_hash_or_an_incarnation_that_is_not_valid_fits_nothing_and_ends_nothing(
    text: str, anchor: Path
) -> None:
    store = store_of(written(1))
    for name, what in (("hash", "forked"), ("incarnation", "rolled_back")):
        store.anchor(anchor, overwrite=True)
        header, *places, _ = anchor.read_bytes().splitlines(keepends=True)
        places[1] = json.dumps({**json.loads(places[1]), name: text}).encode() + b"\n"
        sealed_again(anchor, [header, *places])
        for options in ({"anchor": anchor}, {"since": anchor}):
            assert [problem.what for problem in store.verify(**options).problems] == [what]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n[]\n",
        b"{}\n{}\n",
        b"\x80\x04.\n" * 3,
        b"x" * 200_000,
        b"[" * 70_000 + b"\n",
    ],
)
def test_what_is_no_anchor_is_refused(content: bytes, anchor: Path) -> None:
    anchor.write_bytes(content)
    with pytest.raises(AnchorRefused):
        store_of(written(1)).verify(anchor)


def test_an_anchor_that_is_not_there_is_refused(anchor: Path) -> None:
    with pytest.raises(AnchorRefused, match="No such file"):
        store_of(written(1)).verify(anchor)


def test_an_anchor_that_is_exchanged_while_it_is_read_is_refused(
    signed: tuple[holdfast.Store, Path],
) -> None:
    store, anchor = signed
    file = AnchorFile(anchor, SECRET)
    store.stream("a").append(("noted", 1))
    store.anchor(anchor, key=OTHER, overwrite=True)
    with pytest.raises(AnchorRefused, match="changed while it was read"):
        list(file.read_entries())


def test_an_anchor_of_one_tenant_is_for_that_tenant(anchor: Path) -> None:
    store = store_of(written(1))
    store.for_tenant("acme").stream("s").append(("noted", 1))
    store.for_tenant("acme").anchor(anchor, key=SECRET)
    assert verified(store.for_tenant("acme"), anchor).ok
    for other, options in ((store, {}), (store.for_tenant("acme"), {"all_tenants": True})):
        with pytest.raises(AnchorRefused, match="it covers only tenant 'acme'"):
            verified(other, anchor, **options)
    store.anchor(anchor, key=SECRET, all_tenants=True, overwrite=True)
    store.stream("a").delete()
    report = verified(store.for_tenant("acme"), anchor)
    assert (report.ok, report.streams, report.deleted) == (
        True,
        2,
        0,
    )  # what others have is not looked at


def test_anchor_and_since_are_not_given_together(anchor: Path) -> None:
    store = store_of(written(1))
    with pytest.raises(ValueError, match="not both"):
        store.verify(anchor, since=anchor)
    with pytest.raises(ValueError, match="anchor_key needs an anchor"):
        store.verify(anchor_key=SECRET)


# -- keys ------------------------------------------------------------------------------------------


def pems(private: Any) -> tuple[bytes, bytes]:
    encoding = serialization.Encoding.PEM
    return (
        private.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        private.public_key().public_bytes(
            encoding, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def test_with_ed25519_the_private_key_signs_and_the_public_one_is_enough_to_verify(
    tmp_path: Path, anchor: Path
) -> None:
    store, private = store_of(written(2)), Ed25519PrivateKey.generate()
    secret, public = pems(private)
    (tmp_path / "private.pem").write_bytes(secret)
    (tmp_path / "public.pem").write_bytes(public)
    for signer in (private, secret, tmp_path / "private.pem", str(tmp_path / "private.pem")):
        assert store.anchor(anchor, key=signer, overwrite=True).signed == "ed25519"
        for checker in (private, private.public_key(), public, tmp_path / "public.pem"):
            assert store.verify(anchor, anchor_key=checker).anchored == "ed25519"
    with pytest.raises(ValueError, match="got a public key"):
        store.anchor(tmp_path / "other", key=public)
    assert not (tmp_path / "other").exists()
    with pytest.raises(AnchorRefused, match="signed with another key"):
        store.verify(anchor, anchor_key=Ed25519PrivateKey.generate())


def test_a_public_key_is_never_taken_for_a_shared_secret(anchor: Path) -> None:
    """Else everybody who knows the public key could sign with it."""
    store, private = store_of(written(2)), Ed25519PrivateKey.generate()
    _, public = pems(private)
    store.anchor(anchor, key=private)
    *lines, seal = anchor.read_bytes().splitlines(keepends=True)
    facts = json.loads(seal)
    message = (
        b"holdfast anchor 1\nhmac-sha256\n"
        + facts["streams"].to_bytes(8, "big")
        + bytes.fromhex(facts["sha256"])
    )
    for secret in (public, private.public_key().public_bytes_raw()):
        facts |= {
            "signed": "hmac-sha256",
            "signature": hmac.new(secret, message, sha256).hexdigest(),
        }
        anchor.write_bytes(b"".join(lines) + json.dumps(facts).encode() + b"\n")
        with pytest.raises(AnchorRefused, match="the given key is for ed25519"):
            store.verify(anchor, anchor_key=public)
    # The signature is what it should be for somebody whose secret that is: the test tests what it
    # means to.
    assert store.verify(anchor, anchor_key=private.public_key().public_bytes_raw()).ok


@pytest.mark.parametrize("form", [bytes, lambda key: key.hex().encode() + b"\n", base64.b64encode])
def test_a_key_file_holds_bytes_or_their_text(form: Any, tmp_path: Path, anchor: Path) -> None:
    path = tmp_path / "anchor.key"
    path.write_bytes(form(SECRET))
    store = store_of(written(1))
    store.anchor(anchor, key=path)
    assert store.verify(anchor, anchor_key=SECRET).ok


@pytest.mark.parametrize(
    "key", [b"", b"short", b"x" * 31, b"x" * 64, b"-----BEGIN nonsense", 3, object()]
)
def test_what_is_no_key_is_refused_before_anything_is_written(key: Any, anchor: Path) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        store_of(written(1)).anchor(anchor, key=key)
    assert not anchor.exists() and "xxxx" not in str(caught.value)


@pytest.mark.slow
def test_a_key_of_another_kind_is_refused(anchor: Path) -> None:
    private = generate_private_key(SECP256R1())
    for key_ in (private, pems(private)[0]):
        with pytest.raises(ValueError, match="must be an Ed25519 key"):
            store_of(written(1)).anchor(anchor, key=key_)


def test_a_key_file_that_holds_no_key_or_is_not_there_is_refused_without_being_quoted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "anchor.key"
    path.write_text("correct horse battery staple")
    for place in (path, tmp_path / "none"):
        with pytest.raises(ValueError, match="key") as caught:
            load_signer(place)
        assert "horse" not in str(caught.value)


def test_a_key_shows_nothing_of_itself() -> None:
    shared, pair = load_signer(SECRET), load_signer(Ed25519PrivateKey.generate())
    assert repr(shared) == repr(pair) == "<key of an anchor>"
