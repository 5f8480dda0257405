"""Named bytes in a DynamoDB table. Data too large for one item is split, and appears atomically.

An item has the partition `p`, the name `n`, a tag `t` that is new with every put, and its bytes
`d`, or instead of them `c`, which describes the parts. The first byte of `n` is the type:

    \\x01 name          an object
    \\x02 name tag      "parts of this tag may exist"; written before the parts, so that they can
                       always be found and removed

Each part has its own partition, because a partition accepts at most 1,000 KB a second.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from ...errors import (
    CorruptRecord,
    HoldfastError,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
    UnsupportedVersion,
)
from ..interface import PAGE_BYTES, Description
from ..objects.aws import AWSClient, AWSResponse
from ..objects.space import NamedBytes
from .table import describe_table, prepare_table

SCHEMA: Final = 1
SCHEMA_KEY: Final = ("holdfast", b"schema")
PART_BYTES: Final = 380 * 1024
MAX_PARTS: Final = 1_000
TAG_BYTES: Final = 16
MAX_BATCH_ATTEMPTS: Final = 60
"""How often to send the unprocessed items of a batch."""

_NAME, _PARTS_NOTE = b"\x01", b"\x02"
_NAMES: Final = {"#p": "p", "#n": "n"}
_PARTS_SUMMARY: Final = struct.Struct(">IQ32s")
"""The value of `c`: the number of parts, and the size and SHA-256 of all their bytes."""

Item = Mapping[str, Any]


class PartialPut(NamedTuple):
    """A put in parts, finished or not: its name, its tag, and the maximum number of parts."""

    name: bytes
    tag: bytes
    parts: int


class DynamoDBSpace:
    """A `Space` on one table, which is created if it does not exist."""

    def __init__(self, service: AWSClient, table: str) -> None:
        self._service, self._table = service, table
        prepare_table(service, table)
        self._check_schema()

    def _check_schema(self) -> None:
        found = self.get(*SCHEMA_KEY)
        if found is None:
            self.create(*SCHEMA_KEY, b"%d" % SCHEMA)
            found = self.get(*SCHEMA_KEY)
        if found is None or found.data != b"%d" % SCHEMA:
            raise UnsupportedVersion(
                f"{self._service.where} was created by a newer Holdfast; upgrade this one"
            )

    @property
    def max_bytes(self) -> int:
        return MAX_PARTS * PART_BYTES

    def get(self, partition: str, name: bytes) -> NamedBytes | None:
        for _ in range(10):
            answer = self._call("get_item", Key=_key(partition, _NAME + name), ConsistentRead=True)
            item = answer.response.get("Item")
            if item is None:
                return None
            found = self._assemble(item)
            if found is not None:
                return found
            if "c" not in item:
                return None
            # Parts are missing. They are lost, unless the item was replaced or removed since.
            if self._is_unchanged(item):
                raise CorruptRecord(
                    f"{partition}", what="some of its parts are missing", place=self._service.where
                )
        raise Unavailable(
            f"{self._service.where}: an item kept changing while it was being read; retry"
        )

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        # An item without `c` and `d` is being removed: for readers it does not exist.
        nothing = (
            "attribute_not_exists(#p) OR (attribute_not_exists(#c) AND attribute_not_exists(#d))"
        )
        names = {"#p": "p", "#c": "c", "#d": "d"}
        return self._put(
            partition, name, data, ConditionExpression=nothing, ExpressionAttributeNames=names
        )

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        # Parts that exist now have this tag or an older one, so this put makes them useless.
        former = [one for one in self._list_partial_puts(partition, name, name) if one.name == name]
        done = self._put(
            partition,
            name,
            data,
            ConditionExpression="#t = :t",
            ExpressionAttributeNames={"#t": "t"},
            ExpressionAttributeValues={":t": _b(bytes.fromhex(tag))},
        )
        if done:
            self._try_drop_parts(partition, former)
        return done

    def put(self, partition: str, name: bytes, data: bytes) -> None:
        if len(data) > PART_BYTES:
            raise TooLarge(
                f"an unconditional put must have at most {PART_BYTES} bytes, got {len(data)}"
            )
        self._put(partition, name, data)

    def _put(self, partition: str, name: bytes, data: bytes, **condition: Any) -> bool:
        """Put one item, after its parts; return False if the condition does not hold."""
        if len(data) > self.max_bytes:
            raise TooLarge(
                f"an append to DynamoDB must have at most {self.max_bytes} bytes, got {len(data)}"
            )
        attempt = PartialPut(name, os.urandom(TAG_BYTES), -(-len(data) // PART_BYTES))
        item = {**_key(partition, _NAME + name), "t": _b(attempt.tag)}
        if attempt.parts > 1:
            self._put_parts(partition, attempt, data)
            item["c"] = _b(
                _PARTS_SUMMARY.pack(attempt.parts, len(data), hashlib.sha256(data).digest())
            )
        else:
            item["d"] = _b(data)
        if condition:
            condition["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        answer = self._call(
            "put_item",
            writes=True,
            expected=("ConditionalCheckFailedException",),
            Item=item,
            **condition,
        )
        if answer.code is None or answer.response.get("Item", {}).get("t") == item["t"]:
            return True  # even with a code: then it is this put, whose first answer was lost
        if attempt.parts > 1:
            self._try_drop_parts(partition, [attempt])
        return False

    def _put_parts(self, partition: str, attempt: PartialPut, data: bytes) -> None:
        """Store a note that the parts may exist, then the parts, which no reader sees yet."""
        note = {
            **_key(partition, _PARTS_NOTE + attempt.name + attempt.tag),
            "c": _b(b"%d" % attempt.parts),
        }
        parts = [
            {
                "PutRequest": {
                    "Item": {**key, "d": _b(data[number * PART_BYTES : (number + 1) * PART_BYTES])}
                }
            }
            for number, key in enumerate(_part_keys(attempt))
        ]
        try:
            self._call("put_item", writes=True, Item=note)
            self._batch_write(parts, batch_size=8)
        except OutcomeUnknown as unknown:
            raise Unavailable(str(unknown)) from None  # readers don't see parts alone

    def list(
        self, partition: str, *, after: bytes = b"", until: bytes | None = None, limit: int
    ) -> Sequence[bytes]:
        found = self._query(partition, *_range(after, until), limit, ProjectionExpression="#n")
        return [item["n"]["B"][1:] for item in islice(filter(_is_named, found), limit)]

    def scan(
        self,
        partition: str,
        *,
        after: bytes = b"",
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        found: list[NamedBytes] = []
        size = 0
        for item in filter(
            _is_named,
            self._query(partition, *_range(after, until), limit, ScanIndexForward=not reverse),
        ):
            one = self._assemble(item) or self.get(partition, item["n"]["B"][1:])
            if one is not None:
                found.append(one)
                size += len(one.data)
            if len(found) >= limit or size >= PAGE_BYTES:
                break
        return found

    def walk(self, front: str) -> Iterator[tuple[str, bytes]]:
        options: dict[str, Any] = {"ProjectionExpression": "#p, #n"}
        if front:
            options["FilterExpression"] = "begins_with(#p, :front)"
            options["ExpressionAttributeValues"] = {":front": {"S": front}}
        while True:
            answer = self._call(
                "scan", ConsistentRead=True, ExpressionAttributeNames=_NAMES, **options
            ).response
            for item in answer["Items"]:
                partition, n = item["p"]["S"], item["n"]["B"]
                if n[:1] == _NAME and len(n) > 1 and not partition.startswith("part!"):
                    yield partition, n[1:]
            if "LastEvaluatedKey" not in answer:
                return
            options["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        unique = list(dict.fromkeys(names))
        if not unique:
            return
        wanted = set(unique)
        attempts = [
            one
            for one in self._list_partial_puts(partition, min(unique), max(unique))
            if one.name in wanted
        ]
        try:
            for name in {one.name for one in attempts}:
                self._hide(partition, name)
            self._drop_parts(partition, attempts)
            self._delete(_key(partition, _NAME + name) for name in unique)
        except Unavailable as error:
            raise OutcomeUnknown(f"some objects may not have been removed: {error}") from None

    def _hide(self, partition: str, name: bytes) -> None:
        """Hide an item from readers while its parts are removed.

        It is still listed, so that another process can finish the removal.
        """
        self._call(
            "update_item",
            writes=True,
            expected=("ConditionalCheckFailedException",),
            Key=_key(partition, _NAME + name),
            UpdateExpression="REMOVE #c, #d",
            ConditionExpression="attribute_exists(#p)",
            ExpressionAttributeNames={"#c": "c", "#d": "d", "#p": "p"},
        )

    def now(self) -> float:
        return self._service.clock.now()

    def reset_after_fork(self) -> None:
        self._service.reset_after_fork()

    def describe(self) -> Description:
        found = describe_table(self._service, self._table) or {}
        return Description(
            "dynamodb",
            "2012-08-10",
            self._service.location,
            "disk",
            limits={"record": self.max_bytes},
            sizes={"table": int(found.get("TableSizeBytes", 0))},
            warnings=[],
        )

    def close(self) -> None:
        self._service.close()

    def _call(
        self,
        operation: str,
        *,
        writes: bool = False,
        expected: Sequence[str] = (),
        **arguments: Any,
    ) -> AWSResponse:
        return self._service.call(
            operation, writes=writes, expected=expected, TableName=self._table, **arguments
        )

    def _query(
        self, partition: str, first: bytes, last: bytes, limit: int, **options: Any
    ) -> Iterator[Item]:
        """Yield the items of a range of `n`, both ends included."""
        if first > last:
            return
        while True:
            answer = self._call(
                "query",
                ConsistentRead=True,
                KeyConditionExpression="#p = :p AND #n BETWEEN :first AND :last",
                ExpressionAttributeNames=_NAMES,
                ExpressionAttributeValues={
                    ":p": {"S": partition},
                    ":first": _b(first),
                    ":last": _b(last),
                },
                Limit=limit,
                **options,
            )
            yield from answer.response["Items"]
            if "LastEvaluatedKey" not in answer.response:
                return
            options["ExclusiveStartKey"] = answer.response["LastEvaluatedKey"]

    def _list_partial_puts(self, partition: str, first: bytes, last: bytes) -> Sequence[PartialPut]:
        """Return the puts in parts for names between these two, and perhaps a few others."""
        items = self._query(
            partition, _PARTS_NOTE + first, _PARTS_NOTE + last + b"\xff" * TAG_BYTES, 1000
        )
        return [self._decode_partial_put(item) for item in items]

    def _decode_partial_put(self, item: Item) -> PartialPut:
        try:
            n, parts = item["n"]["B"], int(item["c"]["B"])
        except (KeyError, ValueError):
            raise self._damaged(item, "it is not an item of Holdfast") from None
        return PartialPut(n[1:-TAG_BYTES], n[-TAG_BYTES:], min(parts, MAX_PARTS))

    def _drop_parts(self, partition: str, attempts: Iterable[PartialPut]) -> None:
        """Remove the parts of these puts, and then the notes that they exist."""
        for one in attempts:
            self._delete(_part_keys(one))
            self._delete([_key(partition, _PARTS_NOTE + one.name + one.tag)])

    def _try_drop_parts(self, partition: str, attempts: Iterable[PartialPut]) -> None:
        """Remove useless parts. If this fails, they are removed together with the name."""
        try:
            self._drop_parts(partition, attempts)
        except HoldfastError:
            pass

    def _delete(self, keys: Iterable[Item]) -> None:
        self._batch_write([{"DeleteRequest": {"Key": key}} for key in keys], batch_size=25)

    def _batch_write(self, requests: Sequence[Item], *, batch_size: int) -> None:
        """Send unconditional puts or deletes. DynamoDB may leave some of a batch unprocessed."""
        for start in range(0, len(requests), batch_size):
            left = requests[start : start + batch_size]
            for attempt in range(1, MAX_BATCH_ATTEMPTS):
                answer = self._service.call(
                    "batch_write_item", writes=True, RequestItems={self._table: left}
                )
                left = answer.response.get("UnprocessedItems", {}).get(self._table, [])
                if not left or self._service.pause(attempt):
                    break
            if left:
                raise OutcomeUnknown(
                    f"{self._service.where} is busy and did not process a whole batch"
                )

    def _assemble(self, item: Item) -> NamedBytes | None:
        """Return an item with its bytes; None if parts are missing or it is being removed."""
        try:
            name, tag = item["n"]["B"][1:], item["t"]["B"]
            if "c" not in item:
                return NamedBytes(name, item["d"]["B"], tag.hex()) if "d" in item else None
            count, size, digest = _PARTS_SUMMARY.unpack(item["c"]["B"])
        except (KeyError, TypeError, struct.error):
            raise self._damaged(item, "it is not an item of Holdfast") from None
        if count > MAX_PARTS:
            raise self._damaged(item, f"it has {count} parts, more than {MAX_PARTS}")
        data = self._read_parts(PartialPut(name, tag, count))
        if data is not None and (len(data) != size or hashlib.sha256(data).digest() != digest):
            raise self._damaged(item, "its parts do not match their digest")
        return NamedBytes(name, data, tag.hex()) if data is not None else None

    def _read_parts(self, attempt: PartialPut) -> bytes | None:
        """Return the joined parts of a put, None if some are missing."""
        keys = list(_part_keys(attempt))
        parts: dict[str, bytes] = {}
        for start in range(0, len(keys), 40):
            wanted: Mapping[str, Any] = {
                self._table: {"Keys": keys[start : start + 40], "ConsistentRead": True}
            }
            for attempted in range(1, MAX_BATCH_ATTEMPTS):
                answer = self._service.call(
                    "batch_get_item", writes=False, RequestItems=wanted
                ).response
                found = answer["Responses"].get(self._table, [])
                parts |= {item["p"]["S"]: item.get("d", {}).get("B", b"") for item in found}
                wanted = answer.get("UnprocessedKeys", {})
                # A page has at most 16 MB; DynamoDB is busy only if a page is empty.
                if not wanted or (not found and self._service.pause(attempted)):
                    break
            if wanted:
                raise Unavailable(
                    f"{self._service.where} is busy and did not return all parts; retry later"
                )
        if len(parts) < len(keys):
            return None
        return b"".join(parts[key["p"]["S"]] for key in keys)

    def _is_unchanged(self, item: Item) -> bool:
        """Return whether the item is still stored as it was read."""
        answer = self._call("get_item", Key={"p": item["p"], "n": item["n"]}, ConsistentRead=True)
        now = answer.response.get("Item", {})
        return (now.get("t"), now.get("c")) == (item["t"], item["c"])

    def _damaged(self, item: Item, what: str) -> CorruptRecord:
        return CorruptRecord(item["p"]["S"], what=what, place=self._service.where)


def _b(data: bytes) -> Item:
    return {"B": data}


def _key(partition: str, n: bytes) -> dict[str, Item]:
    return {"p": {"S": partition}, "n": _b(n)}


def _is_named(item: Item) -> bool:
    """Return whether the item has a name.

    Holdfast writes no empty names, and a listing after an empty name would start over.
    """
    return len(item["n"]["B"]) > 1


def _part_keys(attempt: PartialPut) -> Iterator[dict[str, Item]]:
    return (_key(f"part!{attempt.tag.hex()}!{number}", _NAME) for number in range(attempt.parts))


def _range(after: bytes, until: bytes | None) -> tuple[bytes, bytes]:
    """Return the first and last value of `n` for names after `after` up to `until`."""
    return (
        _NAME + after + b"\x00" if after else _NAME,
        _PARTS_NOTE if until is None else _NAME + until,
    )
