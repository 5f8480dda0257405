"""`Conversation` and `AsyncConversation`: append, read, repair, fork and export messages."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

from ..backends import AppendResult
from ..errors import Conflict, HoldfastError
from ..log import operations as ops
from ..log.operations import Operation
from ..log.polling import ChangeWaiter
from ..log.reprs import html_table, shorten_cell
from ..log.validation import check_int
from . import lifecycle, window
from .base import ConversationBase, as_summary
from .entries import ConversationView, Draft, DraftPiece, ImportResult, MessageEntry, MessageProblem
from .read import FollowCursor
from .tokens import Counter
from .turns import AsyncTurnBlock, TurnBlock

Path = str | os.PathLike[str]
T = TypeVar("T")

MAX_HTML_MESSAGES: Final = 20
"""How many messages a notebook shows."""


class Conversation(ConversationBase):
    """A conversation that outlives its process. It exists from its first message on.

    Any number of threads may share it. The next read sees what other processes have appended.
    """

    def append(
        self,
        *messages: object,
        id: str | None = None,
        if_version: int | None = None,
        meta: dict[str, Any] | None = None,
        pin: bool = False,
    ) -> AppendResult:
        """Append messages atomically. They are durable when this returns.

        Args:
            *messages: Dicts, or message objects of the OpenAI SDK.
            id: Makes the append safe to repeat: the same id and content is stored once.
            if_version: The version that the conversation must be at.
            meta: Data to store with each message. It is never sent to a model.
            pin: Keep the messages in every window.

        Returns:
            The versions of the messages, and whether the append was a `duplicate`.

        Raises:
            Conflict: The conversation is not at `if_version`. Nothing was written.
            IdReused: The id was used before, with different content.
            NotSerializable: A message cannot be stored.
            OutcomeUnknown: The messages may or may not have been stored. Repeat the call with the
                same id.

        Example:
            >>> chat.append({"role": "user", "content": "Hello"}, id="request-17")
        """
        if id is None and if_version is None and meta is None and not pin:
            plain = self._prepare_plain_append(messages)
            if plain is not None:
                try:
                    return self._finish_plain_append(plain, self._log.handle(plain.request))
                except Conflict:
                    pass  # deleted since; nothing was stored
        make = self._prepare_append(messages, id, if_version, meta, pin)
        if if_version is None:
            return self._settle(make)
        return ops.run(self._log, self._with_subject(make)())

    def sync(self, messages: Iterable[object]) -> int:
        """Append the new messages of a complete list, and return their number.

        If the list differs from the stored messages, the conversation is rewound to the last common
        message, with a warning in the log. If the list was only trimmed to save tokens, all stored
        messages stay. Raises `Conflict` if this would undo messages that another process stored: a
        list has one owner.
        """
        return self._finish_sync(self._settle(self._prepare_sync(messages)))

    def messages(self, *, last: int | None = None) -> list[Any]:
        """Return the live messages, oldest first, or only the newest `last` of them."""
        return self._report_read(self._settle(lambda: self._messages_gen(last)))

    def entries(self, *, last: int | None = None, after: int = 0) -> list[MessageEntry]:
        """Return the live messages with version, time and meta.

        `last` limits them to the newest ones, and `after` to those after a version.
        """
        return self._as_entries(self._settle(lambda: self._entries_gen(last, after)))

    def count(self) -> int:
        """Return the number of live messages. Rewound ones don't count."""
        return self._settle(self._count_gen)

    def _repr_html_(self) -> str:
        """Return the newest messages, for a notebook."""
        title = f"Conversation {self.id}"
        try:
            entries = self.entries(last=MAX_HTML_MESSAGES)
        except HoldfastError as error:
            return html_table(title, (), note=f"can't be read: {type(error).__name__}")
        rows = [
            (
                entry.version,
                entry.message.get("role") or entry.message.get("type") or "",
                shorten_cell(entry.message.get("content") or entry.message),
            )
            for entry in entries
        ]
        return html_table(title, rows, ("version", "role", "message"), "" if rows else "is empty")

    def version(self) -> int:
        """Return the newest version; 0 if there is no message yet."""
        return self._settle(self._version_gen)

    def window(
        self, max_tokens: int, *, system: object | None = None, counter: Counter | None = None
    ) -> list[Any]:
        """Return the newest messages that fit `max_tokens`, as a history every provider accepts.

        Exchanges are kept whole: tool calls stay with their results, and reasoning with its output.
        The system prompt and pinned messages stay. A stored summary replaces the messages that are
        cut.

        Args:
            max_tokens: The maximum number of tokens of all messages together.
            system: A system prompt as text, message or messages. It replaces a stored one.
            counter: A function from a message to its number of tokens. Default: an estimate.

        Returns:
            The messages, ready to be sent.

        Raises:
            BudgetExceeded: The newest exchange alone does not fit.

        Example:
            >>> client.chat.completions.create(model="gpt-5", messages=chat.window(8000))
        """
        return self._report_read(
            self._settle(lambda: self._window_gen(max_tokens, system, counter))
        )

    def summarize(
        self, fn: Callable[[list[Any]], object], *, keep_last: int = 20
    ) -> MessageEntry | None:
        """Summarize all but the newest `keep_last` messages with `fn`, and store the summary.

        `fn` gets the summary so far, if there is one, and the messages since. It returns text or a
        message. The originals stay; a window uses the summary in place of the messages it cuts.
        Returns None if there is nothing new to summarize.
        """
        part = self._settle(lambda: self._summary_range_gen(keep_last))
        if part is None:
            return None
        return self._finish_summary(
            part, self._settle(self._prepare_summary(part, as_summary(fn(part.messages))))
        )

    def validate(self) -> list[MessageProblem]:
        """Return the problems that a provider would reject, such as dangling tool calls."""
        return self._settle(lambda: window.find_problems(self._key))

    def repair(self) -> list[MessageProblem]:
        """Repair the problems that `validate` finds, and return them.

        An interrupted answer is stored as a message, marked as interrupted. Repairs are events of
        their own and are logged; the originals stay in the event log.
        """
        return self._log_repairs(self._settle(self._prepare_repair()))

    def pending(self) -> MessageEntry | None:
        """Return the user's message that has no complete answer yet; None if there is none."""
        return self._settle(lambda: window.find_pending(self._key))

    def answer(self, version: int) -> MessageEntry | None:
        """Return the answer to the user's message at that version; None if there is none yet.

        For a retried request: `chat.answer(chat.append(message, id=request_id).last)`.
        """
        return self._settle(lambda: window.find_answer(self._key, check_int(version, "version")))

    def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> AbstractContextManager[Conversation]:
        """Keep other turns out of a `with` block, so that two requests do not interleave.

        The turn is renewed while the process runs.

        Args:
            lease: How long others wait if this process dies, in seconds or as a timedelta.
            wait: How long to wait for the turn. None waits forever.

        Returns:
            The conversation, for the block.

        Raises:
            LeaseHeld: Another process had the turn for longer than `wait`.
            LeaseLost: The turn was lost anyway; the next write in the block raises this.

        Example:
            >>> with chat.turn(wait=30) as turn:
            ...     turn.append(message)
            ...     turn.append(ask_model(turn.window(8000)))
        """
        return TurnBlock(self, lease, wait)

    def _with_owner(self, owner: str) -> Conversation:
        return Conversation(self._log, self._key, owner, self._subject)

    def pop(self) -> Any | None:
        """Remove the newest message and return it; None if there is none.

        No two callers get the same message.
        """
        entry = self._settle(self._prepare_pop())
        return entry.message if entry else None

    def rewind(self, *, version: int) -> int:
        """Undo everything after `version`, and return the number of messages removed.

        They stay in the event log: a rewind can be undone.
        """
        return self._settle(self._prepare_rewind(version))

    def clear(self) -> None:
        """Start again with no messages. Old ones stay in the event log; `delete` removes them."""
        self._settle(self._prepare_rewind(0))

    def fork(self, id: str, *, version: int | None = None) -> Conversation:
        """Start another conversation with the messages up to `version`. Nothing is copied."""
        key = self._fork_key(id)
        self._settle(self._prepare_fork(key, version))
        return Conversation(self._log, key)

    def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> Iterator[MessageEntry]:
        """Yield messages as they are appended, from version `after` + 1, and wait for more.

        To resume later, pass the version of the last entry you have seen. With `timeout`, it ends
        when no message has come for that long. It yields every appended message, including those
        that `repair` adds and those that are rewound later.
        """
        cursor = self._new_cursor(after, timeout)
        return cast("Iterator[MessageEntry]", self._follow(cursor))

    def follow_with_drafts(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> Iterator[MessageEntry | DraftPiece]:
        """Yield messages as `follow` does, and also the pieces of answers being streamed.

        If a piece has a new `of`, the answer starts again: the process that streamed the earlier
        pieces has died.
        """
        return self._follow(self._new_cursor(after, timeout, drafts=True))

    def _follow(self, cursor: FollowCursor) -> Iterator[MessageEntry | DraftPiece]:
        waiter = ChangeWaiter(self._log.backend, self._key)
        try:
            while True:
                page = self._settle(cursor.read_page)
                yield from page
                if page:
                    waiter.reset()
                elif cursor.timed_out:
                    return
                else:
                    waiter.wait()
        finally:
            waiter.close()

    def draft(self, text: str, *, of: str) -> None:
        """Store a piece of an answer that is being streamed. `of` names the answer.

        A draft is not a message yet.
        """
        self._settle(self._prepare_draft(text, of))

    def drafts(self) -> list[Draft]:
        """Return the answers that were started and never finished.

        The next answer clears them; `repair` stores the newest as a message.
        """
        return self._settle(self._drafts_gen)

    def import_json(
        self, path: Path, *, salvage: bool = False, pair: str | None = None
    ) -> ImportResult:
        """Append the messages of a JSON file: a list, JSON Lines, or one list per pair of agents.

        `pair` names the list to import. Importing the same file again adds nothing. A damaged file
        raises `CorruptFile` and nothing is stored; `salvage=True` imports the messages before the
        damage.
        """
        from .json_files import read_messages

        file = read_messages(path, salvage=salvage, pair=pair)
        for batch, batch_id in self._import_batches(file, pair):
            self.append(*batch, id=batch_id)
        return ImportResult(len(file.messages), file.complete)

    def export_json(self, path: Path, *, plaintext: bool = False) -> None:
        """Write the live messages as a JSON list. The file is replaced atomically.

        The file is not encrypted, so an encrypted store requires `plaintext=True`.
        """
        self._check_export(plaintext)
        from .json_files import encode_json_list, write_atomically

        write_atomically(path, encode_json_list(self.messages()))

    def expire(self, ttl: float | timedelta | None, *, sliding: bool = False) -> None:
        """Let the conversation expire after `ttl`, or never if that is None.

        An expired conversation raises `Expired`. With `sliding`, the time starts again with each
        message: the conversation expires `ttl` after the last one, or up to one hundredth of `ttl`
        later. This holds for all processes until `expire` is called again.
        """
        self._settle(self._prepare_expire(ttl, sliding))

    def delete(self, *, reason: str = "deleted by the program", by: str | None = None) -> bool:
        """Delete the conversation and its blobs. Return False if it did not exist.

        Raises `HasForks` if the conversation has forks.
        """
        return self._settle(self._prepare_delete(reason, by))

    def view(self) -> ConversationView:
        """Return an overview: number of messages, times, origin of a fork.

        Raises `NotFound` if the conversation does not exist.
        """
        return self._settle(lambda: lifecycle.read_view(self._key))

    def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return ops.run_until_settled(self._log, self._with_subject(make))


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
        """`Conversation.append`, awaited. If it is cancelled, the messages may still be stored.

        Repeat the call with the same `id` to be sure.
        """
        if id is None and if_version is None and meta is None and not pin:
            plain = self._prepare_plain_append(messages)
            if plain is not None:
                try:
                    answer = await self._log.handle_async(plain.request)
                    return self._finish_plain_append(plain, answer)
                except Conflict:
                    pass  # deleted since; nothing was stored
        make = self._prepare_append(messages, id, if_version, meta, pin)
        if if_version is None:
            return await self._settle(make)
        return await ops.run_async(self._log, self._with_subject(make)())

    async def sync(self, messages: Iterable[object]) -> int:
        """`Conversation.sync`, awaited."""
        return self._finish_sync(await self._settle(self._prepare_sync(messages)))

    async def messages(self, *, last: int | None = None) -> list[Any]:
        """`Conversation.messages`, awaited."""
        return self._report_read(await self._read(lambda: self._messages_gen(last)))

    async def entries(self, *, last: int | None = None, after: int = 0) -> list[MessageEntry]:
        """`Conversation.entries`, awaited."""
        return self._as_entries(await self._read(lambda: self._entries_gen(last, after)))

    async def count(self) -> int:
        """`Conversation.count`, awaited."""
        return await self._settle(self._count_gen)

    async def version(self) -> int:
        """`Conversation.version`, awaited."""
        return await self._settle(self._version_gen)

    async def window(
        self, max_tokens: int, *, system: object | None = None, counter: Counter | None = None
    ) -> list[Any]:
        """`Conversation.window`, awaited."""
        return self._report_read(
            await self._settle(lambda: self._window_gen(max_tokens, system, counter))
        )

    async def summarize(
        self, fn: Callable[[list[Any]], object], *, keep_last: int = 20
    ) -> MessageEntry | None:
        """`Conversation.summarize`, awaited; `fn` may be async."""
        from inspect import isawaitable

        part = await self._settle(lambda: self._summary_range_gen(keep_last))
        if part is None:
            return None
        summary = fn(part.messages)
        if isawaitable(summary):
            summary = await summary
        return self._finish_summary(
            part, await self._settle(self._prepare_summary(part, as_summary(summary)))
        )

    async def validate(self) -> list[MessageProblem]:
        """`Conversation.validate`, awaited."""
        return await self._settle(lambda: window.find_problems(self._key))

    async def repair(self) -> list[MessageProblem]:
        """`Conversation.repair`, awaited."""
        return self._log_repairs(await self._settle(self._prepare_repair()))

    async def pending(self) -> MessageEntry | None:
        """`Conversation.pending`, awaited."""
        return await self._settle(lambda: window.find_pending(self._key))

    async def answer(self, version: int) -> MessageEntry | None:
        """`Conversation.answer`, awaited."""
        return await self._settle(
            lambda: window.find_answer(self._key, check_int(version, "version"))
        )

    def turn(
        self, *, lease: float | timedelta = 30.0, wait: float | timedelta | None = None
    ) -> AbstractAsyncContextManager[AsyncConversation]:
        """`Conversation.turn`: `async with chat.turn(): …`."""
        return AsyncTurnBlock(self, lease, wait)

    def _with_owner(self, owner: str) -> AsyncConversation:
        return AsyncConversation(self._log, self._key, owner, self._subject)

    async def pop(self) -> Any | None:
        """`Conversation.pop`, awaited."""
        entry = await self._settle(self._prepare_pop())
        return entry.message if entry else None

    async def rewind(self, *, version: int) -> int:
        """`Conversation.rewind`, awaited."""
        return await self._settle(self._prepare_rewind(version))

    async def clear(self) -> None:
        """`Conversation.clear`, awaited."""
        await self._settle(self._prepare_rewind(0))

    async def fork(self, id: str, *, version: int | None = None) -> AsyncConversation:
        """`Conversation.fork`, awaited."""
        key = self._fork_key(id)
        await self._settle(self._prepare_fork(key, version))
        return AsyncConversation(self._log, key)

    def follow(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> AsyncIterator[MessageEntry]:
        """`Conversation.follow` as an async iterator."""
        cursor = self._new_cursor(after, timeout)
        return cast("AsyncIterator[MessageEntry]", self._follow(cursor))

    def follow_with_drafts(
        self, *, after: int = 0, timeout: float | timedelta | None = None
    ) -> AsyncIterator[MessageEntry | DraftPiece]:
        """`Conversation.follow_with_drafts` as an async iterator."""
        return self._follow(self._new_cursor(after, timeout, drafts=True))

    async def _follow(self, cursor: FollowCursor) -> AsyncIterator[MessageEntry | DraftPiece]:
        waiter = ChangeWaiter(self._log.backend, self._key)
        try:
            while True:
                page = await self._settle(cursor.read_page)
                for entry in page:
                    yield entry
                if page:
                    waiter.reset()
                elif cursor.timed_out:
                    return
                else:
                    await waiter.wait_async()
        finally:
            waiter.close()

    async def draft(self, text: str, *, of: str) -> None:
        """`Conversation.draft`, awaited."""
        await self._settle(self._prepare_draft(text, of))

    async def drafts(self) -> list[Draft]:
        """`Conversation.drafts`, awaited."""
        return await self._settle(self._drafts_gen)

    async def import_json(
        self, path: Path, *, salvage: bool = False, pair: str | None = None
    ) -> ImportResult:
        """`Conversation.import_json`, awaited."""
        from .json_files import read_messages

        file = await self._log.run_in_thread(
            lambda: read_messages(path, salvage=salvage, pair=pair)
        )
        for batch, batch_id in self._import_batches(file, pair):
            await self.append(*batch, id=batch_id)
        return ImportResult(len(file.messages), file.complete)

    async def export_json(self, path: Path, *, plaintext: bool = False) -> None:
        """`Conversation.export_json`, awaited."""
        self._check_export(plaintext)
        messages = await self.messages()
        from .json_files import encode_json_list, write_atomically

        await self._log.run_in_thread(lambda: write_atomically(path, encode_json_list(messages)))

    async def expire(self, ttl: float | timedelta | None, *, sliding: bool = False) -> None:
        """`Conversation.expire`, awaited."""
        await self._settle(self._prepare_expire(ttl, sliding))

    async def delete(
        self, *, reason: str = "deleted by the program", by: str | None = None
    ) -> bool:
        """`Conversation.delete`, awaited."""
        return await self._settle(self._prepare_delete(reason, by))

    async def view(self) -> ConversationView:
        """`Conversation.view`, awaited."""
        return await self._settle(lambda: lifecycle.read_view(self._key))

    async def _read(self, make: Callable[[], Operation[T]]) -> T:
        """Run an operation that only reads, and calls no code of the user, in one thread."""
        return await self._log.run_in_thread(
            ops.run_until_settled, self._log, self._with_subject(make)
        )

    async def _settle(self, make: Callable[[], Operation[T]]) -> T:
        return await ops.run_until_settled_async(self._log, self._with_subject(make))
