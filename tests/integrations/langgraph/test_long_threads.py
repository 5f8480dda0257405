"""The newest checkpoint of a long thread is found without reading the thread from its start."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph import thread as threads

from .graphs import chat_graph, checkpoint, thread

LATEST = 4
"""The format of checkpoints that graphs save."""


def save(saver: HoldfastSaver, config: Any, values: Any, step: int, new_id: str = "") -> Any:
    made = checkpoint(values, step + 1)
    made["v"], made["id"] = LATEST, new_id or made["id"]
    return saver.put(config, made, {"source": "loop", "step": step}, made["channel_versions"])


def count_bytes(store: holdfast.Store) -> int:
    events = store.stream("langgraph/thread/t").read()
    return sum(len(json.dumps(event.data)) for event in events)


def count_read(store: holdfast.Store, look: Any) -> int:
    """Return how many events were read meanwhile."""
    log, counts = store._log, []
    handle = log.handle

    def handle_one(request: Any) -> Any:
        answer = handle(request)
        if type(request).__name__ == "Read":
            counts.append(len(answer))
        return answer

    log.handle = handle_one  # type: ignore[method-assign]
    try:
        look()
    finally:
        log.handle = handle  # type: ignore[method-assign]
    return sum(counts)


def test_a_small_state_with_a_long_history_is_read_from_its_last_keyframe(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store:
        saver = HoldfastSaver(store)
        config = thread()
        for n in range(300):
            config = save(saver, config, {"draft": f"{n} " + "word " * 200}, n)
    with holdfast.open(path) as store:
        saver = HoldfastSaver(store)
        found: list[Any] = []
        assert count_read(store, lambda: found.append(saver.get_tuple(thread()))) < 150
        assert found[0].checkpoint["channel_values"]["draft"].startswith("299 ")
        # It continues from there, and reads older checkpoints only on request.
        config = found[0].config
        assert count_read(store, lambda: save(saver, config, {"draft": "new"}, 300)) == 0
        assert [one.checkpoint["channel_values"]["draft"][:3] for one in saver.list(thread())][
            ::100
        ] == ["new", "200", "100", "0 w"]
        assert store.verify().ok


def test_a_fork_of_an_old_checkpoint_is_found_by_who_has_read_only_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, durability="process") as store, holdfast.open(path) as other:
        saver, configs = HoldfastSaver(store), [thread()]
        for n in range(200):
            values = {"n": n, "kept": "k" * 2_000, "draft": "word " * 200}
            configs.append(save(saver, configs[-1], values, n))
        reader = HoldfastSaver(other)
        newest = reader.get_tuple(thread())
        index = reader._cache.get(reader._key("t"))
        assert newest is not None and newest.config == configs[-1]
        assert index is not None and index.start > 0
        fork = save(saver, configs[1], {"n": "forked", "kept": "k" * 2_000}, 200)
        newest = reader.get_tuple(thread())
        assert newest is not None and newest.config == fork
        assert newest.checkpoint["channel_values"] == {"n": "forked", "kept": "k" * 2_000}


def test_a_list_of_messages_is_stored_again_only_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {}
    for least in (2_000, 10**9):
        monkeypatch.setattr(threads, "MIN_READ_BYTES", least)
        path = tmp_path / f"{least}.db"
        with holdfast.open(path, durability="process") as store:
            graph = chat_graph(HoldfastSaver(store))
            for n in range(100):
                graph.invoke({"messages": [HumanMessage(f"question {n}")]}, thread())
            sizes[least] = count_bytes(store)
        with holdfast.open(path) as store:
            messages = chat_graph(HoldfastSaver(store)).get_state(thread()).values["messages"]
            assert [message.content for message in messages[::2]] == [
                f"question {n}" for n in range(100)
            ]
    assert sizes[10**9] < sizes[2_000] < 2 * sizes[10**9]


@pytest.mark.parametrize("seed", range(12))
def test_every_checkpoint_is_the_same_wherever_reading_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(threads, "MIN_READ_BYTES", 500)
    path = tmp_path / "a.db"
    configs: dict[str, list[Any]] = {"": [], "child:1": []}
    saved: dict[str, list[Any]] = {"": [], "child:1": []}
    with holdfast.open(path, durability="process") as store:
        saver = HoldfastSaver(store)
        for n in range(60):
            if rng.random() < 0.1:  # as in a new process
                saver._log.attachment(type(saver._cache)).drop(saver._key("t"))
            ns = rng.choice(["", "", "", "child:1"])
            forks = rng.random() < 0.05
            known = configs[ns]
            parent = rng.choice(known) if known and forks else known[-1] if known else None
            before = saved[ns][known.index(parent)] if parent else {"list": []}
            values = {
                "n": n,
                "list": [*before["list"], HumanMessage("word " * rng.randrange(20), id=str(n))],
                "large": "x" * rng.choice([10, 40_000]) if rng.random() < 0.1 else "small",
            }
            new_id = str(uuid6())
            writes_first = rng.random() < 0.2
            if writes_first:
                saver.put_writes(thread(checkpoint_ns=ns, checkpoint_id=new_id), [("n", n)], "task")
            config = save(saver, parent or thread(checkpoint_ns=ns), values, n, new_id)
            if not writes_first:
                saver.put_writes(config, [("n", n)], "task")
            known.append(config)
            saved[ns].append(values)
    since = 0
    for ns, all_values in saved.items():
        with holdfast.open(path) as store:
            saver = HoldfastSaver(store)
            newest = saver.get_tuple(thread(checkpoint_ns=ns))
            assert newest is not None
            assert newest.checkpoint["channel_values"] == all_values[-1]
            assert newest.pending_writes == [("task", "n", all_values[-1]["n"])]
            cached = saver._cache.get(saver._key("t"))
            since += cached.start if cached is not None else 0
            for config, values in zip(configs[ns], all_values, strict=True):
                found = saver.get_tuple(config)
                assert found is not None
                assert found.checkpoint["channel_values"] == values
                assert found.pending_writes == [("task", "n", values["n"])]
    if seed == 0:
        assert since > 0  # some of it was read from a keyframe
