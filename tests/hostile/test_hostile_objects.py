"""Somebody can write to the table or the bucket: whatever an object or an item is, only our errors
come of it, and lists come to an end.

Most of it on a space in memory, where there are too many for a simulated server.
HOLDFAST_HOSTILE=all takes all of it.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from helpers.engines.fake_dynamodb import FakeTableSpace
from helpers.engines.memory_space import MemorySpace
from helpers.servers import url_on
from helpers.stored import hostile_content as hostile
from helpers.stored.hostile_backends import foreign_answers
from helpers.stored.hostile_content import (
    CONTENT,
    RAW,
    Tripwire,
    _changed,
    _paths,
    foreign_errors,
    found_in_turn,
    populate,
    share,
)
from holdfast.backends import StreamKey
from holdfast.backends.dynamodb import DynamoDBBackend
from holdfast.backends.dynamodb import space as dynamodb
from holdfast.backends.objects import format as form
from holdfast.backends.objects.backend import ObjectsBackend
from holdfast.backends.objects.space import Space
from holdfast.backends.s3 import S3Backend
from holdfast.backends.s3.space import S3Space
from holdfast.errors import CorruptRecord

EVENTS = StreamKey("default", "stream", "events")
Plant = tuple[str, str, bytes, Any]
"""What is planted: its name, the partition, the name in it, and what is there; None to remove
it."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    hostile.TRIPPED.clear()
    caplog.set_level(logging.CRITICAL, logger="holdfast")
    yield
    assert not hostile.TRIPPED


# -- objects ---------------------------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 1e300,
    float("nan"), "", CONTENT, b"", b"x" * 16,
    CONTENT.encode(), [], {}, [b"a", b"b"], [[b"h", b"{}"]], [1, 2], [-1], [2**64 - 1], [2, 1],
    [[1, b"i", b"n", False, [], {}, 1, 1]],
    [0, b"i", b"n", False, [[b"h", b"{}"]], {}, 1, 1],
    [5, b"i", b"n", True, [[b"h", b"{}"]], {}, 1, 1], [1, b"", b"", False, [], {}, 1, 1], ...,
]  # fmt: skip
NAMES = [b"\0", b"\xff" * 600, b"\0" * 8, b"\0" * 7 + b"\x01", b"\xff" * 8, b"\x80", b"x",
    CONTENT.encode() + b"\0" + b"l" * 16,
         b"\xff\xfe\0" + b"l" * 24, b"12345678x\0" + b"l" * 24]  # fmt: skip
PACKED = {
    "a deep list": b"\x91" * 100_000, "a long list": b"\xdd\xff\xff\xff\xff",
    "a large map": b"\xdf\xff\xff\xff\xff",
    "bytes of all memory": b"\xc6\xff\xff\xff\xff", "an extension": b"\xc9\xff\xff\xff\xff\x01",
}  # fmt: skip


def sealed(partition: str, name: bytes, content: bytes) -> bytes:
    """The bytes of an object, as somebody writes them who knows how."""
    place = b"%d:%s%d:%s" % (len(partition), partition.encode(), len(name), name)
    return b"HFO\1" + hashlib.sha256(place + content).digest()[:16] + content


