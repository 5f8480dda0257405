"""Compare heads and records with all other stored data, and rebuild derived data.

Keys are found with SCAN, not by the indexes. Each stream is read without a lock: a write changes
its version, so if that is the same before and after, the answers are of one instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ...errors import CorruptRecord
from ..interface import PAGE_BYTES, BackendProblem, HeadFields, StreamKey, is_indexed
from .keys import (
    DUE_BYTES,
    HEAD_FIELDS,
    STATUS_DIGITS,
    ParsedKey,
    RedisKeys,
    RedisStreamKeys,
    decode_head,
    decode_number,
    decode_record,
    encode_due,
    encode_mark,
    encode_status,
)

_MAX_READS: Final = 20
"""How many times to read a stream that other processes write to."""
_SCAN_KEYS: Final = 1000
_PAGE_RECORDS: Final = 1000

Change = tuple[str, bytes, bytes]
"""An operation of `lua.REPAIR`, and its two arguments."""


class RedisFinding(NamedTuple):
    """A problem, and the changes that fix it while the head is at this position."""

    problem: BackendProblem
    keys: RedisStreamKeys | None = None
    position: tuple[bytes, bytes] = (b"", b"")
    changes: Sequence[Change] = ()


class _Facts(NamedTuple):
    """A stream at one instant."""

    version: int
    position: tuple[bytes, bytes]
    fields: HeadFields
    due_key: bytes | None
    largest: bytes | None
    records: int
    members: dict[bytes, bool]
    """The index members that the stream must have, and whether it has them."""
    ids: dict[bytes, bytes]


class RedisCheck:
    """Checks one store. `send` reads, and `repair` runs `lua.REPAIR`."""

    def __init__(
        self,
        send: Callable[..., list[Any]],
        repair: Callable[[list[bytes], list[Any]], int],
        keys: RedisKeys,
    ) -> None:
        self._send, self._repair, self._keys = send, repair, keys

    def list_scopes(self) -> list[tuple[str, str]]:
        """Return tenant and kind of all heads."""
        found = (self._keys.parse(key) for key in self._scan("h"))
        return sorted({key.stream[:2] for key in found if key is not None and key.stream})

    def check(self) -> Iterator[BackendProblem]:
        """Yield everything that contradicts heads and records."""
        for finding in self._find():
            yield finding.problem

    def rebuild(self) -> int:
        """Fix derived data; return how many entries were wrong."""
        done = 0
        for finding in self._find():
            if finding.keys is not None and finding.changes:
                keys = finding.keys
                script_keys = [keys.head, keys.append_ids, keys.shard_index]
                changes = [part for change in finding.changes for part in change]
                done += self._repair(script_keys, [*finding.position, *changes])
        return done

    # -- keys --------------------------------------------------------------------------------------

    def _scan(self, letter: str = "*") -> Iterator[bytes]:
        """Yield the keys of the store, each at least once."""
        cursor = b"0"
        while True:
            pattern = self._keys.pattern(letter)
            [(cursor, keys)] = self._send(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_KEYS))
            yield from keys
            if cursor == b"0":
                return

    def _find(self) -> Iterator[RedisFinding]:
        seen: set[bytes] = set()
        for key in self._scan():
            if key in seen:
                continue
            seen.add(key)
            parsed = self._keys.parse(key)
            try:
                yield from self._find_in_key(key, parsed)
            except CorruptRecord as error:
                yield RedisFinding(BackendProblem(error.what, parsed.stream if parsed else None))

    def _find_in_key(self, key: bytes, parsed: ParsedKey | None) -> Iterator[RedisFinding]:
        if parsed is None:
            name = key.decode(errors="backslashreplace")
            yield RedisFinding(
                BackendProblem(f"the key {name} has a name that Holdfast does not use")
            )
        elif parsed.letter == "x":
            yield from self._find_in_index(key, parsed)
        elif parsed.letter == "h" and parsed.stream is not None:
            yield from self._find_in_stream(parsed.stream)
        elif parsed.letter in ("r", "a") and parsed.stream is not None:
            yield from self._find_orphan(parsed.letter, parsed.stream)

    def _find_orphan(self, letter: str, stream: StreamKey) -> Iterator[RedisFinding]:
        keys = self._keys.for_stream(stream)
        key = keys.records if letter == "r" else keys.append_ids
        before, exists, after = self._send(
            ("EXISTS", keys.head), ("EXISTS", key), ("EXISTS", keys.head)
        )
        if exists and not before and not after:
            what = "records" if letter == "r" else "append ids"
            problem = BackendProblem(f"it has {what}, but no head", stream, derived=letter == "a")
            yield RedisFinding(
                problem, keys, changes=[("ids-unlink", b"", b"")] if letter == "a" else []
            )

    # -- streams -----------------------------------------------------------------------------------

    def _find_in_stream(self, stream: StreamKey) -> Iterator[RedisFinding]:
        keys = self._keys.for_stream(stream)
        exists, version = self._send(("EXISTS", keys.head), ("HGET", keys.head, "v"))
        if exists and version is None:
            yield RedisFinding(BackendProblem("its head has no version", stream))
        if version is None:
            return
        for _ in range(_MAX_READS):
            facts = self._read_facts(stream, keys)
            if facts is None:
                continue
            marks = self._read_marks(stream, keys, facts)
            if marks is not None:
                yield from self._compare(stream, keys, facts, *marks)
                return

    def _read_facts(self, stream: StreamKey, keys: RedisStreamKeys) -> _Facts | None:
        """Return the facts about a stream at one instant; None if it has changed."""
        get = ("HMGET", keys.head, *HEAD_FIELDS, "k", "m")
        [earlier] = self._send(get)
        expected = decode_head(stream, earlier[: len(HEAD_FIELDS)], 0.0)
        members = [] if expected is None else _list_members(stream, expected.fields)
        before, records, ids, *scores, after = self._send(
            get,
            ("LLEN", keys.records),
            ("HGETALL", keys.append_ids),
            *(("ZSCORE", keys.shard_index, member) for member in members),
            get,
        )
        head = decode_head(stream, before[: len(HEAD_FIELDS)], 0.0)
        if head is None or expected is None or before != after or head.fields != expected.fields:
            return None
        return _Facts(
            version=head.version,
            position=(before[0], before[2]),
            fields=head.fields,
            due_key=before[-2],
            largest=before[-1],
            records=records,
            members=dict(zip(members, (score is not None for score in scores), strict=True)),
            ids=dict(zip(ids[::2], ids[1::2], strict=True)),
        )

    def _read_marks(
        self, stream: StreamKey, keys: RedisStreamKeys, facts: _Facts
    ) -> tuple[dict[bytes, bytes], int] | None:
        """Return the append ids that the records have, and the size of the largest record.

        Return None if the stream was deleted in the meantime.
        """
        ids: dict[bytes, tuple[int, int]] = {}
        largest, version = 0, 0
        size = max(largest, decode_number(stream, facts.largest), 1024)
        count = max(min(PAGE_BYTES // size, _PAGE_RECORDS), 1)
        while version < min(facts.version, facts.records):
            last = min(version + count, facts.version)
            page, incarnation = self._send(
                ("LRANGE", keys.records, version, last - 1), ("HGET", keys.head, "i")
            )
            if incarnation != facts.position[1]:
                return None
            if not page:
                break
            for stored in page:
                version += 1
                largest = max(largest, len(stored))
                append_id = decode_record(stream, version, stored).append_id
                if append_id and is_indexed(append_id):
                    first = ids.get(append_id, (version, version))[0]
                    ids[append_id] = first, version
        marks = {encode_mark(each): b"%d %d" % versions for each, versions in ids.items()}
        return marks, largest

    def _compare(
        self,
        stream: StreamKey,
        keys: RedisStreamKeys,
        facts: _Facts,
        ids: dict[bytes, bytes],
        largest: int,
    ) -> Iterator[RedisFinding]:
        """Yield how a stream differs from its records and its head."""

        def find(what: str, changes: list[Change]) -> RedisFinding:
            problem = BackendProblem(what, stream, derived=True)
            return RedisFinding(problem, keys, facts.position, changes)

        if facts.records != facts.version:
            what = f"its head is at version {facts.version}, but it has {facts.records} records"
            yield RedisFinding(BackendProblem(what, stream))
            return
        missing = [member for member, there in facts.members.items() if not there]
        if missing:
            what = "it is missing from the index"
            yield find(what, [("index-add", member, b"") for member in missing])
        if facts.ids != ids:
            changes = [("ids-remove", mark, b"") for mark in facts.ids if mark not in ids]
            changes += [
                ("ids-set", mark, value)
                for mark, value in ids.items()
                if facts.ids.get(mark) != value
            ]
            yield find("its append ids do not match its records", changes)
        due = None if facts.fields.due is None else encode_due(facts.fields.due)
        if facts.due_key != due:
            change = ("head-remove", b"k", b"") if due is None else ("head-set", b"k", due)
            yield find("its due time does not match its fields", [change])
        if facts.largest != b"%d" % largest:
            change = ("head-set", b"m", b"%d" % largest)
            yield find("the size of its largest record is wrong", [change])

    # -- indexes -----------------------------------------------------------------------------------

    def _find_in_index(self, key: bytes, parsed: ParsedKey) -> Iterator[RedisFinding]:
        """Yield the members of an index that belong to no stream, or have a score."""
        cursor = b"0"
        while True:
            [(cursor, found)] = self._send(("ZSCAN", key, cursor, "COUNT", _SCAN_KEYS))
            for member, score in zip(found[::2], found[1::2], strict=True):
                yield from self._find_in_member(key, parsed, member, score)
            if cursor == b"0":
                return

    def _find_in_member(
        self, key: bytes, parsed: ParsedKey, member: bytes, score: bytes
    ) -> Iterator[RedisFinding]:
        stream = _parse_member(parsed, member)
        keys = None if stream is None else self._keys.for_stream(stream)
        if stream is None or keys is None or keys.shard_index != key:
            what = f"the index of kind {parsed.kind} has an entry that belongs to no stream"
            none = key + b":none"  # no such key, in the same slot
            nowhere = RedisStreamKeys(none, none, none, none, key, none)
            problem = BackendProblem(what, derived=True)
            yield RedisFinding(problem, nowhere, changes=[("index-remove", member, b"")])
            return
        get = ("HMGET", keys.head, *HEAD_FIELDS)
        for _ in range(_MAX_READS):
            before, there, values = self._send(get, ("ZSCORE", key, member), get)
            if before == values:
                break
        if there is None:
            return
        try:
            head = decode_head(stream, values, 0.0)
        except CorruptRecord:
            return  # reported with the key of the head
        position = (values[0] or b"", values[2] or b"")
        if head is None or member not in _list_members(stream, head.fields):
            problem = BackendProblem("the index has a wrong entry for it", stream, derived=True)
            yield RedisFinding(problem, keys, position, [("index-remove", member, b"")])
        elif float(score) != 0:
            problem = BackendProblem("its entry in the index has a score", stream, derived=True)
            yield RedisFinding(problem, keys, position, [("index-add", member, b"")])


def _parse_member(parsed: ParsedKey, member: bytes) -> StreamKey | None:
    """Return the stream of an index member; None if it is not one."""
    at = 1
    if member[:1] == b"s":
        length = member[1 : 1 + STATUS_DIGITS]
        if not length.isdigit():
            return None
        at = 1 + STATUS_DIGITS + int(length)
    elif member[:1] == b"d":
        at = 1 + DUE_BYTES
    elif member[:1] != b"a":
        return None
    try:
        return StreamKey(parsed.tenant, parsed.kind, member[at:].decode())
    except UnicodeDecodeError:
        return None


def _list_members(stream: StreamKey, fields: HeadFields) -> list[bytes]:
    """Return the members that a stream with these fields has in the index."""
    name = stream.id.encode()
    members = [b"a" + name]
    if fields.status is not None:
        members.append(encode_status(fields.status) + name)
    if fields.due is not None:
        members.append(b"d" + encode_due(fields.due) + name)
    return members
