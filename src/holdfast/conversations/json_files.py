"""Import messages from JSON files of other applications, and export them atomically.

A file is read up to the first damage. If a crash has truncated or overwritten parts of it, the
error names the position; on request, the messages before it are imported. Reading never changes the
file. Errors contain no content, only positions, kinds and names of agents.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import CorruptFile, NotSerializable, TooLarge
from ..log.codec import MAX_DEPTH, encode

# The keys under which applications keep their list of messages, beside the model, the cost etc.
LIST_NAMES = ("messages", "chat_history", "history", "conversation")
# A message has at least one of these keys. An object without them is something else, like settings.
MESSAGE_MARKS = frozenset({"role", "type", "content", "parts", "kind"})
# Keys that only messages have; a list under such a key is a part of the message.
MESSAGE_KEYS = MESSAGE_MARKS | {"tool_calls", "tool_responses"}

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
try:
    import fcntl
except ImportError:  # Windows
    _FULL_SYNC: int | None = None
else:
    _FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_SPACE = re.compile(r"[ \t\n\r]*")


class ReadMessages(msgspec.Struct, frozen=True):
    """The messages of a file, whether it was readable as a whole, and the SHA-256 of its bytes."""

    messages: list[dict[str, Any]]
    complete: bool
    digest: str


def read_messages(
    path: str | os.PathLike[str], *, salvage: bool = False, pair: str | None = None
) -> ReadMessages:
    """Read the messages of a file: a JSON list, JSON Lines, or an object with one or several lists.

    A file with several lists, or with one list under an unknown key beside other data, needs
    `pair`; without it, the ValueError lists the names. Raises `CorruptFile` if the file is damaged
    or has no messages; with `salvage`, returns the messages before the damage, with
    `complete=False`.
    """
    raw = Path(path).read_bytes()
    mark, encoding = next(
        ((mark, name) for mark, name in _ENCODINGS if raw.startswith(mark)), (b"", "utf-8")
    )
    text, damage = _decode_text(raw[len(mark) :], encoding)
    scan = _FileScanner(text)
    try:
        scan.scan_file()
    except _DamageFound as found:
        # The first damage counts. But if the text ends where bytes can't be decoded, report those:
        # the file is not just truncated.
        damage = damage if damage and found.at >= len(text) else found
    if damage is None or salvage:
        starts, items = scan.choose_list(pair)
        messages, unstorable = _take_storable(starts, items)
        damage = unstorable or damage  # the list ends before the damage, so this comes first
        if damage is None or salvage:
            return ReadMessages(messages, damage is None, sha256(raw).hexdigest())
    before = text[: damage.at]
    line, column = before.count("\n") + 1, damage.at - before.rfind("\n")
    at = len(mark) + len(before.encode(encoding))
    raise CorruptFile(
        os.fspath(path), offset=at, what=f"{damage.what} (line {line}, column {column})"
    )


class _DamageFound(Exception):
    """The file can't be read beyond the character at `at`."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


class _UnstorableValue(ValueError):
    """A value that `json` accepts, but that cannot be stored. It has no position."""


def _decode_text(raw: bytes, encoding: str) -> tuple[str, _DamageFound | None]:
    """Return the text up to the first undecodable bytes, and the damage there."""
    try:
        return raw.decode(encoding), None
    except UnicodeDecodeError as error:
        text = raw[: error.start].decode(encoding)
    return text, _DamageFound(len(text), f"bytes that are not {encoding.upper()}")


def _take_storable(
    starts: list[int], items: list[Any]
) -> tuple[list[dict[str, Any]], _DamageFound | None]:
    """Return the messages before the first one that can't be stored, and what is wrong with it."""
    messages: list[dict[str, Any]] = []
    for number, (start, item) in enumerate(zip(starts, items, strict=True), 1):
        if type(item) is not dict or not item:
            return messages, _DamageFound(
                start, f"message {number} is not a JSON object, or is empty"
            )
        if MESSAGE_MARKS.isdisjoint(item):
            return messages, _DamageFound(
                start, "an object without role, type or content is not a message"
            )
        try:
            encode(item)
        except (NotSerializable, TooLarge) as error:
            return messages, _DamageFound(start, f"message {number} cannot be stored: {error}")
        messages.append(item)
    return messages, None


# -- finding the lists -----------------------------------------------------------------------------


