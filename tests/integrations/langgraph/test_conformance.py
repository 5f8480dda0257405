"""LangGraph's own conformance kit, and the same contracts for the sync methods."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

import holdfast
from helpers.stores import encrypt_by_default, url_of
from holdfast.integrations.langgraph import HoldfastSaver

CASES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class SyncMethods(HoldfastSaver):
    """A saver whose async methods call the sync ones, in a thread: the kit is async only."""

    async def aget_tuple(self, config: Any) -> Any:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
        for found in await asyncio.to_thread(lambda: list(self.list(config, **options))):
            yield found

    async def aput(self, *args: Any) -> Any:
        return await asyncio.to_thread(self.put, *args)

    async def aput_writes(self, *args: Any, **more: Any) -> None:
        await asyncio.to_thread(self.put_writes, *args, **more)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))


def run_kit(kind: str, place: Path, saver: type[HoldfastSaver]) -> None:
    number = itertools.count()

    @checkpointer_test(name=kind)
    async def make() -> Any:
        here = place / str(next(number))
        here.mkdir()
        with holdfast.open(url_of(kind, here)) as store:
            yield saver(store)
            assert store.verify().ok

    report = asyncio.run(validate(make))
    assert {name: result.failures for name, result in report.results.items()} == {
        capability.value: [] for capability in ALL_CAPABILITIES
    }
    for name, count in CASES.items():
        assert report.results[name].tests_passed >= count


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("saver", [HoldfastSaver, SyncMethods])
def test_the_conformance_kit_passes_with_every_optional_capability(
    kind: str, saver: type[HoldfastSaver], tmp_path: Path
) -> None:
    run_kit(kind, tmp_path, saver)


def test_the_conformance_kit_passes_on_an_encrypted_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypt_by_default(monkeypatch)
    run_kit("sqlite", tmp_path, HoldfastSaver)
