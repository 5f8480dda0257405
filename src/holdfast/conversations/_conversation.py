"""A conversation, and its async twin."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from .. import _clock
from .. import _operations as ops
from .._arguments import whole_number
from .._bell import Bell
from .._leases import is_dead
from .._operations import Operation
from ..backends import Appended
from ..errors import HoldfastError
from . import _lifecycle, _windowing
from ._entries import ConversationInfo, Draft, Entry, Imported, Problem
from ._shape import IMPORT_BATCH, Pending, Shape, as_summary
from ._tokens import Counter
from ._turns import Turn

Path = str | os.PathLike[str]
T = TypeVar("T")


class Conversation(Shape):
    """A conversation that survives its process. No I/O until it is used; it exists from its first message.

    Use it from as many threads as you like. What other processes append is seen by the next read.
    """

    def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> Appended:
        """Append messages (dicts, or objects of the OpenAI SDK), all or none; durable when this returns.

        The same `id` again is a no-op (`duplicate=True`), other content under it raises `IdReused`. With `if_version`
        the conversation must be at that version, else `Conflict` and nothing is written. `meta` is kept beside each
        message and never sent to a model. `pin=True` keeps the messages in every window.
        """
        make = self._noting(self._appending(messages, id, if_version, meta, pin))
        return ops.run(self._log, make()) if if_version is not None else ops.run_until_settled(self._log, make)

    def sync(self, messages: Iterable[object]) -> int:
        """Hand over the whole list of messages; only what is new is appended. How many that were.

        If the list has parted from what is stored, the conversation is rewound to where they part, with a warning in the
        log; if it was merely trimmed to save tokens, all that is stored stays. `Conflict` if what would be undone was
        stored by somebody else since this object's last `sync`: a list has one owner.
        """
        return self._synced(self._settle(self._syncing(messages)))

    def messages(self, *, last: int | None = None) -> list[Any]:
        """The live messages, oldest first; with `last`, the newest so many (which is all that is read)."""
        return self._as_messages(self._settle(lambda: self._entries(last, 0)))

    def entries(self, *, last: int | None = None, after: int = 0) -> list[Entry]:
        """The live messages with version, time and meta; with `after`, those of a later version."""
        return self._as_entries(self._settle(lambda: self._entries(last, after)))

    def count(self) -> int:
        """How many live messages there are, after rewinds."""
        return self._settle(self._count)

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        return True  # an empty conversation is a conversation; asking costs no read

    def version(self) -> int:
        """The newest version, 0 if there is no message yet."""
        return self._settle(self._version)

    def window(self, max_tokens: int, *, system: object | None = None, counter: Counter | None = None) -> list[Any]:
        """The newest messages that fit into `max_tokens`, ready to be sent: a history that no provider refuses.

        Whole exchanges only; tool calls stay with their results and reasoning with what it belongs to. The system prompt
        (`system`, in place of a stored one) and pinned messages stay; a stored summary stands for what is cut.
        `BudgetExceeded` if the newest exchange alone does not fit. `counter` says how many tokens a message takes.
        """
        return self._was_read(self._settle(lambda: self._window(max_tokens, system, counter)))

    def summarize(self, fn: Callable[[list[Any]], object], *, keep_last: int = 20) -> Entry | None:
        """Have `fn` summarise all but the newest `keep_last` messages, and store what it returns (text or a message).

        `fn` gets the summary so far, if there is one, and the messages since. The originals stay; windows use the
        summary in place of what they cut. None if there was nothing new to summarise.
        """
        part = self._settle(lambda: self._chapter(keep_last))
        if part is None:
            return None
        return self._summarized(part, self._settle(self._summarizing(part, as_summary(fn(part.messages)))))

    def validate(self) -> list[Problem]:
        """What a provider would refuse in the live messages: dangling tool calls, orphan results, …"""
        return self._settle(lambda: _windowing.problems(self._key))

    def repair(self) -> list[Problem]:
        """Mend what `validate` finds, and keep an interrupted answer as such. What was mended; again: nothing.

        Stored as events of their own and logged; the originals stay in the log.
        """
        return self._repaired(self._settle(self._repairing()))

    @property
    def pending(self) -> Entry | None:
        """The user's message that has no complete answer yet."""
        return self._settle(lambda: _windowing.pending(self._key))

    def answer(self, to: int) -> Entry | None:
        """The answer to the user's message of version `to`; None if there is none yet.

        What a retried request returns: `chat.answer(chat.append(message, id=request_id).last)`.
        """
        return self._settle(lambda: _windowing.answer(self._key, whole_number(to, "to")))

    @contextmanager
    def turn(self, *, lease: float = 30.0, wait: float | None = None) -> Iterator[Conversation]:
        """Keep other turns out for the length of a `with` block: two requests on one conversation do not interleave.

        Waits for its turn, at most `wait` seconds (then `Held`). It is renewed while the process lives; if it is
        lost all the same, whatever this block would write next raises `LeaseLost`.
        """
        if self._holder() is not None:
            yield self
            return
        turn = self._new_turn(lease)
        waiting = self._waiting(wait)
        gone = None
        try:
            while (held := self._settle(self._beginning(turn, gone))) is not None:
                gone = held.owner if is_dead(held.owner) else None
                if gone is None:
                    _clock.sleep(waiting(held))
            with self._inside(turn):
                yield self._held_by(turn.holder)
        finally:
            self._give_back(turn)

    def _held_by(self, holder: str) -> Conversation:
        return Conversation(self._log, self._key, holder, self._about)

    def _give_back(self, turn: Turn) -> None:
        try:
            self._settle(self._ending(turn))
        except HoldfastError as error:
            self._not_ended(error)

    def pop(self) -> Any | None:
        """Take the newest message out and return it; None if there is none. No two callers get the same one."""
        found = self._settle(self._popping())
        return found.message if found else None

    def rewind(self, *, to: int) -> int:
        """Undo everything after version `to`; how many messages that removed. They stay in the log: rewind can be undone."""
        return self._settle(self._rewinding(to))

    def clear(self) -> None:
        """Begin again with no messages. What was said stays in the log; `delete` removes it."""
        self._settle(self._rewinding(0))

    def fork(self, id: str, *, at: int | None = None) -> Conversation:
        """Another conversation that begins with this one's messages, up to version `at`. Copies nothing."""
        child = self._child(id)
        self._settle(self._forking(child, at))
        return Conversation(self._log, child)

    def follow(self, *, after: int = 0, timeout: float | None = None) -> Iterator[Entry]:
        """Messages as they are appended (also by `repair`), from version `after` + 1 on, without gaps; waits for more.

        Give the version of the last entry you have seen as `after` to go on later. With `timeout`, it ends when nothing
        came for so many seconds. Shows what is appended, also if it is rewound later.
        """
        cursor, bell = self._cursor(after, timeout), Bell(self._log.backend, self._key)
        try:
            while True:
                page: list[Entry] = self._settle(cursor.page)
                yield from page
                if page:
                    bell.found()
                elif cursor.over:
                    return
                else:
                    bell.wait()
        finally:
            bell.close()

    def draft(self, text: str, *, of: str) -> None:
        """Keep a piece of an answer that is still being streamed; `of` names the answer. It is not a message (yet)."""
        self._settle(self._drafting(text, of))

    def drafts(self) -> list[Draft]:
        """Answers that were begun and never finished. The next answer settles them; `repair` keeps the newest."""
        return self._settle(self._drafts)

    def import_json(self, path: Path, *, salvage: bool = False, pair: str | None = None) -> Imported:
        """Append the messages of a JSON file: a list, JSON Lines, or one list per pair of agents (`pair` says which).

        The same file again adds nothing. A damaged file raises `CorruptFile` and nothing is stored; `salvage=True`
        takes the messages before the damage.
        """
        from ._json_files import read_messages

        found = read_messages(path, salvage=salvage, pair=pair)
        for at in range(0, len(found.messages), IMPORT_BATCH):
            self.append(*found.messages[at : at + IMPORT_BATCH], id=self._import_id(found.digest, pair, at))
        return Imported(len(found.messages), found.complete)

    def export_json(self, path: Path, *, in_clear: bool = False) -> None:
        """Write the live messages as a JSON list. The file is replaced in one step, or not at all.

        Of an encrypted store, only with `in_clear=True`: nobody can read the store, and anybody the file.
        """
        self._may_export(in_clear)
        from ._json_files import as_json, write_atomically

        write_atomically(path, as_json(self.messages()))

    def expire(self, ttl: float | timedelta | None) -> None:
        """End this conversation `ttl` seconds from now; then it raises `Expired`. None: never."""
        self._settle(self._expiring(ttl))

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the conversation and its large values; False if there was none. `HasForks` if others begin with it."""
        return self._settle(self._deleting(reason))

    def info(self) -> ConversationInfo | None:
        """The conversation at a glance; None if there is none."""
        return self._settle(lambda: _lifecycle.info(self._key))

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, self._noting(make))


class AsyncConversation(Shape):
    """A `Conversation` whose methods are awaited. Usable from several event loops."""

    async def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> Appended:
        """`Conversation.append`, awaited. If cancelled while the write is under way, it may have been stored: repeat with the same `id`."""
        make = self._noting(self._appending(messages, id, if_version, meta, pin))
        run = (
            ops.run_async(self._log, make()) if if_version is not None else ops.run_until_settled_async(self._log, make)
        )
        return await run

    async def sync(self, messages: Iterable[object]) -> int:
        """`Conversation.sync`, awaited."""
        return self._synced(await self._settle(self._syncing(messages)))

    async def messages(self, *, last: int | None = None) -> list[Any]:
        """`Conversation.messages`, awaited."""
        return self._as_messages(await self._settle(lambda: self._entries(last, 0)))

    async def entries(self, *, last: int | None = None, after: int = 0) -> list[Entry]:
        """`Conversation.entries`, awaited."""
        return self._as_entries(await self._settle(lambda: self._entries(last, after)))

    async def count(self) -> int:
        """`Conversation.count`, awaited."""
        return await self._settle(self._count)

    async def version(self) -> int:
        """`Conversation.version`, awaited."""
        return await self._settle(self._version)

    async def window(
        self, max_tokens: int, *, system: object | None = None, counter: Counter | None = None
    ) -> list[Any]:
        """`Conversation.window`, awaited."""
        return self._was_read(await self._settle(lambda: self._window(max_tokens, system, counter)))

    async def summarize(self, fn: Callable[[list[Any]], object], *, keep_last: int = 20) -> Entry | None:
        """`Conversation.summarize`, awaited; `fn` may be async."""
        part = await self._settle(lambda: self._chapter(keep_last))
        if part is None:
            return None
        summary = fn(part.messages)
        if inspect.isawaitable(summary):
            summary = await summary
        return self._summarized(part, await self._settle(self._summarizing(part, as_summary(summary))))

    async def validate(self) -> list[Problem]:
        """`Conversation.validate`, awaited."""
        return await self._settle(lambda: _windowing.problems(self._key))

    async def repair(self) -> list[Problem]:
        """`Conversation.repair`, awaited."""
        return self._repaired(await self._settle(self._repairing()))

    @property
    def pending(self) -> Awaitable[Entry | None]:
        """`Conversation.pending`: `await chat.pending`."""
        return Pending(lambda: self._settle(lambda: _windowing.pending(self._key)))

    async def answer(self, to: int) -> Entry | None:
        """`Conversation.answer`, awaited."""
        return await self._settle(lambda: _windowing.answer(self._key, whole_number(to, "to")))

    @asynccontextmanager
    async def turn(self, *, lease: float = 30.0, wait: float | None = None) -> AsyncIterator[AsyncConversation]:
        """`Conversation.turn`: `async with chat.turn(): …`."""
        import asyncio

        if self._holder() is not None:
            yield self
            return
        turn = self._new_turn(lease)
        waiting = self._waiting(wait)
        gone = None
        try:
            while (held := await self._settle(self._beginning(turn, gone))) is not None:
                gone = held.owner if is_dead(held.owner) else None
                if gone is None:
                    await _clock.sleep_async(waiting(held))
            with self._inside(turn):
                yield self._held_by(turn.holder)
        finally:
            giving_back, cancelled = asyncio.ensure_future(self._give_back(turn)), False
            while not giving_back.done():  # to the end, also when cancelled, and cancelled again
                try:
                    await asyncio.shield(giving_back)
                except asyncio.CancelledError:
                    cancelled = True
            if cancelled:
                raise asyncio.CancelledError

    def _held_by(self, holder: str) -> AsyncConversation:
        return AsyncConversation(self._log, self._key, holder, self._about)

    async def _give_back(self, turn: Turn) -> None:
        try:
            await self._settle(self._ending(turn))
        except HoldfastError as error:
            self._not_ended(error)

    async def pop(self) -> Any | None:
        """`Conversation.pop`, awaited."""
        found = await self._settle(self._popping())
        return found.message if found else None

    async def rewind(self, *, to: int) -> int:
        """`Conversation.rewind`, awaited."""
        return await self._settle(self._rewinding(to))

    async def clear(self) -> None:
        """`Conversation.clear`, awaited."""
        await self._settle(self._rewinding(0))

    async def fork(self, id: str, *, at: int | None = None) -> AsyncConversation:
        """`Conversation.fork`, awaited."""
        child = self._child(id)
        await self._settle(self._forking(child, at))
        return AsyncConversation(self._log, child)

    async def follow(self, *, after: int = 0, timeout: float | None = None) -> AsyncIterator[Entry]:
        """`Conversation.follow` as an async iterator."""
        cursor, bell = self._cursor(after, timeout), Bell(self._log.backend, self._key)
        try:
            while True:
                page = await self._settle(cursor.page)
                for entry in page:
                    yield entry
                if page:
                    bell.found()
                elif cursor.over:
                    return
                else:
                    await bell.wait_async()
        finally:
            bell.close()

    async def draft(self, text: str, *, of: str) -> None:
        """`Conversation.draft`, awaited."""
        await self._settle(self._drafting(text, of))

    async def drafts(self) -> list[Draft]:
        """`Conversation.drafts`, awaited."""
        return await self._settle(self._drafts)

    async def import_json(self, path: Path, *, salvage: bool = False, pair: str | None = None) -> Imported:
        """`Conversation.import_json`, awaited."""
        from ._json_files import read_messages

        found = await self._log.in_thread(lambda: read_messages(path, salvage=salvage, pair=pair))
        for at in range(0, len(found.messages), IMPORT_BATCH):
            await self.append(*found.messages[at : at + IMPORT_BATCH], id=self._import_id(found.digest, pair, at))
        return Imported(len(found.messages), found.complete)

    async def export_json(self, path: Path, *, in_clear: bool = False) -> None:
        """`Conversation.export_json`, awaited."""
        self._may_export(in_clear)
        messages = await self.messages()
        from ._json_files import as_json, write_atomically

        await self._log.in_thread(lambda: write_atomically(path, as_json(messages)))

    async def expire(self, ttl: float | timedelta | None) -> None:
        """`Conversation.expire`, awaited."""
        await self._settle(self._expiring(ttl))

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Conversation.delete`, awaited."""
        return await self._settle(self._deleting(reason))

    async def info(self) -> ConversationInfo | None:
        """`Conversation.info`, awaited."""
        return await self._settle(lambda: _lifecycle.info(self._key))

    async def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return await ops.run_until_settled_async(self._log, self._noting(make))
