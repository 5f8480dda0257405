"""One test body for plain and for async memories: it awaits everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import Store


class Awaited:
    """A plain memory or an async one, called in one way."""

    def __init__(
        self, store: Store, asynchronous: bool, namespace: str = "claims", **options: Any
    ) -> None:
        self._asynchronous = asynchronous
        self._memory: Any = (store.aio if asynchronous else store).memory(namespace, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = getattr(self._memory, name)(*args, **kwargs)
            if not self._asynchronous:
                return list(found) if name == "all" else found
            return asyncio.run(_listed(found) if name == "all" else _awaited(found))

        return call


async def _awaited(found: Coroutine[Any, Any, Any]) -> Any:
    return await found


async def _listed(found: Any) -> list[Any]:
    return [one async for one in found]
