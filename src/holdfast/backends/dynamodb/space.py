"""Named bytes in a DynamoDB table. What is too large for one item is split, and becomes visible whole or not at all.

An item has the partition `p`, the name `n`, a tag `t` that is new with every put, and its bytes `d`; or in their place `c`,
which says how to put them together from parts. The first byte of `n` tells names from what is hidden between them:

    \\x01 name          what was put
    \\x02 name tag      "parts of this tag may exist": written before them, so that they can always be found and removed

Parts are spread over partitions of their own, because one partition takes no more than 1,000 KB a second.
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
from ..interface import Description
from ..objects.aws import AWSClient, AWSResponse
from ..objects.space import NamedBytes
from .table import describe_table, set_up

SCHEMA: Final = 1
SCHEMA_KEY: Final = ("holdfast", b"schema")
PART_BYTES: Final = 380 * 1024
MAX_PARTS: Final = 1_000
PAGE_BYTES: Final = 8 * 1024 * 1024
TAG_BYTES: Final = 16
MAX_BATCH_ATTEMPTS: Final = 60
"""How often what was left over of a batch is sent again."""

_NAME, _PARTS_NOTE = b"\x01", b"\x02"
_NAMES: Final = {"#p": "p", "#n": "n"}
_SUMS: Final = struct.Struct(">IQ32s")
"""Of something in parts: their count, their bytes together, and the SHA-256 of these."""

Item = Mapping[str, Any]


class PartialPut(NamedTuple):
    """A put in parts, finished or not: whose name it is, the tag of the put, and how many parts there may be."""

    name: bytes
    tag: bytes
    parts: int


class DynamoDBSpace:
    """A `Space` on one table, which is made if it is not there."""

    def __init__(self, service: AWSClient, table: str) -> None:
        self._service, self._table = service, table
        set_up(service, table)
        self._check_schema()

    def _check_schema(self) -> None:
        found = self.get(*SCHEMA_KEY)
        if found is None:
            self.create(*SCHEMA_KEY, b"%d" % SCHEMA)
            found = self.get(*SCHEMA_KEY)
        if found is None or found.data != b"%d" % SCHEMA:
            raise UnsupportedVersion(
                f"{self._service.where} was made by a newer Holdfast; use that one"
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
            # Parts are missing. If it was replaced or removed meanwhile, look again; else they are lost.
            if self._is_unchanged(item):
                raise CorruptRecord(
                    f"{partition}", what="parts of it are missing", place=self._service.where
                )
        raise Unavailable(f"{self._service.where}: what is read is replaced all the time")

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        # Or what is there is being removed: to readers it is gone.
        nothing = (
            "attribute_not_exists(#p) OR (attribute_not_exists(#c) AND attribute_not_exists(#d))"
        )
        names = {"#p": "p", "#c": "c", "#d": "d"}
        return self._put(
            partition, name, data, ConditionExpression=nothing, ExpressionAttributeNames=names
        )

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        # All that is there before this put rests on the tag, or on older ones: after it, it is of no use to anybody.
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
            raise TooLarge("only what is created or replaced may be in parts")
        self._put(partition, name, data)

    def _put(self, partition: str, name: bytes, data: bytes, **condition: Any) -> bool:
        """Put one item, its parts before it. False if the condition does not hold."""
        if len(data) > self.max_bytes:
            raise TooLarge(
                f"an append of {len(data)} bytes is more than DynamoDB keeps for us ({self.max_bytes})"
            )
        attempt = PartialPut(name, os.urandom(TAG_BYTES), -(-len(data) // PART_BYTES))
        item = {**_key(partition, _NAME + name), "t": _b(attempt.tag)}
        if attempt.parts > 1:
            self._put_parts(partition, attempt, data)
            item["c"] = _b(_SUMS.pack(attempt.parts, len(data), hashlib.sha256(data).digest()))
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
            return True  # with the code: it is our own put, whose first answer was lost
        if attempt.parts > 1:
            self._try_drop_parts(partition, [attempt])
        return False

    def _put_parts(self, partition: str, attempt: PartialPut, data: bytes) -> None:
        """Store the bytes in parts, which nobody sees yet; and before them, that they may exist."""
        noted = {
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
            self._call("put_item", writes=True, Item=noted)
            self._batch_write(parts, at_once=8)
        except OutcomeUnknown as unknown:
            raise Unavailable(str(unknown)) from None  # of parts alone nothing is visible

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

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        unique = list(dict.fromkeys(names))
        if not unique:
            return
        wanted = set(unique)
        attempts = [
            one for one in self._list_partial_puts(partition, min(unique), max(unique)) if one.name in wanted
        ]
        try:
            for name in {one.name for one in attempts}:
                self._hide(partition, name)
            self._drop_parts(partition, attempts)
            self._delete(_key(partition, _NAME + name) for name in unique)
        except Unavailable as error:
            raise OutcomeUnknown(f"not all may have been removed: {error}") from None

    def _hide(self, partition: str, name: bytes) -> None:
        """Let it read as nothing while its parts are removed. It is still listed: whoever has to finish that finds it."""
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
        self, operation: str, *, writes: bool = False, expected: Sequence[str] = (), **arguments: Any
    ) -> AWSResponse:
        return self._service.call(
            operation, writes=writes, expected=expected, TableName=self._table, **arguments
        )

    def _query(
        self, partition: str, first: bytes, last: bytes, limit: int, **options: Any
    ) -> Iterator[Item]:
        """Items of a range of `n`, both ends included, page by page."""
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
        """Puts in parts under names between these two, and a few more."""
        items = self._query(
            partition, _PARTS_NOTE + first, _PARTS_NOTE + last + b"\xff" * TAG_BYTES, 1000
        )
        return [self._decode_partial_put(item) for item in items]

    def _decode_partial_put(self, item: Item) -> PartialPut:
        try:
            n, parts = item["n"]["B"], int(item["c"]["B"])
        except (KeyError, ValueError):
            raise self._damaged(item, "it is no item of Holdfast") from None
        return PartialPut(n[1:-TAG_BYTES], n[-TAG_BYTES:], min(parts, MAX_PARTS))

    def _drop_parts(self, partition: str, attempts: Iterable[PartialPut]) -> None:
        """Remove the parts of these, and then the note that they exist."""
        for one in attempts:
            self._delete(_part_keys(one))
            self._delete([_key(partition, _PARTS_NOTE + one.name + one.tag)])

    def _try_drop_parts(self, partition: str, attempts: Iterable[PartialPut]) -> None:
        """Remove parts after the fact. What was asked for is decided; if this fails, they go with the name."""
        try:
            self._drop_parts(partition, attempts)
        except HoldfastError:
            pass

    def _delete(self, keys: Iterable[Item]) -> None:
        self._batch_write([{"DeleteRequest": {"Key": key}} for key in keys], at_once=25)

    def _batch_write(self, requests: Sequence[Item], *, at_once: int) -> None:
        """Puts or deletes that need no condition. DynamoDB may do some of a batch and leave the others over."""
        for start in range(0, len(requests), at_once):
            left = requests[start : start + at_once]
            for attempt in range(1, MAX_BATCH_ATTEMPTS):
                answer = self._service.call(
                    "batch_write_item", writes=True, RequestItems={self._table: left}
                )
                left = answer.response.get("UnprocessedItems", {}).get(self._table, [])
                if not left or self._service.pause(attempt):
                    break
            if left:
                raise OutcomeUnknown(
                    f"{self._service.where} is busy and did not finish what it began"
                )

    def _assemble(self, item: Item) -> NamedBytes | None:
        """An item with its bytes; None if parts of them are missing, or it is about to be removed."""
        try:
            name, tag = item["n"]["B"][1:], item["t"]["B"]
            if "c" not in item:
                return NamedBytes(name, item["d"]["B"], tag.hex()) if "d" in item else None
            count, size, digest = _SUMS.unpack(item["c"]["B"])
        except (KeyError, TypeError, struct.error):
            raise self._damaged(item, "it is no item of Holdfast") from None
        if count > MAX_PARTS:
            raise self._damaged(item, "it claims to have too many parts")
        data = self._read_parts(PartialPut(name, tag, count))
        if data is not None and (len(data) != size or hashlib.sha256(data).digest() != digest):
            raise self._damaged(item, "its parts do not match their digest")
        return NamedBytes(name, data, tag.hex()) if data is not None else None

    def _read_parts(self, attempt: PartialPut) -> bytes | None:
        """The parts of a put in one, None if some are missing."""
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
                # A page holds 16 MB at most; only if it holds nothing, DynamoDB is busy.
                if not wanted or (not found and self._service.pause(attempted)):
                    break
            if wanted:
                raise Unavailable(
                    f"{self._service.where} is busy and did not give all parts of what was asked for"
                )
        if len(parts) < len(keys):
            return None
        return b"".join(parts[key["p"]["S"]] for key in keys)

    def _is_unchanged(self, item: Item) -> bool:
        """Whether the item is as it was."""
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
    """Whether it has a name. One of no bytes is none of ours, and whoever goes on behind it begins anew."""
    return len(item["n"]["B"]) > 1


def _part_keys(attempt: PartialPut) -> Iterator[dict[str, Item]]:
    return (_key(f"part!{attempt.tag.hex()}!{number}", _NAME) for number in range(attempt.parts))


def _range(after: bytes, until: bytes | None) -> tuple[bytes, bytes]:
    """The first and the last value of `n` for names behind `after` up to `until`."""
    return _NAME + after + b"\x00" if after else _NAME, _PARTS_NOTE if until is None else _NAME + until
