"""Group commit: the appends of many threads and event loops share one commit and one disk sync.

A sync caller that finds no leader becomes the leader and commits for every queued caller. The
others sleep until they are resolved, or promoted to lead the next batch. Async callers that submit
in the same iteration of their loop form one batch, which a thread commits. The leader resolves
every member of its batch, even if the leader itself is interrupted.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ..errors import OutcomeUnknown, StoreClosed, Unavailable

if TYPE_CHECKING:
    import asyncio  # imported where used: it takes a third of the time to import holdfast

BATCH_MEMBERS: Final = 1024
LEADER_CHECK_SECONDS: Final = 1.0
"""How often a caller that waits checks whether its leader is still there."""

logger = logging.getLogger("holdfast")


class PendingCommit:
    """A caller's entry in the queue. The commit function sets `result` or `error`, then `done`."""

    _thread: int
    """The thread that waits for `_wake`. Set only if there is one."""

    __slots__ = (
        "_abandoned",
        "_future",
        "_leads",
        "_loop",
        "_thread",
        "_wake",
        "done",
        "error",
        "result",
    )  # fmt: skip

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
        self._leader = 0
        """The thread that leads, or is to lead; 0 if none."""
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
                here = threading.get_ident()
                if self._leader == here and _is_on_stack(sys._getframe(1)):
                    raise RuntimeError(
                        "append was called inside an append, perhaps by a logging handler; "
                        "it would deadlock"
                    )
                if self._leader and self._leader != here:
                    pending._thread = here
                    wake = pending._wake = threading.Lock()
                    wake.acquire()  # before it is queued: then another thread may release it
                    self._pending.append(pending)
                else:
                    # First: an interrupt after it is queued must find a leader to commit it.
                    self._leader, pending._leads = here, True
                    self._pending.append(pending)
            if pending._wake is not None:
                # Until resolved, or promoted to lead.
                while not pending._wake.acquire(timeout=LEADER_CHECK_SECONDS):
                    if self._replace_lost_leader(pending):
                        break
            if pending._leads:
                self._lead(pending)
        except BaseException:
            # After an interrupt (or a bug) another caller must be able to lead.
            with self._lock:
                pending._abandoned = True
                if pending._leads:
                    self._hand_over(pending)
            raise

    def _replace_lost_leader(self, own: PendingCommit) -> bool:
        """Lead instead of a leader that is gone: it was interrupted while it handed over."""
        with self._lock:
            if not own.done and not own._leads and self._is_leader_lost():
                self._leader, own._leads = threading.get_ident(), True
            return own._leads

    def _is_leader_lost(self) -> bool:
        """Return whether the thread that should lead no longer does. The lock is held."""
        return not _is_on_stack(sys._current_frames().get(self._leader))

    async def submit_async(self, pending: PendingCommit) -> None:
        """Queue `pending` and return when it is done.

        A cancellation takes effect only after the commit in flight has finished.
        """
        import asyncio

        loop = pending._loop = asyncio.get_running_loop()
        pending._future = loop.create_future()
        self._check_open()
        try:
            gathered = self._gathered.get(loop)
            if gathered is None:
                # Other tasks that submit in this iteration of the loop join the same batch.
                self._gathered[loop] = [pending]
                loop.call_soon(self._flush, loop)
            else:
                gathered.append(pending)
            await pending._future
        except BaseException as error:
            if self._withdraw(loop, pending):
                raise
            pending._abandoned = True
            # The loop may have been interrupted before it resolved a settled entry.
            while (
                isinstance(error, asyncio.CancelledError)
                and not pending.done
                and not pending.is_settled
            ):
                pending._future = loop.create_future()
                try:
                    await pending._future
                except asyncio.CancelledError:
                    continue
            raise

    def _withdraw(self, loop: asyncio.AbstractEventLoop, pending: PendingCommit) -> bool:
        """Take back an entry if the loop was interrupted before it was queued."""
        gathered = self._gathered.get(loop, [])
        if pending not in gathered:
            return False
        gathered.remove(pending)
        if not gathered:
            del self._gathered[loop]
        return True

    def settle_abandoned(self) -> list[PendingCommit]:
        """Return the queued entries whose callers were interrupted, and let the thread finish them.

        Usually it does that already.
        """
        with self._lock:
            abandoned = [entry for entry in self._pending if entry._abandoned and not entry.done]
            if abandoned and not self._closed and (not self._leader or self._is_leader_lost()):
                self._give_turn_to_thread()
        return abandoned

    def close(self) -> None:
        """Refuse new callers, finish the commits in flight, and end the thread."""
        with self._lock:
            self._closed = True
            # The thread must not end before the last leader, which may hand it the remaining queue.
            self._idle.wait_for(lambda: not self._leader)
            thread = self._thread
        if thread is not None:
            self._turns.put(False)
            thread.join()

    # -- async: one iteration of the loop is one batch -------------------------------------------

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.get(loop, [])
        refused: Exception | None = None
        with self._lock:
            if self._closed:
                refused = StoreClosed(
                    "the store was closed while the append waited; nothing was written"
                )
            elif not self._leader:
                try:
                    self._give_turn_to_thread()
                except RuntimeError:
                    refused = Unavailable("no thread can be started to write; nothing was written")
            # No call from here on: after an interrupt they must be in one of the two.
            if refused is None:
                self._pending += gathered
            if gathered:
                del self._gathered[loop]
        if refused is not None:
            for pending in gathered:
                pending.error = refused
            _resolve_async(gathered)

    def _give_turn_to_thread(self, own: PendingCommit | None = None) -> None:
        """Make the thread the leader. The lock is held. If no thread can start, nothing changes."""
        if self._thread is None or not self._thread.is_alive():
            # Noted before it starts: after an interrupt in between it must not be forgotten.
            thread = threading.Thread(target=self._serve, name="holdfast-commit", daemon=True)
            before, self._thread = self._thread, thread
            try:
                thread.start()
            except RuntimeError:
                self._thread = before
                raise
        leader = self._thread.ident or 0
        # Nothing can interrupt these: a leader must have its turn.
        if own is not None:
            own._leads = False
        self._leader = leader
        self._turns.put(True)

    def _serve(self) -> None:
        while self._turns.get():
            turn = PendingCommit()
            turn._leads = True
            self._lead(turn, BaseException)  # no caller would see an error that is raised here
        self._turns.put(False)  # for another thread, if an interrupt has led to two

    # -- leading ---------------------------------------------------------------------------------

    def _lead(self, own: PendingCommit, caught: type[BaseException] = Exception) -> None:
        """Commit batches until `own` is done, then hand over. `caught` errors fail the batch."""
        while True:
            with self._lock:
                # They stay queued until they are resolved: after an interrupt the next leader finds
                # them.
                batch = self._pending[:BATCH_MEMBERS]
            self._commit_batch(_filter_unsettled(batch), caught)
            retried = _filter_unsettled(batch)
            if len(batch) == 1 and batch[0] is own and not retried:
                own.done = True  # no other caller has to be woken
            else:
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
        for pending in self._pending:
            # Skip settled ones: an interrupted leader may have woken that caller already.
            if pending._wake is not None and not pending._abandoned and not pending.is_settled:
                # No Python call between these two statements: an interrupt could strike there.
                own._leads, pending._leads, self._leader = False, True, pending._thread
                pending._wake.release()
                return
        if self._pending:
            self._give_turn_to_thread(own)
        else:
            own._leads, self._leader = False, 0
            if self._closed:  # only `close` waits for this
                self._idle.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed; open it again")


_LEADING: Final = (Committer.submit.__code__, Committer._serve.__code__)


def _is_on_stack(frame: FrameType | None) -> bool:
    """Return whether a thread, by its innermost frame, is in a function that leads."""
    while frame is not None:
        if frame.f_code in _LEADING:
            return True
        frame = frame.f_back
    return False


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
