"""Messages in JSON files, as people have them before they use a store: read with care, written whole or not at all.

A file is read as far as it is sound. What was cut off or overwritten by a crash is reported with its place, or, when
asked to, left out. Reading never changes the file. No error holds content: places, kinds and names of agents only.
"""

from __future__ import annotations

import codecs
import fcntl
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

# The names under which programs keep their one list of messages, beside the model, the cost and other things.
WRAPPERS = ("messages", "chat_history", "history", "conversation")
# A message has at least one of these. What has none is something else: settings, say, which nobody should send to a model.
MARKS = frozenset({"role", "type", "content", "parts", "kind"})
# What only a message has; a list under such a name is a part of the message.
MESSAGE_KEYS = MARKS | {"tool_calls", "tool_responses"}

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_SPACE = re.compile(r"[ \t\n\r]*")


class ReadMessages(msgspec.Struct, frozen=True):
    """What was in a file. `complete` is False if some of it could not be read; `digest` is the SHA-256 of its bytes."""

    messages: list[dict[str, Any]]
    complete: bool
    digest: str


def read_messages(
    path: str | os.PathLike[str], *, salvage: bool = False, pair: str | None = None
) -> ReadMessages:
    """The messages in a file: a JSON list, JSON Lines, a list beside other things, or one list per pair of agents.

    A file with several lists, or with one under an unknown name beside other things, needs `pair`: one of the names that
    the ValueError lists otherwise. A damaged file, and one without messages, is `CorruptFile`; with `salvage` the messages
    before the damage are returned, with `complete=False`.
    """
    raw = Path(path).read_bytes()
    mark, encoding = next(
        ((mark, name) for mark, name in _ENCODINGS if raw.startswith(mark)), (b"", "utf-8")
    )
    text, damage = _decoded(raw[len(mark) :], encoding)
    scan = _Scan(text)
    try:
        scan.file()
    except _Damaged as found:
        # The first place counts, except that a text which ends at bytes that are no text was not just cut short.
        damage = damage if damage and found.at >= len(text) else found
    if damage is None or salvage:
        starts, items = scan.chosen(pair)
        messages, bad = _storable(starts, items)
        damage = bad or damage  # in that order: the list was read, so it ends before the damage
        if damage is None or salvage:
            return ReadMessages(messages, damage is None, sha256(raw).hexdigest())
    before = text[: damage.at]
    line, column = before.count("\n") + 1, damage.at - before.rfind("\n")
    at = len(mark) + len(before.encode(encoding))
    raise CorruptFile(
        os.fspath(path), offset=at, what=f"{damage.what} (line {line}, column {column})"
    )


