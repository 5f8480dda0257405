"""Server-sent events: tell open pages that something they show has changed.

All pages that show the same thing share one poller, which runs only while a page is open. It reads
the smallest facts that change with the page: the version of a task and whether its process has
died, or a digest of a list.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import Final

from .. import Store
from ..log import operations as ops
from ..log.ids import stream_key
from ..log.leases import is_dead

POLL_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 2.0
"""Where nothing changes, the poller slows down to this."""
KEEPALIVE_SECONDS: Final = 15.0
LOOK_UP_SECONDS: Final = 1.0
"""How often to check whether the session of an open page has ended."""
LISTED: Final = 200
MAX_PAGES: Final = 200
"""How many pages may listen at once."""


class TooManyPages(Exception):
    """Too many open pages listen already."""


class LiveTopics:
    """The things that open pages show, each with its poller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._pages = 0

    async def follow(
        self, topic: str, id: str, is_over: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[str, None]:
        """Yield a digest whenever what the topic shows has changed. The first comes at once.

        It ends soon after `is_over` becomes true. Raises what the store raises if the first cannot
        be read.
        """
        read = self._reader(topic, id)
        name = (topic, "" if topic == "tasks" else id)  # lists of tasks show the same
        if self._pages >= MAX_PAGES:
            raise TooManyPages
        self._pages += 1
        shared = self._topics.setdefault(name, _Topic())
        shared.pages += 1
        seen: str | None = None
        try:
            if shared.digest is None:
                shared.digest = await asyncio.to_thread(read)
            if shared.poller is None:
                shared.poller = asyncio.ensure_future(shared.poll(read))
            quiet = 0.0
            while not is_over():
                if shared.digest != seen:
                    seen = shared.digest
                    yield seen
                    continue  # it may have changed in the meantime
                try:
                    await asyncio.wait_for(shared.changed.wait(), LOOK_UP_SECONDS)
                except (asyncio.TimeoutError, TimeoutError):
                    quiet += LOOK_UP_SECONDS
                    if quiet >= KEEPALIVE_SECONDS:
                        quiet = 0.0
                        yield ""
        finally:
            self._pages -= 1
            shared.pages -= 1
            if not shared.pages:
                self._topics.pop(name, None)
                if shared.poller is not None:
                    shared.poller.cancel()

    def _reader(self, topic: str, id: str) -> Callable[[], str]:
        if topic == "task":
            return lambda: self._digest_task(id)
        if topic == "conversation":
            return lambda: str(self._store.conversation(id).version())
        return self._digest_tasks

    def _digest_task(self, id: str) -> str:
        """Return the version of a task, and whether its process is known to have died."""
        head = ops.run(self._store._log, ops.head(stream_key(self._store.tenant, "task", id)))
        if head is None:
            return "0"
        owner = head.fields.owner
        return f"{head.version}{' abandoned' if owner is not None and is_dead(owner) else ''}"

    def _digest_tasks(self) -> str:
        """Return a digest of the tasks that are not finished, and of the first ones of all."""
        digest = hashlib.sha256()
        for status in ("running", "suspended", "failed", "stuck", "retrying", "pending"):
            for info in islice(self._store.tasks(status=status), LISTED):
                shown = (info.id, info.status, info.in_doubt, info.abandoned)
                digest.update("\0".join(map(str, (*shown, "\n"))).encode())
        return digest.hexdigest()[:16]


class _Topic:
    """One thing that pages show."""

    def __init__(self) -> None:
        self.pages = 0
        self.digest: str | None = None
        self.changed = asyncio.Event()
        self.poller: asyncio.Future[None] | None = None

    async def poll(self, read: Callable[[], str]) -> None:
        pause = POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            try:
                digest: str | None = await asyncio.to_thread(read)
            except Exception:
                pause = min(pause * 2, 30.0)  # the store is unreachable
                continue
            if digest == self.digest:
                pause = min(pause * 1.25, IDLE_SECONDS)
                continue
            pause, self.digest = POLL_SECONDS, digest
            self.changed.set()
            self.changed = asyncio.Event()