class _FoundList(NamedTuple):
    """A list and its name.

    Items are added as they are read, so the start of a damaged list is kept.
    """

    name: str
    starts: list[int]
    items: list[Any]

    def has_messages(self) -> bool:
        """Return whether the list may be a chat. `type` alone is not enough: tools have it too."""
        return any(
            type(item) is dict and not item.keys().isdisjoint({"role", "content", "parts"})
            for item in self.items
        )


class _FileScanner:
    """One pass over a text: the outer list or object is scanned here, each message by `json`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lists: list[_FoundList] = []
        self.named = False  # whether the lists have names to choose from
        self._only_lists = True
        self._sure = True  # whether a single non-empty list is certain to be the chat

    def scan_file(self) -> None:
        """Scan the file. After `_DamageFound`, `lists` has what was found before the damage."""
        at = self._skip(0)
        opening = self.text[at : at + 1]
        if opening == "[":
            self._expect_end(self._scan_list(at, ""))
        elif opening == "{":
            keys: set[str] = set()
            try:
                end = self._scan_object(at, keys)
            except _DamageFound:
                if self._keep_named(keys):
                    raise
                self._scan_lines(at)  # finds the same damage, and the messages before it
            else:
                named = self._keep_named(keys) and (
                    self._sure or not self.text.startswith("{", self._skip(end))
                )
                self._expect_end(end) if named else self._scan_lines(at)
        else:
            raise self._broken(
                at, "expected a list or an object with messages" if opening else "the file is empty"
            )

    def choose_list(self, pair: str | None) -> tuple[list[int], list[Any]]:
        """Return the list named `pair`, or the only non-empty one."""
        names = ", ".join(repr(found.name[:80]) for found in self.lists[:20]) + (
            " …" if len(self.lists) > 20 else ""
        )
        if pair is not None:
            if not self.named:
                raise ValueError(
                    "pair must be omitted: this file has a single list of messages without a name"
                )
            fitting = [found for found in self.lists if found.name == pair]
            if len(fitting) != 1:
                raise ValueError(
                    f"pair must be one of the lists in this file ({names}), got {pair!r}"
                )
        else:
            fitting = [found for found in self.lists if found.items] or self.lists[:1]
            if len(fitting) > 1:
                raise ValueError(
                    f"this file has several lists of messages; choose one with pair=, from {names}"
                )
            if not self._sure and fitting[0].name not in LIST_NAMES:
                raise ValueError(
                    f"this file has messages among other data; choose them with pair=, from {names}"
                )
        return (fitting[0].starts, fitting[0].items) if fitting else ([], [])

    def _keep_named(self, keys: set[str]) -> bool:
        """Keep an object's lists of messages, or none if its keys are those of a message.

        Return whether any list is kept.
        """
        wrapped = any(found.name in LIST_NAMES for found in self.lists) and "role" not in keys
        if not wrapped and not MESSAGE_KEYS.isdisjoint(keys):
            self.lists = []
        elif (
            wrapped
            or not self._only_lists
            or not all(found.has_messages() for found in self.lists if found.items)
        ):
            self.lists = [
                found for found in self.lists if found.name in LIST_NAMES or found.has_messages()
            ]
            self._sure = all(found.name in LIST_NAMES for found in self.lists)
        self.named = bool(self.lists)
        return self.named

    def _scan_object(self, at: int, keys: set[str], above: str = "") -> int:
        """Scan an object and the objects directly in it for lists. Return where it ends."""
        at = self._skip(at + 1)
        if self.text[at : at + 1] == "}":
            return at + 1
        while True:
            start = at
            key, at = self._value(at)
            if type(key) is not str or key in keys:
                raise self._broken(
                    start, "the same name twice" if type(key) is str else "not valid JSON"
                )
            at = self._skip(self._expect(at, ":"))
            opening, name = self.text[at : at + 1], f"{above}{key}"
            keys.add(key)
            if opening == "[":
                at = self._scan_list(at, name)
            elif opening == "{" and not above:
                at = self._scan_object(at, set(), f"{name}/")
            else:
                at = self._value(at)[1]
                self._only_lists = False  # only after it was read: a truncated value may be a list
            at = self._skip(at)
            if self.text[at : at + 1] == "}":
                return at + 1
            at = self._skip(self._expect(at, ","))

    def _scan_list(self, at: int, name: str) -> int:
        self.lists.append(found := _FoundList(name, [], []))
        at = self._skip(at + 1)
        if self.text[at : at + 1] == "]":
            return at + 1
        while True:
            item, end = self._value(at)
            found.starts.append(at)
            found.items.append(item)
            at = self._skip(end)
            if self.text[at : at + 1] == "]":
                return at + 1
            at = self._skip(self._expect(at, ","))

    def _scan_lines(self, at: int) -> None:
        """Scan consecutive objects, usually one per line; line ends are not required."""
        self.lists, self.named, self._sure = [found := _FoundList("", [], [])], False, True
        while at < len(self.text):
            if self.text[at] != "{":
                raise self._broken(at, "expected a JSON object on each line")
            item, end = self._value(at)
            found.starts.append(at)
            found.items.append(item)
            at = self._skip(end)

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return _json.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            # For an unterminated string, `pos` is its start.
            truncated = error.msg.startswith("Unterminated string")
            position = len(self.text) if truncated else error.pos
        except _UnstorableValue as error:
            raise _DamageFound(at, str(error)) from None
        except RecursionError:
            if not _is_too_deep(self.text, at):
                raise  # the data is not the cause: the caller's own stack is exhausted
            raise _DamageFound(at, f"nested deeper than {MAX_DEPTH} levels") from None
        raise self._broken(position, "not valid JSON")

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _expect(self, at: int, mark: str) -> int:
        at = self._skip(at)
        if self.text[at : at + 1] != mark:
            raise self._broken(at, "not valid JSON")
        return at + 1

    def _expect_end(self, at: int) -> None:
        at = self._skip(at)
        if at < len(self.text):
            raise self._broken(at, "unexpected data after the end of the messages")

    def _broken(self, at: int, what: str) -> _DamageFound:
        if at >= len(self.text) > 0:
            what = "the file ends in the middle"
        elif self.text[at : at + 1] == "\0":
            what = "NUL bytes, which a power loss leaves behind"
        return _DamageFound(at, what)


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _UnstorableValue("an object with the same key twice, of which only one could be kept")
    return found


def _parse_integer(digits: str) -> int:
    if len(digits) > 20:  # more than 64 bits, and maybe enough to keep int() busy for minutes
        raise _UnstorableValue("an integer beyond 64 bits")
    return int(digits)


def _reject_constant(name: str) -> None:
    raise _UnstorableValue(f"{name}, which is not JSON and cannot be stored")


_json = json.JSONDecoder(
    object_pairs_hook=_build_object, parse_int=_parse_integer, parse_constant=_reject_constant
)


def _is_too_deep(text: str, at: int) -> bool:
    """Return whether the value at `at` is nested too deep. Slow, but needs no stack."""
    depth, inside, escaped = 0, False, False
    for mark in text[at:]:
        if inside:
            inside = escaped or mark != '"'
            escaped = mark == "\\" and not escaped
        elif mark == '"':
            inside = True
        else:
            depth += (mark in "[{") - (mark in "]}")
            if depth > MAX_DEPTH or depth <= 0:
                break
    return depth > MAX_DEPTH


# -- writing ---------------------------------------------------------------------------------------


def encode_json_list(messages: Iterable[object]) -> bytes:
    """Return a JSON list with one message per line, which is easy to compare and to salvage."""
    lines = b",\n".join(map(encode, messages))
    return b"[\n" + lines + b"\n]\n" if lines else b"[]\n"


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write `data` (bytes, or pieces of them) to a file, atomically and durably.

    A new file is readable by its owner only; a replaced file keeps its permissions. For a symbolic
    link, the file that it points to is replaced. After an error the old file is unchanged, unless
    the error comes from the final sync of the directory. A killed process may leave a
    `.holdfast-….tmp` file behind.
    """
    target = os.path.realpath(path)
    mode = _target_mode(target)
    # Open the directory first, to be sure that it can be synced.
    folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        name = f".holdfast-{secrets.token_hex(8)}.tmp"
        try:
            with open(
                name, "xb", opener=lambda name, flags: os.open(name, flags, 0o600, dir_fd=folder)
            ) as file:
                file.writelines((data,) if isinstance(data, bytes) else data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                _sync_file(file.fileno())
            os.replace(name, os.path.basename(target), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # even on an interrupt: the name is known before the file exists
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _target_mode(target: str) -> int:
    """Return the permissions for the new file. Reject a pipe or device: it must not be replaced."""
    try:
        old = os.stat(target).st_mode
    except FileNotFoundError:
        return 0o600
    if not stat.S_ISREG(old):
        raise ValueError(f"path must be a regular file or not exist yet, got {target}")
    return stat.S_IMODE(old)


def _sync_file(file: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(file, _FULL_SYNC)  # on macOS fsync stops at the drive's cache
    else:
        os.fsync(file)
