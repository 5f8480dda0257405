"""LangGraph's long-term memory in a store: items, namespaces, filters, search, time to live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)

import holdfast
from helpers.memory.concept_embedder import Concepts
from helpers.stores import url_of
from holdfast.errors import InvalidId
from holdfast.integrations.langgraph import HoldfastSaver, HoldfastStore
from holdfast.testing import fake_clock

from .graphs import Steps, thread


class AsyncBatch(HoldfastStore):
    """A store whose sync methods use the async ones."""

    def batch(self, ops: Iterable[Any]) -> Any:
        return asyncio.run(self.abatch(ops))


@pytest.fixture(params=[HoldfastStore, AsyncBatch], ids=["plain", "async"])
def items(request: pytest.FixtureRequest, store: holdfast.Store) -> HoldfastStore:
    made: HoldfastStore = request.param(store)
    return made


def keys(found: Iterable[Any]) -> list[str]:
    return [item.key for item in found]


def test_an_item_is_put_got_updated_and_deleted(items: HoldfastStore) -> None:
    where = ("users", "ann")
    assert items.get(where, "tea") is None
    items.put(where, "tea", {"text": "likes tea"})
    first = items.get(where, "tea")
    assert first is not None
    assert (first.key, first.namespace, first.value) == ("tea", where, {"text": "likes tea"})
    items.put(where, "tea", {"text": "likes green tea", "more": [1, {"a": None}]})
    second = items.get(where, "tea")
    assert second is not None and second.value == {
        "text": "likes green tea",
        "more": [1, {"a": None}],
    }
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    items.delete(where, "tea")
    items.delete(where, "never there")
    items.delete(("no", "such"), "x")
    assert items.get(where, "tea") is None
    assert items.list_namespaces() == []


def test_what_is_changed_in_place_is_not_stored(items: HoldfastStore) -> None:
    value = {"list": [1]}
    items.put(("a",), "k", value)
    value["list"].append(2)
    found = items.get(("a",), "k")
    assert found is not None and found.value == {"list": [1]}
    found.value["list"].append(3)
    again = items.get(("a",), "k")
    assert again is not None and again.value == {"list": [1]}


def test_a_batch_returns_its_results_in_order(items: HoldfastStore) -> None:
    items.put(("a",), "old", {"n": 1})
    results = items.batch(
        [
            GetOp(("a",), "old"),
            PutOp(("a",), "new", {"n": 2}),
            PutOp(("a",), "newer", {"n": 3}),
            GetOp(("a",), "newer"),
            SearchOp(("a",), {"n": {"$gte": 2}}),
            PutOp(("a",), "old", None),
            ListNamespacesOp(),
            GetOp(("a",), "old"),
        ]
    )
    assert results[0].value == {"n": 1}  # type: ignore[union-attr]
    assert results[1:3] == [None, None]
    assert results[3].value == {"n": 3}  # type: ignore[union-attr]
    assert keys(results[4]) == ["newer", "new"]  # type: ignore[arg-type]
    assert results[5:] == [None, [("a",)], None]


def test_filters_compare_fields(items: HoldfastStore) -> None:
    for n in range(5):
        items.put(
            ("a",), str(n), {"n": n, "even": n % 2 == 0, "in": {"x": n, "y": 1}, "t": f"t{n}"}
        )
    items.put(("a",), "none", {"other": 1})
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"n": 3}, {"3"}),
        ({"even": True}, {"0", "2", "4"}),
        ({"n": {"$gt": 1, "$lte": 3}}, {"2", "3"}),
        ({"n": {"$ne": 0}, "even": True}, {"2", "4"}),
        ({"in": {"x": {"$lt": 2}, "y": 1}}, {"0", "1"}),
        ({"t": {"$gte": "t3"}}, {"3", "4"}),
        ({"n": {"$eq": 9}}, set()),
    ]
    for wanted, expected in cases:
        assert set(keys(items.search(("a",), filter=wanted))) == expected
    with pytest.raises(ValueError, match=r"operator must be one of .*, got '\$regex'"):
        items.search(("a",), filter={"n": {"$regex": "."}})


def test_results_come_in_pages(items: HoldfastStore) -> None:
    for n in range(25):
        items.put(("a", str(n % 2)), str(n), {"n": n})
    pages = [keys(items.search(("a",), limit=10, offset=offset)) for offset in (0, 10, 20, 30)]
    assert [len(page) for page in pages] == [10, 10, 5, 0]
    assert sorted((key for page in pages for key in page), key=int) == [str(n) for n in range(25)]


def test_namespaces_are_matched_by_whole_labels(items: HoldfastStore) -> None:
    places = [
        ("a",),
        ("a", "b"),
        ("a", "b", "c"),
        ("ab",),
        ("ab", "b"),
        ("z", "b"),
        ("a/b",),
        ("a:b", "%"),
    ]
    for place in places:
        items.put(place, "k", {"at": list(place)})
    assert {tuple(one.value["at"]) for one in items.search(("a",))} == {
        ("a",),
        ("a", "b"),
        ("a", "b", "c"),
    }
    assert items.list_namespaces(prefix=("a",)) == [("a",), ("a", "b"), ("a", "b", "c")]
    assert items.list_namespaces(suffix=("b",)) == [("a", "b"), ("ab", "b"), ("z", "b")]
    assert items.list_namespaces(prefix=("*", "b")) == [
        ("a", "b"),
        ("a", "b", "c"),
        ("ab", "b"),
        ("z", "b"),
    ]
    assert items.list_namespaces(prefix=("a",), max_depth=2) == [("a",), ("a", "b")]
    assert items.list_namespaces(limit=2, offset=1) == [("a", "b"), ("a", "b", "c")]
    assert len(items.search((), limit=100)) == len(places)


@pytest.mark.parametrize(
    "hostile",
    ["'; DROP TABLE events; --", '"', "\\", "%", "_", "*", "a\nb", "../..", "\u202e", "{x}", "$ne"],
)
def test_hostile_labels_keys_and_values_are_only_text(items: HoldfastStore, hostile: str) -> None:
    label = hostile.replace(".", "")
    items.put(("safe",), "k", {"n": 1})
    items.put((label, "x"), hostile, {hostile: hostile})
    found = items.get((label, "x"), hostile)
    assert found is not None and found.value == {hostile: hostile}
    assert keys(items.search((label,), query=hostile)) in ([], [hostile])
    assert keys(items.search(("safe",), filter={hostile: "x"})) == [] or hostile == "$ne"
    items.delete((label, "x"), hostile)
    assert items.list_namespaces() == [("safe",)]


def test_invalid_namespaces_are_refused_also_in_a_batch(items: HoldfastStore) -> None:
    for bad in ((), ("a.b",), ("",), ("a\0",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            items.put(bad, "k", {"n": 1})
    for op in (
        PutOp(("a.b",), "k", {"n": 1}),
        GetOp(("",), "k"),
        SearchOp(("a", "b.c")),
        ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)),
        PutOp((), "k", {"n": 1}),
    ):
        with pytest.raises(ValueError, match=r"amespace"):
            items.batch([op])
    with pytest.raises(InvalidId):
        items.put(("a" * 600,), "k", {"n": 1})
    assert items.list_namespaces() == []


# -- search ----------------------------------------------------------------------------------------


def test_a_query_finds_items_by_their_words_best_first(items: HoldfastStore) -> None:
    items.put(("u", "1"), "a", {"text": "Ann signs the orders of the insurer"})
    items.put(("u", "1"), "b", {"text": "Bob likes tea", "about": {"drink": "green tea"}})
    items.put(("u", "2"), "c", {"text": "the tea is at five"})
    items.put(("w", "2"), "d", {"text": "tea elsewhere"})
    found = items.search(("u",), query="who signs orders?")
    assert keys(found)[0] == "a"
    assert found[0].score is not None and found[0].score > 0.3
    assert set(keys(items.search(("u",), query="tea"))) == {"b", "c"}
    assert keys(items.search(("u",), query="tea", filter={"text": "Bob likes tea"})) == ["b"]
    assert len(items.search(("u",), query="tea", limit=1)) == 1
    assert items.search(("u",), query="helicopter") == []


def test_the_search_index_follows_updates_and_deletions(items: HoldfastStore) -> None:
    items.put(("u",), "a", {"text": "likes tea"})
    items.put(("u",), "b", {"text": "likes tea"})  # the same text, under another key
    assert set(keys(items.search(("u",), query="tea"))) == {"a", "b"}
    items.put(("u",), "a", {"text": "likes coffee"})
    assert keys(items.search(("u",), query="tea")) == ["b"]
    assert keys(items.search(("u",), query="coffee")) == ["a"]
    items.delete(("u",), "b")
    assert items.search(("u",), query="tea") == []
    items.delete(("u",), "a")
    assert items.search(("u",), query="coffee") == []


def test_only_the_chosen_fields_are_searched(store: holdfast.Store) -> None:
    items = HoldfastStore(store, fields=["text"])
    items.put(("u",), "a", {"text": "likes tea", "note": "coffee"})
    items.put(("u",), "b", {"text": "tea too", "deep": [{"x": "cocoa"}]}, index=["deep[*].x"])
    items.put(("u",), "c", {"text": "tea as well"}, index=False)
    assert keys(items.search(("u",), query="tea")) == ["a"]
    assert items.search(("u",), query="coffee") == []
    assert keys(items.search(("u",), query="cocoa")) == ["b"]
    assert set(keys(items.search(("u",)))) == {"a", "b", "c"}


def test_a_store_with_an_embedder_is_searched_by_meaning(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", embed=Concepts()) as store:
        items = HoldfastStore(store)
        items.put(("u",), "car", {"text": "the automobile is in the garage"})
        items.put(("u",), "tea", {"text": "tea is at five"})
        assert keys(items.search(("u",), query="vehicle"))[0] == "car"


def test_what_another_process_put_is_found(tmp_path: Path) -> None:
    url = str(tmp_path / "agents.db")
    with holdfast.open(url) as mine, holdfast.open(url) as other:
        items, others = HoldfastStore(mine), HoldfastStore(other)
        items.put(("u",), "a", {"text": "likes tea"})
        assert keys(others.search(("u",), query="tea")) == ["a"]
        others.put(("u",), "b", {"text": "makes tea"})
        assert set(keys(items.search(("u",), query="tea"))) == {"a", "b"}
        others.delete(("u",), "a")
        others.delete(("u",), "b")
        assert items.get(("u",), "a") is None
        items.put(("u",), "c", {"text": "new tea"})
        assert keys(others.search(("u",), query="tea")) == ["c"]
        assert mine.verify().ok


# -- time to live ----------------------------------------------------------------------------------


def test_an_item_expires_and_reading_it_starts_its_time_again(items: HoldfastStore) -> None:
    with fake_clock() as clock:
        items.put(("u",), "a", {"text": "short tea"}, ttl=1)
        items.put(("u",), "b", {"text": "long tea"}, ttl=None)
        clock.advance(50)
        assert items.get(("u",), "a") is not None  # 60 more seconds from now on
        clock.advance(50)
        assert items.get(("u",), "a", refresh_ttl=False) is not None
        clock.advance(20)
        assert items.get(("u",), "a") is None
        assert keys(items.search(("u",))) == ["b"]
        assert keys(items.search(("u",), query="tea")) == ["b"]
        items.put(("u",), "a", {"text": "again"}, ttl=1)
        clock.advance(50)
        assert set(keys(items.search(("u",)))) == {"a", "b"}
        clock.advance(50)
        assert set(keys(items.search(("u",)))) == {"a", "b"}


def test_a_default_time_to_live_can_be_set_for_all_items(store: holdfast.Store) -> None:
    items = HoldfastStore(store, ttl={"default_ttl": 1, "refresh_on_read": False})
    with fake_clock() as clock:
        items.put(("u",), "a", {"n": 1})
        clock.advance(40)
        assert items.get(("u",), "a") is not None
        clock.advance(40)
        assert items.get(("u",), "a") is None
        assert items.list_namespaces() == []


# -- in graphs, and elsewhere ----------------------------------------------------------------------


def test_nodes_reach_the_store_of_their_graph(store: holdfast.Store) -> None:
    from langgraph.config import get_store

    def remember(state: Steps) -> Any:
        get_store().put(("notes",), "n", {"text": state["log"][0]})
        return {
            "log": [found.value["text"] for found in get_store().search(("notes",), query="tea")]
        }

    builder = StateGraph(Steps)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", END)
    graph = builder.compile(checkpointer=HoldfastSaver(store), store=HoldfastStore(store))
    assert graph.invoke({"log": ["tea"]}, thread())["log"] == ["tea", "tea"]


def test_values_are_redacted_and_other_tenants_see_nothing() -> None:
    with holdfast.open("memory://", redact=True) as store:
        items = HoldfastStore(store)
        items.put(("u",), "a", {"text": "card 4111 1111 1111 1111"})
        found = items.get(("u",), "a")
        assert found is not None and found.value == {"text": "card [redacted: card]"}
        assert HoldfastStore(store.for_tenant("other")).search(()) == []


@pytest.mark.parametrize("kind", ["postgres"])
def test_items_and_search_work_on_a_server(kind: str, tmp_path: Path) -> None:
    with holdfast.open(url_of(kind, tmp_path)) as store:
        items = HoldfastStore(store)
        items.put(("u", "1"), "a", {"text": "likes tea"})
        assert keys(items.search(("u",), query="tea")) == ["a"]

        async def check() -> None:
            await asyncio.gather(
                *(items.aput(("u", str(n)), "k", {"text": f"tea {n}"}) for n in range(5))
            )
            assert len(await items.asearch(("u",), query="tea", limit=20)) == 6

        waiting: Awaitable[None] = check()
        asyncio.run(waiting)  # type: ignore[arg-type]


def test_a_store_says_what_it_needs() -> None:
    with pytest.raises(TypeError, match="store must be an open store"):
        HoldfastStore("agents.db")  # type: ignore[arg-type]


def test_an_item_that_could_not_be_read_again_is_refused(store: holdfast.Store) -> None:
    items = HoldfastStore(store)
    value: dict[str, Any] = {}
    for _ in range(98):
        value = {"in": value}
    items.put(("a",), "deep", value)
    with pytest.raises(holdfast.HoldfastError, match="nested"):
        items.put(("a",), "deeper", {"in": value})
    found = items.get(("a",), "deep")
    assert found is not None and found.value == value