class _Damaged(Exception):
    """Reading ends at the character `at`."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at, self.what = at, what


class _Refused(ValueError):
    """Valid for `json`, but nothing that can be stored and come back. Not a JSONDecodeError, which has a place."""


def _decoded(raw: bytes, encoding: str) -> tuple[str, _Damaged | None]:
    """The text up to the first bytes that are none, and what is wrong with those."""
    try:
        return raw.decode(encoding), None
    except UnicodeDecodeError as error:
        text = raw[: error.start].decode(encoding)
    return text, _Damaged(len(text), f"bytes that are not {encoding.upper()}")


def _storable(starts: list[int], items: list[Any]) -> tuple[list[dict[str, Any]], _Damaged | None]:
    """The leading messages that can be stored, and what is wrong with the first that cannot."""
    messages: list[dict[str, Any]] = []
    for number, (start, item) in enumerate(zip(starts, items, strict=True), 1):
        if type(item) is not dict or not item:
            return messages, _Damaged(
                start, f"message {number} is not a JSON object with something in it"
            )
        if MARKS.isdisjoint(item):
            return messages, _Damaged(
                start, "an object without role, type or content is not a message"
            )
        try:
            encode(item)
        except (NotSerializable, TooLarge) as error:
            return messages, _Damaged(start, f"message {number} cannot be stored: {error}")
        messages.append(item)
    return messages, None


# -- finding the lists ------------------------------------------------------------------------------------------------


class _List(NamedTuple):
    """A list under its name; items are added as they are read, so that a broken list keeps its beginning."""

    name: str
    starts: list[int]
    items: list[Any]

    def has_messages(self) -> bool:
        """Whether it may be a chat. Not for a `type` alone, which tools and other things have too."""
        return any(
            type(item) is dict and not item.keys().isdisjoint({"role", "content", "parts"})
            for item in self.items
        )


class _Scan:
    """One walk through a text. The outer list or objects are walked here, each message is read by `json`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lists: list[_List] = []
        self.named = False  # whether the lists have names to choose from
        self._only_lists = True
        self._sure = True  # whether the only list with something in it is the one that is meant

    def file(self) -> None:
        """Walk through the whole file; `_Damaged` where that ends early. What was found until then stays."""
        at = self._skip(0)
        opening = self.text[at : at + 1]
        if opening == "[":
            self._end(self._list(at, ""))
        elif opening == "{":
            keys: set[str] = set()
            try:
                end = self._object(at, keys)
            except _Damaged:
                if self._keep_named(keys):
                    raise
                self._lines(at)  # comes to the same damage, after the messages before it
            else:
                named = self._keep_named(keys) and (
                    self._sure or not self.text.startswith("{", self._skip(end))
                )
                self._end(end) if named else self._lines(at)
        else:
            raise self._broken(
                at,
                "no list and no object; messages are expected" if opening else "the file is empty",
            )

    def chosen(self, pair: str | None) -> tuple[list[int], list[Any]]:
        """The list named `pair`, or the only one. Others being empty does not make it less the only one."""
        names = ", ".join(repr(found.name[:80]) for found in self.lists[:20]) + (
            " …" if len(self.lists) > 20 else ""
        )
        if pair is not None:
            if not self.named:
                raise ValueError(
                    "this file holds one list of messages without a name: leave pair out"
                )
            fitting = [found for found in self.lists if found.name == pair]
            if len(fitting) != 1:
                raise ValueError(f"pair={pair!r} is not one of the lists in this file: {names}")
        else:
            fitting = [found for found in self.lists if found.items] or self.lists[:1]
            if len(fitting) > 1:
                raise ValueError(
                    f"this file holds several lists of messages: choose one with pair=, from {names}"
                )
            if not self._sure and fitting[0].name not in WRAPPERS:
                raise ValueError(
                    f"this file holds messages among other things: choose them with pair=, from {names}"
                )
        return (fitting[0].starts, fitting[0].items) if fitting else ([], [])

    def _keep_named(self, keys: set[str]) -> bool:
        """Whether the object with these keys holds lists of messages, and is not a message itself."""
        wrapped = any(found.name in WRAPPERS for found in self.lists) and "role" not in keys
        if not wrapped and not MESSAGE_KEYS.isdisjoint(keys):
            self.lists = []
        elif (
            wrapped
            or not self._only_lists
            or not all(found.has_messages() for found in self.lists if found.items)
        ):
            self.lists = [
                found for found in self.lists if found.name in WRAPPERS or found.has_messages()
            ]
            self._sure = all(found.name in WRAPPERS for found in self.lists)
        self.named = bool(self.lists)
        return self.named

    def _object(self, at: int, keys: set[str], above: str = "") -> int:
        """Walk through an object and the objects right in it, and keep the lists. Returns where it ends."""
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
                at = self._list(at, name)
            elif opening == "{" and not above:
                at = self._object(at, set(), f"{name}/")
            else:
                at = self._value(at)[1]
                self._only_lists = (
                    False  # not before it was read: what was cut off may have been a list
                )
            at = self._skip(at)
            if self.text[at : at + 1] == "}":
                return at + 1
            at = self._skip(self._expect(at, ","))

    def _list(self, at: int, name: str) -> int:
        self.lists.append(found := _List(name, [], []))
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

    def _lines(self, at: int) -> None:
        """Objects one after the other. A line each is usual, but nothing is lost if the line ends are."""
        self.lists, self.named, self._sure = [found := _List("", [], [])], False, True
        while at < len(self.text):
            if self.text[at] != "{":
                raise self._broken(at, "not a JSON object, and each line should be one")
            item, end = self._value(at)
            found.starts.append(at)
            found.items.append(item)
            at = self._skip(end)

    def _value(self, at: int) -> tuple[Any, int]:
        try:
            return _json.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            cut = error.msg.startswith(
                "Unterminated string"
            )  # then its place is the string's beginning
            place = len(self.text) if cut else error.pos
        except _Refused as error:
            raise _Damaged(at, str(error)) from None
        except RecursionError:
            if not _is_deep(self.text, at):
                raise  # not the data: the caller is at the end of its stack
            raise _Damaged(at, f"nested deeper than {MAX_DEPTH} levels") from None
        raise self._broken(place, "not valid JSON")

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _expect(self, at: int, mark: str) -> int:
        at = self._skip(at)
        if self.text[at : at + 1] != mark:
            raise self._broken(at, "not valid JSON")
        return at + 1

    def _end(self, at: int) -> None:
        at = self._skip(at)
        if at < len(self.text):
            raise self._broken(at, "something follows after the end of the messages")

    def _broken(self, at: int, what: str) -> _Damaged:
        if at >= len(self.text) > 0:
            what = "the file ends in the middle"
        elif self.text[at : at + 1] == "\0":
            what = "NUL bytes, which a power loss leaves behind"
        return _Damaged(at, what)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused("an object with the same key twice, of which only one could be kept")
    return found


