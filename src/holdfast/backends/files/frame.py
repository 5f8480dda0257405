"""The frame: one line of a stream's file, with the appends of one batch to it.

    {"length":412,"first":3,"last":4,"stream":["t","task","a"],"incarnation":"0f…",
     "appends":[{"id":"ab…","records":[{"hash":"1c…","body":{…}}, …]}],
     "fields":{"status":"running"},"ids":1,"sum":"9e…"}

`length` counts the bytes of the line with its newline. `sum` is the first half of a SHA-256 of all
that precedes it, so each line can be verified on its own. `fields` are the fields of the head after
this frame, `ids` is the number of indexed append ids so far. A line with `"first":0` is only valid
as the first line of a file: it lists the deleted incarnations of the stream.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence

import msgspec

from ..interface import HeadFields, StreamKey, is_indexed

HEADER_BYTES = 96
MAX_FRAME_BYTES = 256 * 1024 * 1024
"""The longest line. A longer one, perhaps planted by an attacker, is never read into memory."""
_LENGTH = re.compile(rb'\{"length":([1-9][0-9]{0,17}),')
_HEADER = re.compile(
    _LENGTH.pattern + rb'"first":(0|[1-9][0-9]{0,17}),"last":(0|[1-9][0-9]{0,17}),'
)
_STREAM = re.compile(rb'"stream":(\["(?:[^"\\]|\\.)*","(?:[^"\\]|\\.)*","(?:[^"\\]|\\.)*"\])')
_SUM_BYTES = len(b',"sum":""}\n') + 32
# A body must decode inside a frame, even when the stack is deeper than it was for the writer.
_OPEN, _CLOSE = b"[" * 200, b"]" * 200


class BadFrame(Exception):
    """The bytes are not a complete and valid frame. The argument is the reason, without content."""


class StoredAppend(msgspec.Struct, frozen=True):
    """One append in a frame; records are (hash, body) pairs from version `first` on."""

    id: bytes
    first: int
    records: Sequence[tuple[bytes, bytes]]

    @property
    def last(self) -> int:
        return self.first + len(self.records) - 1

    @property
    def indexed(self) -> bool:
        return is_indexed(self.id)


class AppendFrame(msgspec.Struct, frozen=True):
    """A decoded frame. `deleted` are the deleted incarnations in the first line of a file."""

    stream: StreamKey
    first: int
    last: int
    incarnation: bytes = b""
    appends: Sequence[StoredAppend] = ()
    fields: HeadFields = HeadFields()
    ids: int = 0
    deleted: Sequence[bytes] = ()

    @property
    def hash(self) -> bytes:
        """The hash of the newest record."""
        return self.appends[-1].records[-1][0]


class _Record(msgspec.Struct):
    hash: str
    body: msgspec.Raw = msgspec.Raw(b"")
    base64: bytes | None = None


class _Append(msgspec.Struct):
    id: str
    records: list[_Record]


class _Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str | None = None
    label: str | None = None
    owner: str | None = None
    due_at: float | str | None = None
    expires_at: float | str | None = None


class _Line(msgspec.Struct, omit_defaults=True):
    length: int
    first: int
    last: int
    stream: tuple[str, str, str]
    incarnation: str = ""
    appends: list[_Append] = []
    fields: _Fields = _Fields()
    ids: int = 0
    deleted: list[str] = []
    sum: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def encode_frame(frame: AppendFrame) -> bytes:
    """Encode a frame as a line, newline included."""
    line: dict[str, object] = {"first": frame.first, "last": frame.last, "stream": frame.stream}
    line["incarnation"] = frame.incarnation.hex()
    if frame.first:
        line["appends"] = [_encode_append(append) for append in frame.appends]
        line["fields"] = _encode_fields(frame.fields)
    line["ids"] = frame.ids
    if not frame.first:
        line["deleted"] = [incarnation.hex() for incarnation in frame.deleted]
    rest = b"," + _encode(line)[1:-1]
    fixed = len(b'{"length":') + len(rest) + _SUM_BYTES
    digits = len(str(fixed))
    length = fixed + (digits if len(str(fixed + digits)) == digits else digits + 1)
    start = b'{"length":%d' % length + rest
    return start + _checksum(start)


def decode_frame(line: bytes) -> AppendFrame:
    """Decode a line; raise `BadFrame` if it is not valid. The checksum is verified first."""
    if parse_length(line) != len(line):
        raise BadFrame("its length is not the declared one")
    if line[-_SUM_BYTES:] != _checksum(line[:-_SUM_BYTES]):
        raise BadFrame("its checksum is wrong")
    try:
        return _build_frame(_decode(line))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadFrame("it does not have the structure of a frame") from None


def parse_length(start: bytes) -> int | None:
    """Return the length that the start of a line declares, None if it is unreadable."""
    match = _LENGTH.match(start)
    return int(match[1]) if match else None


def parse_header(start: bytes) -> tuple[int, int, int] | None:
    """Return the declared length, first and last version of a line, unverified."""
    match = _HEADER.match(start)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def guess_stream(start: bytes) -> StreamKey | None:
    """Return the stream that a line names, unverified; None if it is unreadable."""
    match = _STREAM.search(start)
    try:
        return (
            StreamKey(*msgspec.json.decode(match[1], type=tuple[str, str, str])) if match else None
        )
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _checksum(data: bytes) -> bytes:
    return b',"sum":"%s"}\n' % hashlib.sha256(data).hexdigest()[:32].encode()


def _encode_append(append: StoredAppend) -> dict[str, object]:
    records = []
    for digest, body in append.records:
        content: dict[str, object] = (
            {"body": msgspec.Raw(body)} if _is_plain_json(body) else {"base64": body}
        )
        records.append({"hash": digest.hex(), **content})
    return {"id": append.id.hex(), "records": records}


def _is_plain_json(body: bytes) -> bool:
    """Return whether the body can be embedded in the line and read back byte for byte."""
    if not (body.startswith(b"{") and body.endswith(b"}")) or b"\n" in body or b"\0" in body:
        return False
    try:
        body.decode()
        # Alone first: `{},{}` is not a JSON value, but would be two of them inside brackets.
        msgspec.json.decode(body, type=msgspec.Raw)
        msgspec.json.decode(_OPEN + body + _CLOSE, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    return True


def _encode_fields(fields: HeadFields) -> _Fields:
    return _Fields(
        status=fields.status,
        label=None if fields.label is None else fields.label.hex(),
        owner=fields.owner,
        due_at=_encode_time(fields.due_at),
        expires_at=_encode_time(fields.expires_at),
    )


def _encode_time(time: float | None) -> float | str | None:
    # JSON has no infinity; the encoder would write null.
    return time if time is None or math.isfinite(time) else str(time)


def _build_frame(line: _Line) -> AppendFrame:
    appends, version = [], line.first
    for append in line.appends:
        if not append.id:
            raise ValueError("an append has no id")
        records = tuple(
            (bytes.fromhex(record.hash), _decode_body(record)) for record in append.records
        )
        appends.append(StoredAppend(bytes.fromhex(append.id), version, records))
        version += len(records)
    if line.first and (version != line.last + 1 or version == line.first):
        raise ValueError("the number of records does not match the versions")
    fields = line.fields
    return AppendFrame(
        stream=StreamKey(*line.stream),
        first=line.first,
        last=line.last,
        incarnation=bytes.fromhex(line.incarnation),
        appends=tuple(appends),
        fields=HeadFields(
            status=fields.status,
            label=None if fields.label is None else bytes.fromhex(fields.label),
            owner=fields.owner,
            due_at=None if fields.due_at is None else float(fields.due_at),
            expires_at=None if fields.expires_at is None else float(fields.expires_at),
        ),
        ids=line.ids,
        deleted=tuple(bytes.fromhex(incarnation) for incarnation in line.deleted),
    )


def _decode_body(record: _Record) -> bytes:
    return bytes(record.body) if record.base64 is None else record.base64