class Objects:
    """A store in a space in memory, and copies of it in which something was planted."""

    def __init__(self) -> None:
        self.space = MemorySpace()
        with holdfast.open(ObjectsBackend(self.space, width=0)) as store:
            populate(store)
        self.streams = _streams_by_partition(
            self.space, [partition for partition, _ in self.space.held("r")]
        )

    def with_planted(self, plant: Plant) -> ObjectsBackend:
        _, partition, name, data = plant
        copy = MemorySpace()
        copy.objects = {
            partition: dict(objects) for partition, objects in self.space.objects.items()
        }
        copy.objects[partition].pop(name, None)
        if data is not None:
            copy.objects[partition][name] = data, 2**40
        return ObjectsBackend(copy, width=0)

    def plants(self) -> list[Plant]:
        found: list[Plant] = []
        for partition, name in self.space.held("r", "c", "i", "a", "s", "d"):
            data, kind = self.space.objects[partition][name][0], partition[0]
            raw = {**RAW, "cut": data[:-1], "the beginning": data[:20],
                "half": data[: len(data) // 2], "more": data + b"x",
                   "newer": b"HFO\x09" + data[4:]}  # fmt: skip
            found += [
                (f"{kind} is {what}", partition, name, planted) for what, planted in raw.items()
            ]
            found += [(f"{kind} at {odd!r:.20}", partition, odd, data) for odd in NAMES]
            found.append((f"{kind} gone", partition, name, None))
            if kind in "rci":
                found += self._sealed(partition, name, data[20:])
        return found

    def _sealed(self, partition: str, name: bytes, content: bytes) -> Iterator[Plant]:
        whole = msgspec.msgpack.decode(content)
        deep = bytes([0x90 + len(whole) + 1]) + content[1:] + b"\x91" * 100_000 + b"\xc0"
        for what, packed in {**PACKED, **RAW, "deep in a field that nobody knows": deep}.items():
            yield f"{partition[0]} with {what}", partition, name, sealed(partition, name, packed)
        for path in _paths(whole) if len(content) < 20_000 else ():
            for value in VALUES:
                packed = msgspec.msgpack.encode(_changed(whole, path, value))
                yield (
                    f"{partition[0]}{path} = {value!r:.40}",
                    partition,
                    name,
                    sealed(partition, name, packed),
                )
        for odd in NAMES if partition[0] == "c" else ():
            first = 2**63 - int.from_bytes(odd[:8], "big")
            packed = msgspec.msgpack.encode([first, *whole[1:]])
            yield f"commit {first} at {odd!r:.20}", partition, odd, sealed(partition, odd, packed)


def _streams_by_partition(space: Space, roots: list[str]) -> dict[str, StreamKey]:
    """The stream to which the objects of a partition belong."""
    found = {}
    for partition in roots:
        named = space.get(partition, form.ROOT)
        assert named is not None
        root = msgspec.msgpack.decode(named.data[20:], type=form.StreamRoot)
        stream = found[partition] = StreamKey(root.tenant, root.kind, root.id)
        if root.incarnation is not None:
            lineage = form.lineage_of(stream, root.incarnation)
            found[form.commits_partition(lineage)] = found[form.ids_partition(lineage)] = stream
    return found


@pytest.fixture(scope="module")
def objects() -> Objects:
    return Objects()


def in_turn(plants: list[Plant], look: Callable[[Plant], list[str]]) -> dict[str, str]:
    return found_in_turn((plant[0], partial(look, plant)) for plant in plants)


def test_whatever_an_object_is_the_backend_has_only_our_errors(objects: Objects) -> None:
    def look(plant: Plant) -> list[str]:
        stream = objects.streams.get(plant[1], EVENTS)
        return foreign_answers(lambda: objects.with_planted(plant), [stream])

    assert in_turn(share(objects.plants(), 251), look) == {}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_whatever_an_object_is_the_store_has_only_our_errors(
    objects: Objects, tmp_path: Path, asynchronous: bool
) -> None:
    def look(plant: Plant) -> list[str]:
        opened = objects.with_planted(plant)
        return foreign_errors(lambda: holdfast.open(opened), tmp_path, asynchronous=asynchronous)

    look(
        ("nothing", form.root_partition(EVENTS), b"x", None)
    )  # what is imported is imported by now
    assert in_turn(share(objects.plants(), 997, asynchronous), look) == {}


def test_a_commit_behind_all_others_is_no_circle(objects: Objects) -> None:
    """The name of the last version there could be: whoever asks for the one behind it would get it
    again."""
    place = next(
        place for place, stream in objects.streams.items() if stream == EVENTS and place[0] == "c"
    )
    name = form.version_name(2**63)
    content = msgspec.msgpack.encode([2**63, b"i", b"n", False, [[b"h", b"{}"]], {}, 1, 1])
    backend = objects.with_planted(("last", place, name, sealed(place, name, content)))
    with pytest.raises(CorruptRecord):
        backend.head(EVENTS)


@pytest.mark.parametrize("kind", ["r", "c", "i"])
def test_what_is_nested_in_a_field_that_nobody_knows_is_not_followed(
    objects: Objects, kind: str
) -> None:
    place = next(
        place for place, stream in objects.streams.items() if stream == EVENTS and place[0] == kind
    )
    deep = [
        plant
        for plant in objects.plants()
        if plant[1] == place and "nobody knows" in plant[0] and " with " in plant[0]
    ]
    assert deep
    for plant in deep:
        assert foreign_answers(partial(objects.with_planted, plant), [EVENTS]) == []


# -- items of DynamoDB -----------------------------------------------------------------------------

_SUMS = dynamodb._PARTS_SUMMARY.pack
ATTRIBUTES: list[Any] = [
    {"S": CONTENT}, {"N": "9" * 38}, {"N": "1e125"}, {"NULL": True}, {"BOOL": False}, {"L": []},
    {"L": [{"L": [{"B": b"x"}]}]}, {"M": {}},
    {"SS": [CONTENT]}, {"BS": [b"x"]}, {"NS": ["1"]}, {"B": b""}, {"B": CONTENT.encode()},
    {"B": b"x" * 300_000}, {"B": b"\xff" * 44},
    {"B": _SUMS(2**32 - 1, 2**64 - 1, b"x" * 32)}, {"B": _SUMS(1000, 2**64 - 1, b"x" * 32)},
    {"B": _SUMS(1, 2**63, b"x" * 32)},
    {"B": _SUMS(0, 0, hashlib.sha256(b"").digest())}, {"B": b"-1"}, {"B": b"9" * 5000},
    {"B": b"1000"}, {"B": pickle.dumps(Tripwire())},
]  # fmt: skip
KEYS = [
    b"\0",
    b"\x01",
    b"\x02",
    b"\x03",
    b"\xff",
    b"\x02x",
    b"\x02" + b"x" * 40,
    b"\x01\0",
    b"\x01" + b"\xff" * 600,
]


class Items:
    """The same in a table in memory."""

    def __init__(self) -> None:
        self.space = FakeTableSpace()
        with holdfast.open(ObjectsBackend(self.space, width=0)) as store:
            populate(store)
        self.items: dict[Any, Any] = self.space._service._items  # type: ignore[attr-defined]
        self.streams = _streams_by_partition(
            self.space, [place for place, n in self.items if (place[0], n[:1]) == ("r", b"\x01")]
        )

    def with_planted(self, plant: Plant) -> ObjectsBackend:
        _, partition, n, item = plant
        copy = FakeTableSpace()
        items = copy._service._items  # type: ignore[attr-defined]
        items.update(self.items)
        items.pop((partition, n), None)
        if item is not None:
            items[partition, n] = item
        return ObjectsBackend(copy, width=0)

    def plants(self) -> Iterator[Plant]:
        kinds: dict[Any, list[Any]] = {}
        for (partition, n), item in self.items.items():
            kinds.setdefault((partition[:2], n[:1], "c" in item), []).append((partition, n))
        for kind, places in kinds.items():
            for partition, n in places[:: len(places) // 3 + 1]:
                item = self.items[partition, n]
                key = {"p": {"S": partition}, "n": {"B": n}}
                for attribute in "tdcx":
                    for value in ATTRIBUTES:
                        yield (
                            f"{kind} {attribute} = {value!r:.40}",
                            partition,
                            n,
                            {**item, attribute: value},
                        )
                        yield (
                            f"{kind} only {attribute} = {value!r:.40}",
                            partition,
                            n,
                            {**key, "t": {"B": b"x"}, attribute: value},
                        )
                yield f"{kind} gone", partition, n, None
                yield f"{kind} empty", partition, n, {**key, "t": {"B": b"x"}}
                for odd in (*KEYS, b"\x02" + n[1:] + b"x" * 16):
                    whole = {
                        "p": {"S": partition},
                        "n": {"B": odd},
                        "t": {"B": b"t" * 16},
                        "d": {"B": b"x"},
                    }
                    yield f"{kind} at {odd!r:.20}", partition, odd, whole
                    for parts in (
                        {"B": CONTENT.encode()},
                        {"B": b"-1"},
                        {"S": "x"},
                        {"B": b"1000"},
                    ):
                        yield (
                            f"{kind} at {odd!r:.20} of {parts} parts",
                            partition,
                            odd,
                            {**whole, "c": parts},
                        )


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> Items:
    monkeypatch.setattr(dynamodb, "PART_BYTES", 40 * 1024)
    monkeypatch.setattr(
        FakeTableSpace, "describe", lambda self: MemorySpace().describe()
    )  # it has no table
    return Items()


def test_whatever_an_item_is_the_backend_has_only_our_errors(items: Items) -> None:
    def look(plant: Plant) -> list[str]:
        stream = items.streams.get(plant[1], StreamKey("default", "task", "task"))
        return foreign_answers(lambda: items.with_planted(plant), [stream])

    assert in_turn(share(list(items.plants()), 197), look) == {}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "async"])