def _integer_of(digits: str) -> int:
    if len(digits) > 20:  # more than 64 bits, and maybe enough to keep int() busy for minutes
        raise _Refused("an integer beyond 64 bits")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise _Refused(f"{name}, which is not JSON and cannot be stored")


_json = json.JSONDecoder(
    object_pairs_hook=_object_of, parse_int=_integer_of, parse_constant=_refuse_constant
)


def _is_deep(text: str, at: int) -> bool:
    """Whether the value at `at` is nested too deep. Slow, but needs no stack."""
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


# -- writing ----------------------------------------------------------------------------------------------------------


def as_json(messages: Iterable[object]) -> bytes:
    """A JSON list with one message per line: easy to compare, and easy to salvage."""
    lines = b",\n".join(map(encode, messages))
    return b"[\n" + lines + b"\n]\n" if lines else b"[]\n"


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Replace the file by one with `data`, whole or in pieces, durably; whatever happens meanwhile, there is the old one or the new one.

    A new file is readable by its owner only, one that is replaced keeps its permissions. A symbolic link stays one: the
    file it leads to is replaced. An error means that the old file is as it was, unless it comes from the last sync of
    the folder. A process that is killed may leave a `.holdfast-….tmp` beside the file.
    """
    target = os.path.realpath(path)
    mode = _mode_of(target)
    folder = os.open(
        os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY
    )  # first, for then it can be synced
    try:
        name = f".holdfast-{secrets.token_hex(8)}.tmp"
        try:
            with open(
                name, "xb", opener=lambda name, flags: os.open(name, flags, 0o600, dir_fd=folder)
            ) as file:
                file.writelines((data,) if isinstance(data, bytes) else data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                _sync(file.fileno())
            os.replace(name, os.path.basename(target), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:  # also an interrupt; the name is known before the file is there
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _mode_of(target: str) -> int:
    """The permissions for the new file. Only a file is ever replaced: a pipe or a device would be gone."""
    try:
        old = os.stat(target).st_mode
    except FileNotFoundError:
        return 0o600
    if not stat.S_ISREG(old):
        raise ValueError(
            f"{target} is not a file; choose the path of a file that exists or is to be made"
        )
    return stat.S_IMODE(old)


def _sync(file: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(file, _FULL_SYNC)  # on macOS fsync stops at the drive's cache
    else:
        os.fsync(file)
