"""Group commit: the appends of many threads and event loops share one commit and one disk sync.

A sync caller that finds no leader becomes the leader and commits for every queued caller. The
others sleep until they are resolved, or promoted to lead the next batch. Async callers that submit
in the same iteration of their loop form one batch, which a thread commits. The leader resolves
every member of its batch, even if the leader itself is interrupted.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import OutcomeUnknown, StoreClosed, Unavailable

if TYPE_CHECKING:
    import asyncio  # imported where used: it takes a third of the time to import holdfast

BATCH_MEMBERS: Final = 1024

logger = logging.getLogger("holdfast")


class PendingCommit:
    """A caller's entry in the queue. The commit function sets `result` or `error`, then `done`."""

    __slots__ = ("_abandoned", "_future", "_leads", "_loop", "_wake", "done", "error", "result")

    def __init__(self) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self._leads = self._abandoned = False
        self._wake: threading.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known; the caller may not have been woken yet."""
        return self.result is not None or self.error is not None


Commit = Callable[[Sequence["PendingCommit"]], object]
"""Commits a batch: sets `result` or `error` of its members. A member with neither is retried."""


class Committer:
    """Runs `commit` for all callers that submit, never twice at the same time."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._pending: list[PendingCommit] = []
        self._leading = False
        self._leader = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[PendingCommit]] = {}

    # -- callers ---------------------------------------------------------------------------------

    def submit(self, pending: PendingCommit) -> None:
        """Queue `pending` and return when it is done."""
        try:
            with self._lock:
                if self._closed:
                    self._check_open()
                if self._leading and self._leader == threading.get_ident():
                    raise RuntimeError(
                        "append was called inside an append, perhaps by a logging handler; "
                        "it would deadlock"
                    )
                if self._leading:
                    wake = pending._wake = threading.Lock()
                    wake.acquire()  # before it is queued: then another thread may release it
                    self._pending.append(pending)
                else:
                    self._pending.append(pending)
                    pending._leads = self._leading = True
            if pending._wake is not None:
                pending._wake.acquire()  # until resolved, or promoted to lead
            if pending._leads:
                self._lead(pending)
        except BaseException:
            # After an interrupt (or a bug) another caller must be able to lead.
            with self._lock:
                pending._abandoned = True
                if pending._leads:
                    self._hand_over(pending)
            raise

    async def submit_async(self, pending: PendingCommit) -> None:
        """Queue `pending` and return when it is done.

        A cancellation takes effect only after the commit in flight has finished.
        """
        import asyncio

        loop = pending._loop = asyncio.get_running_loop()
        pending._future = loop.create_future()
        self._check_open()
        gathered = self._gathered.get(loop)
        if gathered is None:
            # Other tasks that submit in this iteration of the loop join the same batch.
            self._gathered[loop] = [pending]
            loop.call_soon(self._flush, loop)
        else:
            gathered.append(pending)
        try:
            await pending._future
        except asyncio.CancelledError:
            pending._abandoned = True
            while not pending.done:
                pending._future = loop.create_future()
                try:
                    await pending._future
                except asyncio.CancelledError:
                    continue
            raise

    def close(self) -> None:
        """Refuse new callers, finish the commits in flight, and end the thread."""
        with self._lock:
            self._closed = True
            # The thread must not end before the last leader, which may hand it the remaining queue.
            self._idle.wait_for(lambda: not self._leading)
            thread = self._thread
        if thread is not None:
            self._turns.put(False)
            thread.join()

    # -- async: one iteration of the loop is one batch -------------------------------------------

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.pop(loop, [])
        refused: Exception | None = None
        with self._lock:
            if self._closed:
                refused = StoreClosed(
                    "the store was closed while the append waited; nothing was written"
                )
            elif not self._leading:
                try:
                    self._give_turn_to_thread()
                    self._leading = True
                except RuntimeError:
                    refused = Unavailable("no thread can be started to write; nothing was written")
            if refused is None:
                self._pending.extend(gathered)
        if refused is not None:
            for pending in gathered:
                pending.error = refused
            _resolve_async(gathered)

    def _give_turn_to_thread(self, own: PendingCommit | None = None) -> None:
        """Make the thread the leader. The lock is held. If no thread can start, nothing changes."""
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="holdfast-commit", daemon=True)
            thread.start()
            self._thread = thread
        if own is not None:
            own._leads = False
        self._turns.put(True)

    def _serve(self) -> None:
        while self._turns.get():
            turn = PendingCommit()
            turn._leads = True
            self._lead(turn, BaseException)  # no caller would see an error that is raised here

    # -- leading ---------------------------------------------------------------------------------

    def _lead(self, own: PendingCommit, caught: type[BaseException] = Exception) -> None:
        """Commit batches until `own` is done, then hand over. `caught` errors fail the batch."""
        self._leader = threading.get_ident()
        while True:
            with self._lock:
                # They stay queued until they are resolved: after an interrupt the next leader finds
                # them.
                batch = self._pending[:BATCH_MEMBERS]
            self._commit_batch(_filter_unsettled(batch), caught)
            retried = _filter_unsettled(batch)
            _resolve([pending for pending in batch if pending.is_settled] if retried else batch)
            with self._lock:
                self._pending[: len(batch)] = retried
                if own.done or not self._pending:
                    self._hand_over(own)
                    return

    def _commit_batch(self, batch: Sequence[PendingCommit], caught: type[BaseException]) -> None:
        try:
            if batch:
                self._commit(batch)
        except caught as error:  # a bug in Holdfast: a retry would fail again, forever
            logger.exception("the committer failed")
            for pending in batch:
                if not pending.is_settled:
                    pending.error = OutcomeUnknown(f"the committer failed ({type(error).__name__})")

    def _hand_over(self, own: PendingCommit) -> None:
        """Let a waiting caller, or the thread, lead next. The lock is held."""
        self._leader = 0
        for pending in self._pending:
            # Skip settled ones: an interrupted leader may have woken that caller already.
            if pending._wake is not None and not pending._abandoned and not pending.is_settled:
                # No Python call between these two statements: an interrupt could strike there.
                own._leads, pending._leads = False, True
                pending._wake.release()
                return
        if self._pending:
            self._give_turn_to_thread(own)
        else:
            own._leads = self._leading = False
            if self._closed:  # only `close` waits for this
                self._idle.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed; open it again")


def _filter_unsettled(batch: list[PendingCommit]) -> list[PendingCommit]:
    """Return the members whose outcome is not known yet."""
    if len(batch) == 1:  # by far the most common case, and on the path of every append
        return batch if batch[0].result is None and batch[0].error is None else []
    return [pending for pending in batch if pending.result is None and pending.error is None]


def _release(wake: threading.Lock) -> None:
    try:
        wake.release()
    except RuntimeError:
        pass  # released before, by a leader that was interrupted right afterwards


def _resolve(finished: Sequence[PendingCommit]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[PendingCommit]] | None = None
    for pending in finished:
        if pending._loop is not None:
            loops = {} if loops is None else loops
            loops.setdefault(pending._loop, []).append(pending)
        elif not pending.done:
            if pending._wake is not None and not pending._leads:
                _release(pending._wake)
            pending.done = True
    if loops is None:
        return
    for loop, members in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve_async, members)
        except RuntimeError:
            pass  # the loop was closed, so no task waits for this


def _resolve_async(members: Sequence[PendingCommit]) -> None:
    for pending in members:
        pending.done = True
        future = pending._future
        if future is not None and not future.done():
            future.set_result(None)
