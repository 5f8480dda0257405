"""File names for streams: any text, kept apart on every file system, never outside its folder."""

from __future__ import annotations

import hashlib

from ...errors import InvalidId
from ..interface import StreamKey

STREAMS = "streams"
TORN = "torn"
SUFFIX = ".jsonl"
TEMPORARY = ".tmp"

_LONGEST = 120  # with suffixes well below the 255 bytes, and on Windows the 260 characters of a path, that are common
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
)


def file_name(text: str) -> str:
    """A name for `text` that no other text has, whatever the file system does to case and accents.

    Lowercase letters, digits, "-" and "_" stay, all other bytes become %xx. Since "." and "/" are among
    those, ".." and absolute paths cannot arise. Long names end in "~" and the SHA-256 of the text: "~" is
    not in any other name.
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidId(
            "an id must be text that can be written as UTF-8: it has half of a surrogate pair"
        ) from None
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw) or "%"
    if len(name) > _LONGEST:
        digest = hashlib.sha256(raw).hexdigest()
        name = f"{name[: _LONGEST - 65]}~{digest}"
    return f"%{ord(name[0]):02x}{name[1:]}" if name in _RESERVED else name


def folder_of(stream: StreamKey) -> str:
    """The folder of a stream's file, relative to the root. 256 folders per kind keep each of them short."""
    fan = hashlib.sha256(stream.id.encode(errors="replace")).hexdigest()[:2]
    return f"{STREAMS}/{file_name(stream.tenant)}/{file_name(stream.kind)}/{fan}"


def path_of(stream: StreamKey) -> str:
    """The path of a stream's file, relative to the root."""
    return f"{folder_of(stream)}/{file_name(stream.id)}{SUFFIX}"


def torn_name(stream: StreamKey) -> str:
    """How the names of the side files begin that keep what was cut off a stream's file."""
    digest = hashlib.sha256("\0".join(map(file_name, stream)).encode()).hexdigest()[:12]
    return f"{file_name(stream.id)}.{digest}.torn-"