def test_whatever_an_item_is_the_store_has_only_our_errors(
    items: Items, tmp_path: Path, asynchronous: bool
) -> None:
    def look(plant: Plant) -> list[str]:
        opened = items.with_planted(plant)
        return foreign_errors(lambda: holdfast.open(opened), tmp_path, asynchronous=asynchronous)

    look(("nothing", "r/none", b"x", None))
    assert in_turn(share(list(items.plants()), 997, asynchronous), look) == {}


# -- on simulated servers --------------------------------------------------------------------------


def filled(url: str) -> None:
    with holdfast.open(url) as store:
        store.stream("events").append(("noted", 1), id="one")
        store.stream("events").append(("noted", 2))
        store.stream("more").append(("noted", 3))


def listed(backend: ObjectsBackend) -> list[str]:
    """Page by page, one each."""
    found, after = list[str](), ""
    while page := backend.heads(tenant="default", kind="stream", after=after, limit=1):
        found += [after := page[-1].stream.id]
    return found


PARTITIONS = ["a", "d", "r", "c"]


def partition_of(kind: str, backend: ObjectsBackend) -> str:
    from holdfast.backends.objects.index import all_partition, due_partition

    head = backend.head(EVENTS)
    assert head is not None
    lineage = form.lineage_of(EVENTS, head.incarnation)
    return {"a": all_partition("default", "stream"), "d": due_partition("default", "stream"),
            "r": form.root_partition(EVENTS),
            "c": form.commits_partition(lineage)}[kind]  # fmt: skip


