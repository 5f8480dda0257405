"""A conversation, and its async twin."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from ..backends import AppendResult, clock
from ..errors import HoldfastError
from ..log import operations as ops
from ..log.leases import is_dead
from ..log.operations import Operation
from ..log.polling import ChangeWaiter
from ..log.validation import whole_number
from . import lifecycle, window
from .base import IMPORT_BATCH, ConversationBase, as_summary
from .entries import ConversationView, Draft, ImportResult, MessageEntry, MessageProblem
from .tokens import Counter
from .turns import Turn

Path = str | os.PathLike[str]
T = TypeVar("T")


class Conversation(ConversationBase):
    """A conversation that survives its process. It exists from its first message.

    Any number of threads may use it. What other processes append is seen by the next read.
    """

    def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """Append messages, all or none. They are durable when this returns.

        Args:
            *messages: Dicts, or message objects of the OpenAI SDK.
            id: Makes the append safe to repeat: the same id and content is stored once.
            if_version: The version that the conversation must be at.
            meta: Facts to keep beside each message. They are never sent to a model.
            pin: Keep the messages in every window.

        Returns:
            The versions of the messages, and whether it was a `duplicate`.

        Raises:
            Conflict: The conversation is not at `if_version`. Nothing was written.
            IdReused: The id was used before, for other content.
            NotSerializable: A message cannot be stored.
            OutcomeUnknown: The engine did not say whether it was stored. Repeat it with the same
                id.

        Example:
            >>> chat.append({"role": "user", "content": "Hello"}, id="request-17")
        """
        make = self._noting(self._appending(messages, id, if_version, meta, pin))
        return (
            ops.run(self._log, make())
            if if_version is not None
            else ops.run_until_settled(self._log, make)
        )

    def sync(self, messages: Iterable[object]) -> int:
        """Hand over the whole list of messages; only what is new is appended. Returns how many.

        If the list differs from what is stored, the conversation is rewound to where they part,
        with a warning in the log. If the list was only trimmed to save tokens, all that is stored
        stays. `Conflict` if somebody else stored what would be undone: a list has one owner.
        """
        return self._synced(self._settle(self._syncing(messages)))

    def messages(self, *, last: int | None = None) -> list[Any]:
        """The live messages, oldest first; with `last`, only the newest."""
        return self._as_messages(self._settle(lambda: self._entries(last, 0)))

    def entries(self, *, last: int | None = None, after: int = 0) -> list[MessageEntry]:
        """The live messages with version, time and meta; with `after`, those of a later version."""
        return self._as_entries(self._settle(lambda: self._entries(last, after)))

    def count(self) -> int:
        """How many live messages there are, after rewinds."""
        return self._settle(self._count)

    def version(self) -> int:
        """The newest version, 0 if there is no message yet."""
        return self._settle(self._version)

    def window(
        self, max_tokens: int, *, system: object | None = None, counter: Counter | None = None
    ) -> list[Any]:
        """The newest messages that fit into `max_tokens`, as a history that every provider accepts.

        Only whole exchanges: tool calls stay with their results, and reasoning with what it belongs
        to. The system prompt and pinned messages stay. A stored summary stands for what is cut.

        Args:
            max_tokens: How many tokens the messages may take.
            system: A system prompt as text, message or messages, in place of a stored one.
            counter: A function from a message to its number of tokens. Default: an estimate.

        Returns:
            The messages, to be sent as they are.

        Raises:
            BudgetExceeded: The newest exchange alone does not fit.

        Example:
            >>> client.chat.completions.create(model="gpt-5", messages=chat.window(8000))
        """
        return self._was_read(self._settle(lambda: self._window(max_tokens, system, counter)))

    def summarize(
        self, fn: Callable[[list[Any]], object], *, keep_last: int = 20
    ) -> MessageEntry | None:
        """Have `fn` summarize all but the newest `keep_last` messages, and store what it returns.

        `fn` gets the summary so far, if there is one, and the messages since. It returns text or a
        message. The originals stay; windows use the summary in place of what they cut. None if
        nothing is new.
        """
        part = self._settle(lambda: self._chapter(keep_last))
        if part is None:
            return None
        return self._summarized(
            part, self._settle(self._summarizing(part, as_summary(fn(part.messages))))
        )

    def validate(self) -> list[MessageProblem]:
        """What a provider would refuse in the live messages, such as dangling tool calls."""
        return self._settle(lambda: window.problems(self._key))

    def repair(self) -> list[MessageProblem]:
        """Repair what `validate` finds, and keep an interrupted answer as such.

        Returns what was repaired. Repairs are events of their own and are logged; the originals
        stay in the log.
        """
        return self._repaired(self._settle(self._repairing()))

    def pending(self) -> MessageEntry | None:
        """The user's message that has no complete answer yet; None if there is none."""
        return self._settle(lambda: window.pending(self._key))

    def answer(self, version: int) -> MessageEntry | None:
        """The answer to the user's message of that version; None if there is none yet.

        For a retried request: `chat.answer(chat.append(message, id=request_id).last)`.
        """
        return self._settle(lambda: window.answer(self._key, whole_number(version, "version")))

    @contextmanager
    def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> Iterator[Conversation]:
        """Keep other turns out of a `with` block, so that two requests do not interleave.

        The turn is renewed while the process lives.

        Args:
            lease: How long others wait if this process dies, in seconds or as a timedelta.
            wait: How long to wait for the turn. None: forever.

        Returns:
            The conversation, for the block.

        Raises:
            LeaseHeld: Somebody else had the turn for longer than `wait`.

            If the turn is lost all the same, the next write in the block raises `LeaseLost`.

        Example:
            >>> with chat.turn(wait=30) as turn:
            ...     turn.append(message)
            ...     turn.append(ask_model(turn.window(8000)))
        """
        if self._owner() is not None:
            yield self
            return
        turn = self._new_turn(lease)
        waiting = self._waiting(wait)
        gone = None
        try:
            while (held := self._settle(self._beginning(turn, gone))) is not None:
                gone = held.owner if is_dead(held.owner) else None
                if gone is None:
                    clock.sleep(waiting(held))
            with self._inside(turn):
                yield self._held_by(turn.owner)
        finally:
            self._give_back(turn)

    def _held_by(self, owner: str) -> Conversation:
        return Conversation(self._log, self._key, owner, self._about)

    def _give_back(self, turn: Turn) -> None:
        try:
            self._settle(self._ending(turn))
        except HoldfastError as error:
            self._not_ended(error)

    def pop(self) -> Any | None:
        """Remove the newest message and return it; None if there is none.

        Only one caller gets it.
        """
        found = self._settle(self._popping())
        return found.message if found else None

    def rewind(self, *, version: int) -> int:
        """Undo everything after `version`, and return how many messages that removed.

        They stay in the log: a rewind can be undone.
        """
        return self._settle(self._rewinding(version))

    def clear(self) -> None:
        """Start again with no messages. What was said stays in the log; `delete` removes it."""
        self._settle(self._rewinding(0))

    def fork(self, id: str, *, version: int | None = None) -> Conversation:
        """Start another conversation with this one's messages up to `version`. Copies nothing."""
        child = self._child(id)
        self._settle(self._forking(child, version))
        return Conversation(self._log, child)

    def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> Iterator[MessageEntry]:
        """Messages as they are appended, from version `after` + 1 on, without gaps. Waits for more.

        To continue later, give the version of the last entry you have seen. With `timeout` it ends
        when nothing came for so long. It shows all that is appended, also by `repair`, and what is
        rewound later.
        """
        cursor, bell = self._cursor(after, timeout), ChangeWaiter(self._log.backend, self._key)
        try:
            while True:
                page: list[MessageEntry] = self._settle(cursor.page)
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
        """Store a piece of an answer that is being streamed; `of` names it.

        It is no message yet.
        """
        self._settle(self._drafting(text, of))

    def drafts(self) -> list[Draft]:
        """Answers that were started and never finished.

        The next answer settles them; `repair` keeps the newest.
        """
        return self._settle(self._drafts)

    def import_json(
        self, path: Path, *, salvage: bool = False, pair: str | None = None
    ) -> ImportResult:
        """Append the messages of a JSON file: a list, JSON Lines, or one list per pair of agents.

        `pair` says which list. The same file again adds nothing. A damaged file raises
        `CorruptFile` and nothing is stored; `salvage=True` takes the messages before the damage.
        """
        from .json_files import read_messages

        found = read_messages(path, salvage=salvage, pair=pair)
        for at in range(0, len(found.messages), IMPORT_BATCH):
            self.append(
                *found.messages[at : at + IMPORT_BATCH], id=self._import_id(found.digest, pair, at)
            )
        return ImportResult(len(found.messages), found.complete)

    def export_json(self, path: Path, *, plaintext: bool = False) -> None:
        """Write the live messages as a JSON list. The file is replaced in one step, or not at all.

        The file is not encrypted, so an encrypted store wants `plaintext=True`.
        """
        self._may_export(plaintext)
        from .json_files import as_json, write_atomically

        write_atomically(path, as_json(self.messages()))

    def expire(self, ttl: float | timedelta | None) -> None:
        """Let the conversation expire after `ttl`; then it raises `Expired`. None: never."""
        self._settle(self._expiring(ttl))

    def delete(self, *, reason: str = "deleted by the program") -> bool:
        """Delete the conversation with its large values; False if there was none.

        `HasForks` if other conversations begin with it.
        """
        return self._settle(self._deleting(reason))

    def view(self) -> ConversationView:
        """The conversation at a glance: messages, times, where it was forked. `NotFound` if there is none."""
        return self._settle(lambda: lifecycle.view(self._key))

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, self._noting(make))


