"""A DynamoDB table in memory, as far as `DynamoDBSpace` asks for it: for runs that are too many for
a simulated server.

It keeps the conditions that we send and knows no others. Batches are done bit by bit, as they are
at AWS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from holdfast.backends.dynamodb.space import DynamoDBSpace
from holdfast.backends.objects.aws import AWSResponse, ServerClock

TABLE: Final = "table"
Item = Mapping[str, Any]
Key = tuple[str, bytes]


class FakeTableSpace(DynamoDBSpace):
    """Named bytes as in DynamoDB. `before` is called with every request, and `after` when a write
    was done."""

    def __init__(self) -> None:
        self.before: Callable[[str, str], None] = lambda operation, partition: None
        self.after: Callable[[str, str], None] = lambda operation, partition: None
        self._table, self._service = TABLE, FakeService(self)  # type: ignore[assignment]


class FakeService:
    """Answers the requests."""

    where, region = "dynamodb://table", "nowhere"

    def __init__(self, space: FakeTableSpace) -> None:
        self._space, self._items = space, dict[Key, Item]()
        self.clock = ServerClock()

    def call(
        self, operation: str, *, writes: bool, expected: Collection[str] = (), **asked: Any
    ) -> AWSResponse:
        return getattr(self, f"_{operation}")(asked)  # type: ignore[no-any-return]

    def pause(self, attempt: int) -> bool:
        return False

    def reset_after_fork(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _get_item(self, asked: Item) -> AWSResponse:
        self._space.before("get", asked["Key"]["p"]["S"])
        item = self._items.get(_key(asked["Key"]))
        return AWSResponse({} if item is None else {"Item": item})

    def _scan(self, asked: Item) -> AWSResponse:
        self._space.before("walk", "")
        front = asked.get("ExpressionAttributeValues", {}).get(":front", {"S": ""})["S"]
        found = [
            {"p": i["p"], "n": i["n"]}
            for i in self._items.values()
            if i["p"]["S"].startswith(front)
        ]
        return AWSResponse({"Items": found})

    def _batch_get_item(self, asked: Item) -> AWSResponse:
        self._space.before("get", "part")
        keys = [_key(key) for key in asked["RequestItems"][TABLE]["Keys"]]
        return AWSResponse(
            {"Responses": {TABLE: [self._items[key] for key in keys if key in self._items]}}
        )

    def _query(self, asked: Item) -> AWSResponse:
        values = asked["ExpressionAttributeValues"]
        partition, first, last = values[":p"]["S"], values[":first"]["B"], values[":last"]["B"]
        self._space.before("list", partition)
        forward = asked.get("ScanIndexForward", True)
        names = sorted(n for p, n in self._items if p == partition and first <= n <= last)
        names = names if forward else names[::-1]
        start = asked.get("ExclusiveStartKey")
        if start is not None:
            behind = start["n"]["B"]
            names = [n for n in names if (n > behind if forward else n < behind)]
        page = names[: asked["Limit"]]
        answer: dict[str, Any] = {"Items": [self._items[partition, n] for n in page]}
        if len(page) == asked["Limit"]:
            answer["LastEvaluatedKey"] = {"p": {"S": partition}, "n": {"B": page[-1]}}
        return AWSResponse(answer)

    def _put_item(self, asked: Item) -> AWSResponse:
        item = asked["Item"]
        self._space.before("put", item["p"]["S"])
        old = self._items.get(_key(item))
        match asked.get("ConditionExpression"):
            case None:
                holds = True
            case "#t = :t":
                holds = old is not None and old["t"] == asked["ExpressionAttributeValues"][":t"]
            case (
                "attribute_not_exists(#p) OR (attribute_not_exists(#c) AND "
                "attribute_not_exists(#d))"
            ):
                holds = old is None or not {"c", "d"} & set(old)
            case other:
                raise AssertionError(other)
        if holds:
            self._items[_key(item)] = item
        self._space.after("put", item["p"]["S"])
        if holds:
            return AWSResponse({})
        return AWSResponse({} if old is None else {"Item": old}, "ConditionalCheckFailedException")

    def _update_item(self, asked: Item) -> AWSResponse:
        assert asked["UpdateExpression"] == "REMOVE #c, #d"
        self._space.before("hide", asked["Key"]["p"]["S"])
        old = self._items.get(_key(asked["Key"]))
        if old is not None:
            self._items[_key(old)] = {
                name: value for name, value in old.items() if name not in ("c", "d")
            }
        self._space.after("hide", asked["Key"]["p"]["S"])
        return AWSResponse({}, None if old is not None else "ConditionalCheckFailedException")

    def _batch_write_item(self, asked: Item) -> AWSResponse:
        for number, request in enumerate(asked["RequestItems"][TABLE]):
            if number % 3 == 0:
                self._space.before("write", "batch")
            if "PutRequest" in request:
                self._items[_key(request["PutRequest"]["Item"])] = request["PutRequest"]["Item"]
            else:
                self._items.pop(_key(request["DeleteRequest"]["Key"]), None)
        self._space.after("write", "batch")
        return AWSResponse({})


def _key(item: Item) -> Key:
    return item["p"]["S"], bytes(item["n"]["B"])
