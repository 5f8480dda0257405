"""What is fuzzed: everything that makes sense of stored bytes. Each target takes any bytes and
raises only if something is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from holdfast import keys
from holdfast.backends import Record, StreamKey
from holdfast.backends.files.frame import (
    AppendFrame,
    BadFrame,
    decode_frame,
    encode_frame,
    parse_header,
)
from holdfast.backends.files.scan import (
    FileSpan,
    find_last_frame,
    find_version,
    is_torn,
    iter_valid_frames,
    read_backward,
    read_forward,
    read_tombstone,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.encryption.cipher import Cipher
from holdfast.encryption.keyring import open_keyring
from holdfast.errors import HoldfastError, InvalidKey
from holdfast.keys import Wrapping
from holdfast.log.codec import Undecodable, decode, decode_as, encode
from holdfast.log.events import decode_envelope, decode_plain_envelope
from holdfast.state.delta import BadDelta, diff, patch


class Order(msgspec.Struct):
    id: UUID
    at: datetime
    items: list[dict[str, int]]
    parts: set[str] = set()
    inner: Order | None = None


DECLARED: list[Any] = [
    int,
    str,
    bytes,
    dict[str, list[float]],
    Order,
    UUID,
    datetime,
    set[int],
    tuple[int, str] | None,
]


def codec(data: bytes) -> None:
    """What decodes can be encoded, and is then the same."""
    try:
        value = decode(data)
    except Undecodable:
        return
    try:
        again = encode(value)
    except HoldfastError:
        return  # a number that JSON has and 64 bits have not
    assert encode(decode(again)) == again


def declared(data: bytes) -> None:
    for kind in DECLARED:
        try:
            decode_as(data, kind)
        except Undecodable:
            pass


def envelope(data: bytes) -> None:
    """What opens with its data decoded also opens with its data raw, and says the same."""
    try:
        plain = decode_plain_envelope(data)
    except Undecodable:
        try:
            decode_envelope(data)
        except Undecodable:
            pass
        return
    raw = decode_envelope(data)
    assert (plain.id, plain.type, plain.v, plain.at) == (raw.id, raw.type, raw.v, raw.at)


def delta(data: bytes) -> None:
    """`old`, a newline, and what is said to be a delta upon it; and between the two, a true one."""
    old, _, new = data.partition(b"\n")
    try:
        patched = patch(old, [new])
        decode(patched)
    except (Undecodable, BadDelta):
        pass
    try:
        one, other = encode(decode(old)), encode(decode(new))
    except (Undecodable, HoldfastError):
        return
    assert patch(one, [diff(one, other)]) == other


def key_material(data: bytes) -> None:
    """A text that is to be a key, a file with one, and what a ring says of one."""
    for make in (
        lambda: keys.parse_keys("base64:" + data.decode(errors="replace")),
        lambda: keys._decode_key(data, "it"),
    ):
        try:
            make()
        except InvalidKey:
            pass
    try:
        wrapping = msgspec.json.decode(data, type=Wrapping)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        wrapping = Wrapping("raw", "k", keys.key_check(SECRET), {}, data)
    try:
        assert keys.raw(SECRET).unwrap(wrapping, b"about") is None
    except HoldfastError:
        pass


SECRET = bytes(range(32))
_STREAM = StreamKey("default", "stream", "s")


def _cipher() -> Cipher:
    backend = MemoryBackend()
    cipher = Cipher(backend, open_keyring(backend, SECRET))
    cipher.keys.ensure("default", "house")
    return cipher


_sealing: list[Cipher] = []


def sealed(data: bytes) -> None:
    """No bytes open that nobody has sealed."""
    if not _sealing:
        _sealing.append(_cipher())
    opened = None
    try:
        opened = _sealing[0].decrypt(_STREAM, b"i" * 16, Record(1, b"a" * 16, b"", data), bytes(32))
    except HoldfastError:
        pass
    assert opened is None


def frame(data: bytes) -> None:
    """A line as it is, and with the length and the sum that it should have."""
    for line in (data, _summed(data)):
        parse_header(line)
        try:
            found = decode_frame(line)
        except BadFrame:
            continue
        if found.first > 0 and all(
            body.startswith(b"{") for one in found.appends for _, body in one.records
        ):
            assert decode_frame(encode_frame(found)).last == found.last


def _summed(inner: bytes) -> bytes:
    inner, length = inner.replace(b"\n", b" "), 0
    for _ in range(4):
        start = b'{"length":%d,' % length + inner
        length = len(start) + 43
    return start + b',"sum":"%s"}\n' % sha256(start).hexdigest()[:32].encode()


def scan(data: bytes) -> None:
    """Everything that finds frames, in a file of any bytes; and that none is found twice."""
    span = FileSpan(lambda size, offset: data[offset : offset + size], len(data))
    places = list(iter_valid_frames(span))
    assert [place.start for place in places] == sorted({place.start for place in places})
    last = find_last_frame(span)
    is_torn(span, last.stop if last else 0)
    for version in (1, 2, 10**17):
        found = find_version(span, version)
        assert found is None or found.frame.first <= version <= found.frame.last
    for walk in (
        lambda: read_tombstone(span),
        lambda: list(read_forward(span, 0)),
        lambda: list(read_backward(span, len(data))),
    ):
        try:
            walk()
        except BadFrame:
            pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": codec,
    "declared": declared,
    "envelope": envelope,
    "delta": delta,
    "keys": key_material,
    "sealed": sealed,
    "frame": frame,
    "scan": scan,
}

_LINE = encode_frame(AppendFrame(_STREAM, 1, 1, b"i" * 16, ())).replace(
    b'"appends":[]', b'"appends":[{"id":"ab","records":[{"hash":"00","body":{"n":1}}]}]'
)
_INNER = _LINE.split(b",", 1)[1].rsplit(b',"sum"', 1)[0]

SEEDS: list[bytes] = [
    b'{"id":"x","type":"noted","at":1.5,"v":2,"by":"b","correlation":"c","fold":[1,2],"data":{"a":[1,2.5,null,true,"\\u00e4"]}}',
    b'{"id":"x","type":"noted","at":1,"blob":{"digest":"00","size":7,"incarnation":"x"}}',
    b'{"a":[1,2,3],"b":"text"}\n{"in":{"a":{"list":[1,-1,[7],1]},"b":{"text":[1,-1,"xx",2]}},"put":{"c":1},"drop":["b"],"order":["a"]}',
    b'{"how":"raw","key":"k","check":"c","facts":{"n":1},"wrapped":"AAAA"}',
    b"\1\0" + bytes(12) + bytes(40),
    b"\1\5house" + bytes(12) + bytes(40),
    b'{"id":"12345678-1234-5678-1234-567812345678","at":"2026-01-02T03:04:05Z","items":[{"a":1}],"parts":["x"],"inner":null}',
    _INNER,
    _summed(_INNER) + _summed(_INNER),
    SECRET.hex().encode(),
]
"""Where fuzzing begins: one of each form."""
