"""Named bytes as objects in a bucket of S3, or of a compatible store.

A key is the prefix of the store, the partition, and the name as text that sorts the same. All of it
relies on conditional puts: before the first write, a probe checks that the server supports them,
and a marker in the bucket records the result.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from ...errors import (
    AccessDenied,
    CorruptRecord,
    HoldfastError,
    InvalidURL,
    OutcomeUnknown,
    StorageFull,
    Unavailable,
    UnsupportedServer,
    UnsupportedVersion,
)
from ..interface import PAGE_BYTES, Description
from ..objects.aws import AWSClient, AWSResponse, BotoCoreError
from ..objects.space import NamedBytes

SCHEMA: Final = 1
MARKER: Final = "holdfast-schema"
MAX_BYTES: Final = 512 * 1024 * 1024
KEYS_PER_REQUEST: Final = 1_000
"""The maximum number of keys that S3 lists or removes with one request."""
PARALLEL_READS: Final = 16
MAX_ATTEMPTS: Final = 6

_PRECONDITION: Final = ("PreconditionFailed", "412")
_MISSING: Final = ("NoSuchKey", "404")
_BUSY: Final = ("ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "BadDigest")
_OTHER_REGION: Final = (
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "301",
    "307",
)
_FULL: Final = (
    "QuotaExceeded",
    "InsufficientStorage",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
)
_UNSUPPORTED: Final = ("NotImplemented", "501")
_EXPECTED: Final = (*_PRECONDITION, *_MISSING, *_BUSY, *_OTHER_REGION, *_FULL, *_UNSUPPORTED)


class S3Space:
    """A `Space` under one prefix of a bucket."""

    max_bytes = MAX_BYTES

    def __init__(self, service: AWSClient, bucket: str, prefix: str) -> None:
        self._service, self._bucket, self._prefix = service, bucket, prefix
        self._pool: ThreadPoolExecutor | None = None
        self._check_marker()

    # -- opening ----------------------------------------------------------------------------------

    def _check_marker(self) -> None:
        """Check the marker of the store, or create it. Any number of processes may do so."""
        found = self._get(self._prefix + MARKER)
        if found is None:
            self._probe()
            self._put(self._prefix + MARKER, b"holdfast %d\n" % SCHEMA, IfNoneMatch="*")
            found = self._get(self._prefix + MARKER)
        if found is None or found[0] != b"holdfast %d\n" % SCHEMA:
            raise UnsupportedVersion(
                f"{self._service.where} was created by a newer Holdfast; upgrade this one"
            )

    def _probe(self) -> None:
        """Try the needed features on temporary objects; raise `UnsupportedServer` if one fails."""
        partition = f"probe/{os.urandom(16).hex()}"
        names = [b"b", b"a", b"\xff", b"ab"]
        try:
            if not all(self.create(partition, name, b"1") for name in names) or self.create(
                partition, b"a", b"2"
            ):
                raise self._unsuitable("it overwrites objects despite If-None-Match")
            first = self.get(partition, b"a")
            if first is None or first.data != b"1":
                raise self._unsuitable("an object cannot be read right after it was written")
            replaced = self.replace(partition, b"a", b"2", first.tag)
            if not replaced or self.replace(partition, b"a", b"3", first.tag):
                raise self._unsuitable("it ignores If-Match")
            if list(self.list(partition, after=b"a", limit=9)) != [b"ab", b"b", b"\xff"]:
                raise self._unsuitable(
                    "it does not list keys in order (it may be a directory bucket)"
                )
        finally:
            self.remove(partition, names)
        if self.get(partition, b"a") is not None or self.list(partition, limit=1):
            raise self._unsuitable("an object can be read after it was removed")

    def _unsuitable(self, why: str) -> UnsupportedServer:
        return UnsupportedServer(
            f"{self._service.where} cannot store streams: {why}; use another server"
        )

    # -- reading ----------------------------------------------------------------------------------

    def get(self, partition: str, name: bytes) -> NamedBytes | None:
        found = self._get(self._key(partition, name))
        return None if found is None else NamedBytes(name, *found)

    def _get(self, key: str) -> tuple[bytes, str] | None:
        for attempt in range(1, MAX_ATTEMPTS):
            answer = self._call("get_object", Key=key)
            if answer.code in _MISSING:
                return None
            body = answer.response["Body"]
            if answer.response["ContentLength"] > self.max_bytes:
                body.close()
                raise CorruptRecord(
                    self._service.where, what="an object is larger than any that Holdfast writes"
                )
            try:
                return body.read(), answer.response["ETag"]
            except BotoCoreError:
                if self._service.pause(attempt):
                    break
        raise Unavailable(f"{self._service.where} keeps sending incomplete answers; retry later")

    def list(
        self, partition: str, *, after: bytes = b"", until: bytes | None = None, limit: int
    ) -> Sequence[bytes]:
        return list(islice(self._list_names(partition, after, until, limit), limit))

    def scan(
        self,
        partition: str,
        *,
        after: bytes = b"",
        until: bytes | None = None,
        limit: int,
        reverse: bool = False,
    ) -> Sequence[NamedBytes]:
        names = self._list_names(partition, after, until, KEYS_PER_REQUEST if reverse else limit)
        # S3 lists in one direction only.
        wanted = reversed(list(names)) if reverse else names
        found: list[NamedBytes] = []
        size = 0
        while (
            size < PAGE_BYTES
            and len(found) < limit
            and (some := list(islice(wanted, min(PARALLEL_READS, limit))))
        ):
            # Leave out objects that were removed since they were listed.
            there = [named for named in self._get_all(partition, some) if named is not None]
            found += there
            size += sum(len(named.data) for named in there)
        return found[:limit]

    def _get_all(self, partition: str, names: Sequence[bytes]) -> Iterable[NamedBytes | None]:
        if len(names) == 1:
            return [self.get(partition, names[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="holdfast-s3")
        return self._pool.map(lambda name: self.get(partition, name), names)

    def _list_names(
        self, partition: str, after: bytes, until: bytes | None, limit: int
    ) -> Iterator[bytes]:
        front = self._key(partition, b"")
        start: dict[str, Any] = {"StartAfter": self._key(partition, after)} if after else {}
        for key in self._list_keys(front, min(limit, KEYS_PER_REQUEST), **start):
            name = decode_name(key.removeprefix(front))
            # Skip foreign keys, like the "folder" that a console creates. An empty name would make
            # the next listing start over.
            if not name:
                continue
            if until is not None and name > until:
                return
            yield name

    def _list_keys(self, front: str, page: int, **start: Any) -> Iterator[str]:
        """Yield the keys that start with `front`, in order, `page` of them per request."""
        while True:
            answer = self._call("list_objects_v2", Prefix=front, MaxKeys=page, **start).response
            for found in answer.get("Contents", ()):
                yield found["Key"]
            if not answer.get("IsTruncated"):
                return
            start = {"ContinuationToken": answer["NextContinuationToken"]}

    def walk(self, front: str) -> Iterator[tuple[str, bytes]]:
        for key in self._list_keys(self._prefix + front, KEYS_PER_REQUEST):
            partition, _, text = key.removeprefix(self._prefix).rpartition("/")
            name = decode_name(text)
            if partition and name:
                yield partition, name

    # -- writing ----------------------------------------------------------------------------------

    def create(self, partition: str, name: bytes, data: bytes) -> bool:
        return self._put(self._key(partition, name), data, IfNoneMatch="*")

    def replace(self, partition: str, name: bytes, data: bytes, tag: str) -> bool:
        return self._put(self._key(partition, name), data, IfMatch=tag)

    def put(self, partition: str, name: bytes, data: bytes) -> None:
        self._put(self._key(partition, name), data)

    def _put(self, key: str, data: bytes, **condition: str) -> bool:
        checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
        answer = self._call(
            "put_object", writes=True, Key=key, Body=data, ChecksumSHA256=checksum, **condition
        )
        return answer.code is None

    def remove(self, partition: str, names: Iterable[bytes]) -> None:
        keys = iter([self._key(partition, name) for name in names])
        while some := list(islice(keys, KEYS_PER_REQUEST)):
            if len(some) == 1:
                self._call("delete_object", writes=True, Key=some[0])
                continue
            wanted = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            answer = self._call("delete_objects", writes=True, Delete=wanted)
            for failed in answer.response.get("Errors", ()):
                if failed.get("Code") in ("AccessDenied", "403"):
                    raise AccessDenied(
                        f"{self._service.where} does not allow s3:DeleteObject; check permissions"
                    )
                raise OutcomeUnknown(
                    f"{self._service.where} did not remove all objects ({failed.get('Code')})"
                )

    def _call(self, operation: str, *, writes: bool = False, **arguments: Any) -> AWSResponse:
        """Send a request. A code in the answer is about the object; all others raise."""
        in_doubt = False
        for attempt in range(1, MAX_ATTEMPTS):
            answer = self._service.call(
                operation, writes=writes, expected=_EXPECTED, Bucket=self._bucket, **arguments
            )
            in_doubt = in_doubt or answer.in_doubt
            if answer.code is None or answer.code in _PRECONDITION or answer.code in _MISSING:
                return answer
            if answer.code not in _BUSY or self._service.pause(attempt):
                break
        raise self._translate_code(answer.code, in_doubt)

    def _translate_code(self, code: str | None, in_doubt: bool) -> HoldfastError:
        where = self._service.where
        if in_doubt:
            return OutcomeUnknown(f"{where} did not answer a write, and then rejected it ({code})")
        if code in _OTHER_REGION:
            return InvalidURL(
                f"{where} is not in region {self._service.region}; add ?region= with its region"
            )
        if code in _FULL:
            return StorageFull(f"{where} is full ({code}); free some space")
        if code in _UNSUPPORTED:
            return self._unsuitable("it does not support conditional puts")
        return Unavailable(f"{where} is busy ({code}); retry later")

    # -- the rest ---------------------------------------------------------------------------------

    def now(self) -> float:
        return self._service.clock.now()

    def reset_after_fork(self) -> None:
        self._pool = None
        self._service.reset_after_fork()

    def describe(self) -> Description:
        location = self._service.location
        return Description(
            "s3", f"schema {SCHEMA}", location, "disk", limits={"append": MAX_BYTES}, warnings=[]
        )

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._service.close()

    def _key(self, partition: str, name: bytes) -> str:
        return f"{self._prefix}{partition}/{encode_name(name)}"


# Keys are text and are listed in the order of their bytes, so names are encoded as text that sorts
# like the bytes.


ALPHABET: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
"""64 characters in the order of their codes, all safe in a key."""

_VALUES: Final = {character: value for value, character in enumerate(ALPHABET)}


def encode_name(name: bytes) -> str:
    """Encode six bits per character, padded with zeros.

    The prefix of a name is shorter than the name, and sorts before it.
    """
    size = -(-len(name) * 8 // 6)
    number = int.from_bytes(name, "big") << (size * 6 - len(name) * 8)
    return "".join(ALPHABET[number >> 6 * digit & 63] for digit in range(size - 1, -1, -1))


def decode_name(text: str) -> bytes | None:
    """Return the name, None if the text does not encode one."""
    size = len(text) * 6 // 8
    number = 0
    for character in text:
        if character not in _VALUES:
            return None
        number = number << 6 | _VALUES[character]
    name = (number >> len(text) * 6 - size * 8).to_bytes(size, "big")
    return name if encode_name(name) == text else None