def test_items_without_a_name_are_in_no_list_of_dynamodb(tmp_path: Path) -> None:
    url = url_on("dynamodb", tmp_path)
    filled(url)
    backend = DynamoDBBackend(url)
    space: Any = backend._space
    for kind in PARTITIONS:
        for n in (b"\0", b"\x01", b"\x02", b"\x03"):
            item = {
                "p": {"S": partition_of(kind, backend)},
                "n": {"B": n},
                "t": {"B": b"t"},
                "d": {"B": CONTENT.encode()},
            }
            space._call("put_item", writes=True, Item=item)
    assert listed(backend) == ["events", "more"]
    assert backend.list_damaged("default", "stream") == []
    assert list(backend.due(tenant="default", kind="stream", limit=1)) == []
    assert len(backend.read(EVENTS)) == 2
    backend.close()


@pytest.mark.parametrize("attribute", "tdc")
def test_an_item_of_dynamodb_with_other_types_is_damaged_and_stops_nobody_else(
    tmp_path: Path, attribute: str
) -> None:
    url = url_on("dynamodb", tmp_path)
    filled(url)
    for value in ({"N": "9" * 38}, {"S": CONTENT}, {"L": [{"M": {"x": {"NULL": True}}}]}):
        with holdfast.open(url) as store:
            backend: Any = store._log.backend
            key = {"p": {"S": form.root_partition(EVENTS)}, "n": {"B": b"\x01root"}}
            item = {**key, "t": {"B": b"t"}, "d": {"B": b"x"}, attribute: value}
            backend._space._call("put_item", writes=True, Item=item)
            with pytest.raises(CorruptRecord) as caught:
                list(store.stream("events").read())
            assert CONTENT not in hostile.said_by(caught.value)
            assert [stream.id for stream in store.streams()] == ["more"]
            store.stream("more").append(("noted", 4))


def test_folders_and_other_keys_are_in_no_list_of_s3(tmp_path: Path) -> None:
    url = url_on("s3", tmp_path)
    filled(url)
    backend = S3Backend(url)
    space: Any = backend._space
    for kind in PARTITIONS:
        front = space._key(partition_of(kind, backend), b"")
        for key in (
            front,
            front + "~",
            front + "folder/",
            front + "x",
            front + CONTENT,
            front + "é",
        ):
            space._put(key, CONTENT.encode())
    assert listed(backend) == ["events", "more"]
    assert backend.list_damaged("default", "stream") == []
    assert list(backend.due(tenant="default", kind="stream", limit=1)) == []
    assert len(backend.read(EVENTS)) == 2
    backend.close()


def test_an_object_of_s3_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_on("s3", tmp_path)
    filled(url)
    monkeypatch.setattr(S3Space, "max_bytes", 100_000)
    with holdfast.open(url) as store:
        space: Any = store._log.backend._space  # type: ignore[attr-defined]
        space._put(space._key(form.root_partition(EVENTS), form.ROOT), b"x" * 100_001)
        with pytest.raises(CorruptRecord, match="larger than any") as caught:
            list(store.stream("events").read())
        assert caught.value.stream == str(EVENTS)
        assert [stream.id for stream in store.streams()] == ["more"]
        store.stream("more").append(("noted", 4))
