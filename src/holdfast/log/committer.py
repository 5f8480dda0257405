"""Group commit: many callers, threads and event loops, one batch at a time, one disk sync for all who wait.

A sync caller that finds no leader becomes it and commits for everyone queued; the others sleep until they are
resolved, or promoted to lead the next batch. Async callers gather for one turn of their loop and are
committed by one thread. The leader resolves every member of its batch, whatever happens to it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import OutcomeUnknown, StoreClosed, Unavailable

if TYPE_CHECKING:
    import asyncio  # at run time only by those who use it: it is a third of the time to import holdfast

BATCH_MEMBERS: Final = 1024

logger = logging.getLogger("holdfast")


class PendingCommit:
    """A caller's place in the queue. The commit function sets `result` or `error`; `done` follows."""

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
    def settled(self) -> bool:
        """Whether the outcome is known; the caller may not yet have been told."""
        return self.result is not None or self.error is not None


Commit = Callable[[Sequence["PendingCommit"]], object]
"""Commits a batch: sets `result` or `error` of its members; those left without are tried again."""


class Committer:
    """Runs `commit` for everyone who submits, never twice at the same time."""

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
        self._gathering: dict[asyncio.AbstractEventLoop, list[PendingCommit]] = {}

    # -- callers ---------------------------------------------------------------------------------

    def submit(self, waiting: PendingCommit) -> None:
        """Return when `waiting` is done."""
        try:
            with self._lock:
                if self._closed:
                    self._check_open()
                if self._leading and self._leader == threading.get_ident():
                    raise RuntimeError(
                        "append called from inside an append, by a logging handler perhaps: it would wait for itself"
                    )
                if self._leading:
                    wake = waiting._wake = threading.Lock()
                    wake.acquire()  # before it is in the queue: whoever finds it there may release it
                    self._pending.append(waiting)
                else:
                    self._pending.append(waiting)
                    waiting._leads = self._leading = True
            if waiting._wake is not None:
                waiting._wake.acquire()  # until resolved, or promoted to lead
            if waiting._leads:
                self._lead(waiting)
        except BaseException:
            # An interrupt (or a bug) must not take the lead away with it.
            with self._lock:
                waiting._abandoned = True
                if waiting._leads:
                    self._hand_over(waiting)
            raise

    async def submit_async(self, waiting: PendingCommit) -> None:
        """Return when `waiting` is done. If cancelled, the commit in flight is awaited first, then the cancellation goes on."""
        import asyncio

        loop = waiting._loop = asyncio.get_running_loop()
        waiting._future = loop.create_future()
        self._check_open()
        gathered = self._gathering.get(loop)
        if gathered is None:
            # Whoever else submits in this turn of the loop joins the same batch.
            self._gathering[loop] = [waiting]
            loop.call_soon(self._flush, loop)
        else:
            gathered.append(waiting)
        try:
            await waiting._future
        except asyncio.CancelledError:
            waiting._abandoned = True
            while not waiting.done:
                waiting._future = loop.create_future()
                try:
                    await waiting._future
                except asyncio.CancelledError:
                    continue
            raise

    def close(self) -> None:
        """Refuse new callers, let those in flight finish, and end the thread."""
        with self._lock:
            self._closed = True
            # The thread must not end before the last leader: it may be handed those who wait behind him.
            self._idle.wait_for(lambda: not self._leading)
            thread = self._thread
        if thread is not None:
            self._turns.put(False)
            thread.join()

    # -- async: one turn of the loop is one batch ------------------------------------------------

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathering.pop(loop, [])
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
            for waiting in gathered:
                waiting.error = refused
            _resolve_async(gathered)

    def _give_turn_to_thread(self, own: PendingCommit | None = None) -> None:
        """The thread leads from now on. Called with the lock held; if no thread can be started, nothing has changed."""
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
            self._lead(turn, BaseException)  # nobody else is here to hear of it

    # -- leading ---------------------------------------------------------------------------------

    def _lead(self, own: PendingCommit, caught: type[BaseException] = Exception) -> None:
        """Commit batch after batch until our own append is done, then let somebody else lead. `caught`: what a commit may raise."""
        self._leader = threading.get_ident()
        while True:
            with self._lock:
                # They stay in the queue until they are resolved: whatever interrupts us, the next leader finds them.
                batch = self._pending[:BATCH_MEMBERS]
            self._commit_batch(_open(batch), caught)
            again = _open(batch)
            _resolve([waiting for waiting in batch if waiting.settled] if again else batch)
            with self._lock:
                self._pending[: len(batch)] = again
                if own.done or not self._pending:
                    self._hand_over(own)
                    return

    def _commit_batch(self, batch: Sequence[PendingCommit], caught: type[BaseException]) -> None:
        try:
            if batch:
                self._commit(batch)
        except caught as error:  # a bug of ours: tried again it would fail again, for ever
            logger.exception("the committer failed")
            for waiting in batch:
                if not waiting.settled:
                    waiting.error = OutcomeUnknown(f"the committer failed ({type(error).__name__})")

    def _hand_over(self, own: PendingCommit) -> None:
        """Let a waiting caller, or the thread, lead on. Called with the lock held."""
        self._leader = 0
        for waiting in self._pending:
            # Not one whose outcome is known: an interrupted leader may have woken it already, and it is gone.
            if waiting._wake is not None and not waiting._abandoned and not waiting.settled:
                # No Python function may be entered between these two: that is where an interrupt would strike.
                own._leads, waiting._leads = False, True
                waiting._wake.release()
                return
        if self._pending:
            self._give_turn_to_thread(own)
        else:
            own._leads = self._leading = False
            if self._closed:  # only then somebody waits for this
                self._idle.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed; open it again")


def _open(batch: list[PendingCommit]) -> list[PendingCommit]:
    """Those whose outcome is not known yet."""
    if len(batch) == 1:  # by far most often, and in the way of every append
        return batch if batch[0].result is None and batch[0].error is None else []
    return [waiting for waiting in batch if waiting.result is None and waiting.error is None]


def _release(wake: threading.Lock) -> None:
    try:
        wake.release()
    except RuntimeError:
        pass  # it was released before, by a leader who was interrupted right after


def _resolve(finished: Sequence[PendingCommit]) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[PendingCommit]] | None = None
    for waiting in finished:
        if waiting._loop is not None:
            loops = {} if loops is None else loops
            loops.setdefault(waiting._loop, []).append(waiting)
        elif not waiting.done:
            if waiting._wake is not None and not waiting._leads:
                _release(waiting._wake)
            waiting.done = True
    if loops is None:
        return
    for loop, members in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve_async, members)
        except RuntimeError:
            pass  # the loop was closed under its tasks: nobody is left to tell


def _resolve_async(members: Sequence[PendingCommit]) -> None:
    for waiting in members:
        waiting.done = True
        future = waiting._future
        if future is not None and not future.done():
            future.set_result(None)
