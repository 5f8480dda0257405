"""Named bytes in a DynamoDB table: what is there, in which order, whole or not at all, whatever
happens on the way."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest

from helpers.engines.aws_proxy import AwsProxy, Reply, Request, proxy_to
from helpers.servers import aws, url_on
from holdfast.backends.dynamodb.backend import open_space, parse_table_name
from holdfast.backends.dynamodb.space import PART_BYTES, DynamoDBSpace
from holdfast.errors import (
    AccessDenied,
    CorruptRecord,
    OutcomeUnknown,
    StoreClosed,
    TooLarge,
    Unavailable,
)

BIG = os.urandom(PART_BYTES * 2 + 77)
OTHER = os.urandom(PART_BYTES + 1)


@pytest.fixture
def proxy() -> Iterator[AwsProxy]:
    with proxy_to(aws()) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: AwsProxy, tmp_path: Path) -> str:
    return url_on("dynamodb", tmp_path).replace(aws(), proxy.endpoint)


@pytest.fixture
def space(url: str) -> Iterator[DynamoDBSpace]:
    space = open_space(url)
    yield space
    space.close()


class Table:
    """The table as it is, without us."""

    def __init__(self, url: str) -> None:
        self.name = parse_table_name(url)
        self.client = boto3.session.Session().client(
            "dynamodb", region_name="eu-central-1", endpoint_url=aws()
        )

    def items(self) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        items = [item for page in pages for item in page["Items"]]
        return [item for item in items if item["p"]["S"] != "holdfast"]

    def parts(self) -> list[dict[str, Any]]:
        return [item for item in self.items() if item["p"]["S"].startswith("part!")]

    def put(self, **item: dict[str, Any]) -> None:
        self.client.put_item(TableName=self.name, Item=item)


@pytest.fixture
def table(space: DynamoDBSpace, url: str) -> Iterator[Table]:
    table = Table(url)
    yield table
    table.client.close()


# -- small things ----------------------------------------------------------------------------------


def test_what_is_created_is_there_and_is_not_created_again(space: DynamoDBSpace) -> None:
    assert space.get("p", b"a") is None
    assert space.create("p", b"a", b"1") is True
    assert space.create("p", b"a", b"2") is False
    assert space.create("q", b"a", b"3") is True
    found = space.get("p", b"a")
    assert found is not None
    assert (found.name, found.data) == (b"a", b"1")


def test_only_what_has_the_tag_is_replaced_and_the_tag_is_new_then(space: DynamoDBSpace) -> None:
    assert space.replace("p", b"a", b"0", "00" * 16) is False
    assert space.get("p", b"a") is None
    space.create("p", b"a", b"1")
    first = space.get("p", b"a")
    assert first is not None
    assert space.replace("p", b"a", b"1", first.tag) is True
    second = space.get("p", b"a")
    assert second is not None
    assert second.tag != first.tag
    assert space.replace("p", b"a", b"3", first.tag) is False
    space.put("p", b"a", b"4")
    assert space.replace("p", b"a", b"5", second.tag) is False
    third = space.get("p", b"a")
    assert third is not None
    assert third.data == b"4"


def test_removing_takes_what_is_there_and_nothing_else(space: DynamoDBSpace) -> None:
    names = [b"%03d" % number for number in range(60)]
    for name in names:
        space.create("p", name, b"x")
    space.create("q", b"001", b"x")
    space.remove("p", [b"never", *names[1:-1], names[1]])
    space.remove("p", [])
    assert space.list("p", limit=100) == [names[0], names[-1]]
    assert space.list("q", limit=100) == [b"001"]


def test_names_are_any_bytes_in_the_order_of_bytes(space: DynamoDBSpace) -> None:
    names = [
        b"\x00",
        b"\x00\x00",
        b"\x01",
        b"a",
        b"a\x00",
        b"a\xff",
        b"b",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xff" * 600,
    ]
    names += [os.urandom(1 + number % 7) for number in range(40)]
    for name in names:
        space.put("p", name, name[::-1])
    ordered = sorted(set(names))
    assert space.list("p", limit=1000) == ordered
    assert [(one.name, one.data) for one in space.scan("p", limit=1000)] == [
        (name, name[::-1]) for name in ordered
    ]
    for after, until in [
        (b"a", None),
        (b"\xff", b"\xff" * 600),
        (b"a", b"b"),
        (b"", b"a"),
        (b"b", b"a"),
        (b"a", b"a"),
    ]:
        expected = [name for name in ordered if name > after and (until is None or name <= until)]
        assert space.list("p", after=after, until=until, limit=1000) == expected
        assert [
            one.name for one in space.scan("p", after=after, until=until, limit=1000)
        ] == expected
        assert space.list("p", after=after, until=until, limit=2) == expected[:2]
        assert [one.name for one in space.scan("p", after=after, until=until, limit=2)] == expected[
            :2
        ]
        backwards = space.scan("p", after=after, until=until, limit=3, reverse=True)
        assert [one.name for one in backwards] == expected[::-1][:3]


def test_a_list_goes_on_where_a_page_of_dynamodb_ends(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    names = [b"%d" % number for number in range(9)]
    for name in names:
        space.create("p", name, os.urandom(300_000))
    proxy.seen.clear()
    assert space.list("p", limit=100) == names
    assert proxy.operations().count("Query") > 1
    found = space.scan("p", limit=100)
    assert [one.name for one in found] == names
    assert [len(one.data) for one in found] == [300_000] * 9


def test_for_a_range_with_nothing_in_it_nothing_is_asked(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    # DynamoDB refuses a range that ends before it begins; the server of the tests does not.
    proxy.seen.clear()
    assert space.list("p", after=b"a", until=b"a", limit=1) == []
    assert space.scan("p", after=b"b", until=b"a", limit=1) == []
    assert proxy.seen == []


def test_of_many_who_create_the_same_exactly_one_does(space: DynamoDBSpace) -> None:
    start = threading.Barrier(8)

    def create(data: bytes) -> bool:
        start.wait()
        return space.create("p", b"a", data)

    for name in (b"small", BIG):
        space.remove("p", [b"a"])
        with ThreadPoolExecutor(8) as pool:
            contenders = [name + b"%d" % number for number in range(8)]
            won = [
                data
                for data, done in zip(contenders, pool.map(create, contenders), strict=True)
                if done
            ]
        found = space.get("p", b"a")
        assert found is not None
        assert won == [found.data]


def test_every_read_is_strongly_consistent(space: DynamoDBSpace, proxy: AwsProxy) -> None:
    # The server of the tests has no other reads, so this looks at what is sent.
    space.create("p", b"a", BIG)
    space.get("p", b"a")
    space.list("p", limit=1)
    space.scan("p", limit=1)
    space.remove("p", [b"a"])
    asked = {request.operation: request.json() for request in proxy.seen}
    assert asked["GetItem"]["ConsistentRead"] is True
    assert all(one.json()["ConsistentRead"] for one in proxy.seen if one.operation == "Query")
    assert all(one["ConsistentRead"] for one in asked["BatchGetItem"]["RequestItems"].values())


def test_what_is_sent_keeps_to_limits_that_the_server_of_the_tests_does_not_check(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    names = [b"%03d" % number for number in range(60)]
    for name in names:
        space.put("p", name, b"")
    space.create("p", b"large", os.urandom(19_000_000))
    space.get("p", b"large")
    space.remove("p", [b"large", *(name for name in names for _ in range(2))])
    batches = [request for request in proxy.seen if request.operation == "BatchWriteItem"]
    members = [members for one in batches for members in one.json()["RequestItems"].values()]
    assert max(len(some) for some in members) <= 25
    assert all(len({json.dumps(one) for one in some}) == len(some) for some in members)
    assert max(len(one.body) for one in batches) < 16_000_000
    asked = [
        keys["Keys"]
        for one in proxy.seen
        if one.operation == "BatchGetItem"
        for keys in one.json()["RequestItems"].values()
    ]
    assert max(len(keys) for keys in asked) <= 100


def test_after_closing_every_call_says_closed(space: DynamoDBSpace) -> None:
    space.close()
    space.close()
    for call in (
        lambda: space.get("p", b"a"),
        lambda: space.create("p", b"a", b""),
        lambda: space.describe(),
    ):
        with pytest.raises(StoreClosed):
            call()


# -- large things ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 20_000_000])
def test_any_size_comes_back_as_it_was_and_leaves_nothing_when_removed(
    size: int, space: DynamoDBSpace, table: Table
) -> None:
    data = os.urandom(size)
    assert space.create("p", b"a", data) is True
    found = space.get("p", b"a")
    assert found is not None
    assert hashlib.sha256(found.data).digest() == hashlib.sha256(data).digest()
    assert space.list("p", limit=10) == [b"a"]
    space.remove("p", [b"a"])
    assert space.get("p", b"a") is None
    assert table.items() == []


def test_what_is_over_the_limit_is_refused_before_anything_is_sent(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    proxy.seen.clear()
    with pytest.raises(TooLarge):
        space.create("p", b"a", bytes(space.max_bytes + 1))
    with pytest.raises(TooLarge):
        space.put("p", b"a", BIG)
    assert proxy.seen == []


def test_large_things_stand_among_small_ones_in_pages_of_some_megabytes(
    space: DynamoDBSpace,
) -> None:
    sizes = {b"a": 10, b"b": 5_000_000, b"c": 5_000_000, b"d": 20, b"e": 1_000_000}
    for name, size in sizes.items():
        space.create("p", name, os.urandom(size))
    found: list[tuple[bytes, int]] = []
    pages = 0
    while page := space.scan("p", after=found[-1][0] if found else b"", limit=100):
        found += [(one.name, len(one.data)) for one in page]
        pages += 1
    assert dict(found) == sizes
    assert pages == 2
    assert space.list("p", limit=100) == list(sizes)


def test_removing_large_things_leaves_those_between_them_alone(
    space: DynamoDBSpace, table: Table
) -> None:
    for name in (b"a", b"b", b"c"):
        space.create("p", name, OTHER)
    space.remove("p", [b"c", b"a"])
    assert [(one.name, one.data) for one in space.scan("p", limit=10)] == [(b"b", OTHER)]
    assert len(table.parts()) == 2


def test_replacing_something_large_leaves_only_the_parts_of_the_new(
    space: DynamoDBSpace, table: Table
) -> None:
    space.create("p", b"a", BIG)
    for data in (OTHER, BIG, b"small", OTHER):
        before = space.get("p", b"a")
        assert before is not None
        assert space.replace("p", b"a", data, before.tag) is True
        after = space.get("p", b"a")
        assert after is not None
        assert after.data == data
        assert len(table.parts()) == (-(-len(data) // PART_BYTES) if data != b"small" else 0)


def test_who_comes_too_late_leaves_no_parts(space: DynamoDBSpace, table: Table) -> None:
    space.create("p", b"a", b"first")
    before = len(table.items())
    assert space.create("p", b"a", BIG) is False
    assert space.replace("p", b"a", BIG, "11" * 16) is False
    assert len(table.items()) == before


def test_parts_without_their_item_are_not_seen_and_go_with_the_name(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    def die(request: Request) -> Reply | None:
        return request.refuse("AccessDeniedException") if request.conditional else request.pass_on()

    proxy.rule = die
    for name in (b"a", b"b"):
        with pytest.raises(AccessDenied):
            space.create("p", name, BIG)
    proxy.rule = Request.pass_on
    assert len(table.parts()) == 6
    assert space.get("p", b"a") is None
    assert space.list("p", limit=10) == []
    assert space.scan("p", limit=10) == []
    assert space.create("p", b"a", OTHER) is True
    space.remove("p", [b"a"])
    assert len(table.parts()) == 3
    space.remove("p", [b"b"])
    assert table.items() == []


def test_parts_without_their_item_go_when_what_they_were_to_replace_is_replaced(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    space.create("p", b"a", BIG)
    found = space.get("p", b"a")
    assert found is not None
    proxy.rule = lambda request: (
        request.refuse("AccessDeniedException") if request.conditional else request.pass_on()
    )
    for other in (b"a", b"ab"):
        with pytest.raises(AccessDenied):
            space.replace("p", other, OTHER, found.tag)
    proxy.rule = Request.pass_on
    assert len(table.parts()) == 7
    assert space.replace("p", b"a", b"small", "22" * 16) is False
    assert len(table.parts()) == 7
    assert space.replace("p", b"a", b"small", found.tag) is True
    assert len(table.parts()) == 2
    space.remove("p", [b"ab"])
    assert [item["d"]["B"] for item in table.items()] == [b"small"]


def test_where_something_is_being_removed_nothing_is(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    space.create("p", b"a", BIG)
    proxy.rule = lambda request: (
        request.refuse("AccessDeniedException")
        if request.operation == "BatchWriteItem"
        else request.pass_on()
    )
    with pytest.raises(AccessDenied):
        space.remove("p", [b"a"])
    proxy.rule = Request.pass_on
    assert space.get("p", b"a") is None
    assert space.create("p", b"a", b"new") is True
    assert space.create("p", b"a", b"newer") is False
    found = space.get("p", b"a")
    assert found is not None
    assert found.data == b"new"
    space.remove("p", [b"a"])
    assert table.items() == []


def test_a_removal_that_ended_anywhere_is_finished_by_the_next(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    ended_before = 0
    while True:
        space.create("p", b"a", BIG)
        space.create("p", b"b", b"small")
        left = ended_before

        def die(request: Request) -> Reply | None:
            nonlocal left
            left -= 1
            return request.pass_on() if left >= 0 else request.refuse("AccessDeniedException")

        proxy.rule = die
        try:
            space.remove("p", [b"a", b"b"])
        except AccessDenied:
            proxy.rule = Request.pass_on
            listed = space.list("p", limit=10)
            # A whole one or nothing; and as long as something is left of it, it is listed.
            found = space.get("p", b"a")
            assert found is None or found.data == BIG
            assert [one.data for one in space.scan("p", limit=10)] in ([BIG, b"small"], [b"small"])
            assert listed == [b"a", b"b"]
            space.remove("p", listed)
            assert table.items() == []
            ended_before += 1
        else:
            break
    assert ended_before >= 4
    assert table.items() == []


@pytest.mark.parametrize("then", ["replaced", "removed"])
def test_a_reader_overtaken_between_item_and_parts_sees_what_is_there_then(
    then: str, space: DynamoDBSpace, url: str, proxy: AwsProxy
) -> None:
    space.create("p", b"a", BIG)
    first = space.get("p", b"a")
    assert first is not None
    other = open_space(url)

    def overtake(request: Request) -> Reply:
        if request.operation == "BatchGetItem":
            proxy.rule = Request.pass_on
            if then == "replaced":
                other.replace("p", b"a", OTHER, first.tag)
            else:
                other.remove("p", [b"a"])
            proxy.faults["overtaken"] += 1
        return request.pass_on()

    for read in (lambda: space.get("p", b"a"), lambda: (space.scan("p", limit=1) or [None])[0]):
        proxy.rule = overtake
        found = read()
        assert (found.data if found else None) == (OTHER if then == "replaced" else None)
        space.remove("p", [b"a"])
        space.create("p", b"a", BIG)
        first = space.get("p", b"a")
        assert first is not None
    other.close()
    assert proxy.faults["overtaken"] == 2


def test_parts_that_are_lost_or_changed_are_reported(space: DynamoDBSpace, table: Table) -> None:
    space.create("p", b"a", BIG)
    part = table.parts()[1]
    table.put(**{**part, "d": {"B": b"x" * len(part["d"]["B"])}})
    with pytest.raises(CorruptRecord, match="digest"):
        space.get("p", b"a")
    table.client.delete_item(TableName=table.name, Key={"p": part["p"], "n": part["n"]})
    for read in (lambda: space.get("p", b"a"), lambda: space.scan("p", limit=1)):
        with pytest.raises(CorruptRecord, match="missing"):
            read()


@pytest.mark.parametrize(
    "item",
    [
        {"d": {"B": b"x"}},
        {"t": {"B": b"x"}, "d": {"S": "x"}},
        {"t": {"B": b"x"}, "c": {"B": b"x"}},
        {"t": {"B": b"x"}, "c": {"N": "7"}},
        {"t": {"B": b"x"}, "c": {"B": b"\xff" * 44}},
    ],
)
def test_items_that_others_put_there_are_reported(
    item: dict[str, Any], space: DynamoDBSpace, table: Table
) -> None:
    table.put(p={"S": "p"}, n={"B": b"\x01a"}, **item)
    for read in (lambda: space.get("p", b"a"), lambda: space.scan("p", limit=1)):
        with pytest.raises(CorruptRecord):
            read()
    space.put("p", b"a", b"new")
    table.put(p={"S": "p"}, n={"B": b"\x02a" + bytes(16)}, **item)
    with pytest.raises(CorruptRecord):
        space.remove("p", [b"a"])


# -- a busy service, and answers that are lost -----------------------------------------------------


def test_what_a_batch_leaves_over_is_sent_again(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    batches = 0

    def half(request: Request) -> Reply | None:
        """Do a part of a batch, now and then nothing of it."""
        nonlocal batches
        if request.operation not in ("BatchWriteItem", "BatchGetItem"):
            return request.pass_on()
        batches += 1
        wanted = request.json()["RequestItems"][table.name]
        writes = request.operation == "BatchWriteItem"
        members = wanted if writes else wanted["Keys"]
        done, left = members[: batches % 3], members[batches % 3 :]
        if left:
            proxy.faults["left over"] += 1

        def as_asked(some: list[Any]) -> dict[str, Any]:
            return {table.name: some if writes else {**wanted, "Keys": some}} if some else {}

        over = {"UnprocessedItems" if writes else "UnprocessedKeys": as_asked(left)}
        if not done:
            reply = request.refuse("none")
            return Reply(200, reply.headers, json.dumps({"Responses": {}, **over}).encode())
        return request.pass_on(json.dumps({"RequestItems": as_asked(done)}).encode()).changed(
            **over
        )

    proxy.rule = half
    assert space.create("p", b"a", BIG * 2) is True
    found = space.get("p", b"a")
    assert found is not None
    assert found.data == BIG * 2
    space.create("p", b"b", b"")
    space.remove("p", [b"a", b"b"])
    assert table.items() == []
    assert proxy.faults["left over"] > 5


def test_a_put_whose_answer_was_lost_is_recognized_as_ours(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    def lose_first(request: Request) -> Reply | None:
        if request.conditional and not proxy.faults["lost"]:
            return request.lose()
        return request.pass_on()

    proxy.rule = lose_first
    assert space.create("p", b"a", b"1") is True
    first = space.get("p", b"a")
    assert first is not None
    proxy.faults.clear()
    assert space.replace("p", b"a", b"2", first.tag) is True
    proxy.faults.clear()
    assert space.create("p", b"big", BIG) is True
    found = space.get("p", b"big")
    assert found is not None
    assert found.data == BIG
    assert proxy.faults["lost"] == 1


def test_throttling_is_waited_out_and_is_unavailable_if_it_lasts(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    def throttle(request: Request) -> Reply | None:
        if proxy.faults["refused"] < limit:
            return request.refuse("ProvisionedThroughputExceededException")
        return request.pass_on()

    limit = 3
    proxy.rule = throttle
    assert space.create("p", b"a", b"1") is True
    assert proxy.faults["refused"] == 3
    limit = 10**9
    proxy.rule = lambda request: (
        throttle(request) if request.operation == "BatchWriteItem" else request.pass_on()
    )
    with pytest.raises(OutcomeUnknown, match="busy"):  # of several batches, some may have been done
        space.remove("p", [b"a"])
    proxy.rule = throttle
    for call in (lambda: space.create("p", b"b", b"1"), lambda: space.get("p", b"a")):
        with pytest.raises(Unavailable, match="busy"):
            call()
    proxy.rule = Request.pass_on
    assert space.get("p", b"b") is None


@pytest.mark.parametrize("last", ["lost", "throttled", "failed", "page", "refused"])
def test_a_put_that_may_have_arrived_is_never_said_not_to_have(
    last: str, space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    def lose_and(request: Request) -> Reply | None:
        if not request.conditional:
            return request.pass_on()
        if not proxy.faults["lost"] or last == "lost":
            return request.lose()
        if last == "page":
            return Reply(200, {"Content-Type": "text/html"}, b"<html>Please log in</html>")
        return request.refuse(
            {"throttled": "ThrottlingException", "failed": "InternalServerError"}.get(
                last, "AccessDeniedException"
            ),
            500 if last == "failed" else 400,
        )

    proxy.rule = lose_and
    with pytest.raises(OutcomeUnknown):
        space.create("p", b"a", b"1")
    assert proxy.faults["lost"] >= 1
    proxy.rule = Request.pass_on
    assert space.get("p", b"a") is not None


def test_an_error_of_the_service_does_not_say_that_nothing_was_stored(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    def store_and_fail(request: Request) -> Reply:
        request.pass_on()
        return request.refuse("InternalServerError", 500)

    proxy.rule = store_and_fail
    with pytest.raises(OutcomeUnknown):
        space.create("p", b"a", b"1")
    proxy.rule = Request.pass_on
    assert space.get("p", b"a") is not None


def test_a_failed_read_is_unavailable_and_a_page_of_a_proxy_is_no_answer(
    space: DynamoDBSpace, proxy: AwsProxy
) -> None:
    replies = [
        lambda request: request.cut(),
        lambda request: request.refuse("InternalServerError", 500),
        lambda request: Reply(200, {"Content-Type": "text/html"}, b"<html>Please log in</html>"),
    ]
    for proxy.rule in replies:
        for read in (
            lambda: space.get("p", b"a"),
            lambda: space.list("p", limit=1),
            lambda: space.scan("p", limit=1),
        ):
            with pytest.raises(Unavailable):
                read()


def test_parts_of_which_nobody_knows_are_surely_not_an_item(
    space: DynamoDBSpace, table: Table, proxy: AwsProxy
) -> None:
    def lose_parts(request: Request) -> Reply | None:
        return request.lose() if request.operation == "BatchWriteItem" else request.pass_on()

    proxy.rule = lose_parts
    with pytest.raises(Unavailable):
        space.create("p", b"a", BIG)
    with pytest.raises(OutcomeUnknown):
        space.remove("p", [b"a"])
    proxy.rule = Request.pass_on
    assert space.get("p", b"a") is None
    space.remove("p", [b"a"])
    assert table.items() == []
