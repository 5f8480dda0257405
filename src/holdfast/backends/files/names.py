"""File names for streams: unique on every file system, and never outside their folder."""

from __future__ import annotations

import hashlib
from urllib.parse import unquote_to_bytes

from ...errors import InvalidId
from ..interface import StreamKey

STREAMS = "streams"
TORN = "torn"
SUFFIX = ".jsonl"
TEMPORARY = ".tmp"

# With suffixes, well below the usual 255 bytes of a name and the 260 characters of a Windows path.
_MAX_NAME_LENGTH = 120
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))}
)


def file_name(text: str) -> str:
    """Return a name that no other text has, whatever the file system does to case and accents.

    Lowercase letters, digits, "-" and "_" stay; all other bytes become %xx. That includes "." and
    "/", so ".." and absolute paths cannot arise. A long name ends in "~" and the SHA-256 of the
    text; no other name contains "~".
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidId("id must be valid Unicode text, got a lone surrogate") from None
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in raw) or "%"
    if len(name) > _MAX_NAME_LENGTH:
        digest = hashlib.sha256(raw).hexdigest()
        name = f"{name[: _MAX_NAME_LENGTH - 65]}~{digest}"
    return f"%{ord(name[0]):02x}{name[1:]}" if name in _RESERVED else name


def parse_name(name: str) -> str | None:
    """Return the text of a file name; None if it isn't such a name, or was shortened."""
    if "~" in name or not name.isascii():
        return None
    try:
        text = "" if name == "%" else unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return None
    return text if file_name(text) == name else None


def folder_of(stream: StreamKey) -> str:
    """Return the folder of a stream's file, relative to the root. Each kind has 256 folders."""
    fan = hashlib.sha256(stream.id.encode(errors="replace")).hexdigest()[:2]
    return f"{STREAMS}/{file_name(stream.tenant)}/{file_name(stream.kind)}/{fan}"


def path_of(stream: StreamKey) -> str:
    """Return the path of a stream's file, relative to the root."""
    return f"{folder_of(stream)}/{file_name(stream.id)}{SUFFIX}"


def torn_prefix(stream: StreamKey) -> str:
    """Return the prefix of the side files with truncated bytes of a stream's file."""
    digest = hashlib.sha256("\0".join(map(file_name, stream)).encode()).hexdigest()[:12]
    return f"{file_name(stream.id)}.{digest}.has_torn_tail-"
