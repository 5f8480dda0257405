"""A store and its handles stay in their process: pickling one says to pass the URL instead."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store

HANDLES: dict[str, Callable[[Store], Any]] = {
    "store": lambda store: store,
    "tenant": lambda store: store.for_tenant("acme"),
    "conversation": lambda store: store.conversation("c"),
    "task": lambda store: store.task("t"),
    "entered task": lambda store: store.task("t").__enter__(),
    "memory": lambda store: store.memory("m"),
    "state": lambda store: store.state("s"),
    "stream": lambda store: store.stream("s"),
    "artifact": lambda store: _artifact(store),
    "worker": holdfast.Worker,
}
ASYNC = ("store", "conversation", "task", "memory", "state", "stream")


def _artifact(store: Store) -> Any:
    with store.task("t") as task:
        task.attach("file", b"content")
    return store.artifact("t", "file")


@pytest.mark.parametrize(
    ("name", "asynchronous"),
    [*((name, False) for name in HANDLES), *((name, True) for name in ASYNC)],
)
def test_pickling_says_to_pass_the_url(name: str, asynchronous: bool, store: Store) -> None:
    handle = HANDLES[name](store.aio if asynchronous else store)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cannot be pickled.* pass its URL .* holdfast.open"):
        pickle.dumps(handle)
    if name == "entered task":
        handle.__exit__(None, None, None)


def use(store: Store) -> None:
    raise AssertionError


def open_there(url: str) -> None:
    with holdfast.open(url) as store:
        store.stream("s").append(("n", 1))


@pytest.mark.slow
def test_a_spawned_process_gets_the_url_and_not_the_store(tmp_path: Path) -> None:
    url, context = str(tmp_path / "agents.db"), multiprocessing.get_context("spawn")
    with holdfast.open(url) as store:
        with pytest.raises(TypeError, match="pass its URL"):
            context.Process(target=use, args=(store,)).start()
        process = context.Process(target=open_there, args=(url,))
        process.start()
        process.join()
        assert (process.exitcode, store.stream("s").version()) == (0, 1)