class AsyncConversation(ConversationBase):
    """A `Conversation` whose methods are awaited. Several event loops may use it."""

    async def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """`Conversation.append`, awaited. If cancelled during the write, it may have been stored.

        Repeat it with the same `id` to be sure.
        """
        make = self._noting(self._appending(messages, id, if_version, meta, pin))
        run = (
            ops.run_async(self._log, make())
            if if_version is not None
            else ops.run_until_settled_async(self._log, make)
        )
        return await run

    async def sync(self, messages: Iterable[object]) -> int:
        """`Conversation.sync`, awaited."""
        return self._synced(await self._settle(self._syncing(messages)))

    async def messages(self, *, last: int | None = None) -> list[Any]:
        """`Conversation.messages`, awaited."""
        return self._as_messages(await self._settle(lambda: self._entries(last, 0)))

    async def entries(self, *, last: int | None = None, after: int = 0) -> list[MessageEntry]:
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

    async def summarize(
        self, fn: Callable[[list[Any]], object], *, keep_last: int = 20
    ) -> MessageEntry | None:
        """`Conversation.summarize`, awaited; `fn` may be async."""
        part = await self._settle(lambda: self._chapter(keep_last))
        if part is None:
            return None
        summary = fn(part.messages)
        if inspect.isawaitable(summary):
            summary = await summary
        return self._summarized(
            part, await self._settle(self._summarizing(part, as_summary(summary)))
        )

    async def validate(self) -> list[MessageProblem]:
        """`Conversation.validate`, awaited."""
        return await self._settle(lambda: window.problems(self._key))

    async def repair(self) -> list[MessageProblem]:
        """`Conversation.repair`, awaited."""
        return self._repaired(await self._settle(self._repairing()))

    async def pending(self) -> MessageEntry | None:
        """`Conversation.pending`, awaited."""
        return await self._settle(lambda: window.pending(self._key))

    async def answer(self, version: int) -> MessageEntry | None:
        """`Conversation.answer`, awaited."""
        return await self._settle(
            lambda: window.answer(self._key, whole_number(version, "version"))
        )

    @asynccontextmanager
    async def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> AsyncIterator[AsyncConversation]:
        """`Conversation.turn`: `async with chat.turn(): …`."""
        import asyncio

        if self._owner() is not None:
            yield self
            return
        turn = self._new_turn(lease)
        waiting = self._waiting(wait)
        gone = None
        try:
            while (held := await self._settle(self._beginning(turn, gone))) is not None:
                gone = held.owner if is_dead(held.owner) else None
                if gone is None:
                    await clock.sleep_async(waiting(held))
            with self._inside(turn):
                yield self._held_by(turn.owner)
        finally:
            giving_back, cancelled = asyncio.ensure_future(self._give_back(turn)), False
            while not giving_back.done():  # to the end, also when cancelled, and cancelled again
                try:
                    await asyncio.shield(giving_back)
                except asyncio.CancelledError:
                    cancelled = True
            if cancelled:
                raise asyncio.CancelledError

    def _held_by(self, owner: str) -> AsyncConversation:
        return AsyncConversation(self._log, self._key, owner, self._about)

    async def _give_back(self, turn: Turn) -> None:
        try:
            await self._settle(self._ending(turn))
        except HoldfastError as error:
            self._not_ended(error)

    async def pop(self) -> Any | None:
        """`Conversation.pop`, awaited."""
        found = await self._settle(self._popping())
        return found.message if found else None

    async def rewind(self, *, version: int) -> int:
        """`Conversation.rewind`, awaited."""
        return await self._settle(self._rewinding(version))

    async def clear(self) -> None:
        """`Conversation.clear`, awaited."""
        await self._settle(self._rewinding(0))

    async def fork(self, id: str, *, version: int | None = None) -> AsyncConversation:
        """`Conversation.fork`, awaited."""
        child = self._child(id)
        await self._settle(self._forking(child, version))
        return AsyncConversation(self._log, child)

    async def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> AsyncIterator[MessageEntry]:
        """`Conversation.follow` as an async iterator."""
        cursor, bell = self._cursor(after, timeout), ChangeWaiter(self._log.backend, self._key)
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

    async def import_json(
        self, path: Path, *, salvage: bool = False, pair: str | None = None
    ) -> ImportResult:
        """`Conversation.import_json`, awaited."""
        from .json_files import read_messages

        found = await self._log.in_thread(lambda: read_messages(path, salvage=salvage, pair=pair))
        for at in range(0, len(found.messages), IMPORT_BATCH):
            await self.append(
                *found.messages[at : at + IMPORT_BATCH], id=self._import_id(found.digest, pair, at)
            )
        return ImportResult(len(found.messages), found.complete)

    async def export_json(self, path: Path, *, plaintext: bool = False) -> None:
        """`Conversation.export_json`, awaited."""
        self._may_export(plaintext)
        messages = await self.messages()
        from .json_files import as_json, write_atomically

        await self._log.in_thread(lambda: write_atomically(path, as_json(messages)))

    async def expire(self, ttl: float | timedelta | None) -> None:
        """`Conversation.expire`, awaited."""
        await self._settle(self._expiring(ttl))

    async def delete(self, *, reason: str = "deleted by the program") -> bool:
        """`Conversation.delete`, awaited."""
        return await self._settle(self._deleting(reason))

    async def view(self) -> ConversationView:
        """`Conversation.view`, awaited."""
        return await self._settle(lambda: lifecycle.view(self._key))

    async def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return await ops.run_until_settled_async(self._log, self._noting(make))
