"""Where a chat of classic AutoGen is listened in to: methods of its agents, replaced on these objects for a while.

Public methods only, which all three packages have with the same parameters. A message passes through `receive` of
whoever it is for, after the hooks of the sender have had their say and before anybody acts on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .chat import Recorder
from .memory import ClassicAgent, Group, Memory, Pair, as_json

Method = Callable[..., Any]
_NOTHING = object()


class Hooks:
    """The replaced methods of one chat. Those of other chats of the same agents may lie over or under them."""

    def __init__(self, recorder: Recorder, memory: Memory) -> None:
        self._recorder, self._memory = recorder, memory
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._listening = False
        self.agents = frozenset(map(id, memory.listeners))

    def install(self) -> None:
        self._listening = True
        for agent in self._memory.listeners:
            self._replace(agent, "receive", self._receive)
            self._replace(agent, "a_receive", self._a_receive)
        for agent in self._memory.speakers.values():
            self._replace(agent, "send", self._send)
            self._replace(agent, "a_send", self._a_send)
            self._replace(agent, "generate_reply", self._generate_reply)
            self._replace(agent, "a_generate_reply", self._a_generate_reply)
            self._replace(agent, "initiate_chat", self._initiate_chat)
            self._replace(agent, "a_initiate_chat", self._a_initiate_chat)
            # These call `initiate_chat`, with a default of their own.
            for name in ("run", "a_run", "run_iter", "a_run_iter"):
                self._replace(agent, name, self._run)
        if isinstance(self._memory, Group):
            for chat in self._memory.chats:
                self._replace(chat, "select_speaker", self._select_speaker)
                self._replace(chat, "a_select_speaker", self._a_select_speaker)
            self._replace(self._memory.manager, "resume", self._resume)
            self._replace(self._memory.manager, "a_resume", self._a_resume)

    def remove(self) -> None:
        self._listening = False
        for target, name, before, ours in reversed(self._replaced):
            if vars(target).get(name) is not ours:
                continue  # somebody has wrapped it meanwhile: there it stays, and only passes on
            if before is _NOTHING:
                delattr(target, name)
            else:
                setattr(target, name, before)
        self._replaced.clear()

    def _replace(self, target: Any, name: str, make: Callable[[Any, Method], Method]) -> None:
        original = getattr(target, name, None)
        if original is not None:
            ours = functools.wraps(original)(make(target, original))
            self._replaced.append((target, name, vars(target).get(name, _NOTHING), ours))
            setattr(target, name, ours)

    # -- saying ---------------------------------------------------------------------------------------------------

    def _send(self, agent: ClassicAgent, original: Method) -> Method:
        def send(message: Any, recipient: Any, *args: Any, **options: Any) -> Any:
            if not self._is_for(agent, recipient):
                return original(message, recipient, *args, **options)
            with self._recorder.call():
                self._recorder.sending(agent)
                return original(message, recipient, *args, **options)

        return send

    def _a_send(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_send(message: Any, recipient: Any, *args: Any, **options: Any) -> Any:
            if not self._is_for(agent, recipient):
                return await original(message, recipient, *args, **options)
            with self._recorder.call():
                self._recorder.sending(agent)
                return await original(message, recipient, *args, **options)

        return a_send

    def _receive(self, agent: ClassicAgent, original: Method) -> Method:
        def receive(message: Any, sender: Any, *args: Any, **options: Any) -> Any:
            if self._is_from(agent, sender):
                message = self._recorder.arriving(agent, sender, message, awaited=False)
            return original(message, sender, *args, **options)

        return receive

    def _a_receive(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_receive(message: Any, sender: Any, *args: Any, **options: Any) -> Any:
            if self._is_from(agent, sender):
                message = self._recorder.arriving(agent, sender, message, awaited=True)
            return await original(message, sender, *args, **options)

        return a_receive

    # -- replying -------------------------------------------------------------------------------------------------

    def _generate_reply(self, agent: ClassicAgent, original: Method) -> Method:
        def generate_reply(
            messages: Any = None, sender: Any = None, *args: Any, **options: Any
        ) -> Any:
            stored, reply = (
                self._recorder.reply(agent, sender) if self._listening else (False, None)
            )
            return reply if stored else original(messages, sender, *args, **options)

        return generate_reply

    def _a_generate_reply(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_generate_reply(
            messages: Any = None, sender: Any = None, *args: Any, **options: Any
        ) -> Any:
            stored, reply = (
                self._recorder.reply(agent, sender) if self._listening else (False, None)
            )
            return reply if stored else await original(messages, sender, *args, **options)

        return a_generate_reply

    def _select_speaker(self, chat: Any, original: Method) -> Method:
        def select_speaker(*args: Any, **options: Any) -> Any:
            stored = self._recorder.next_speaker() if self._listening else None
            return stored or original(*args, **options)

        return select_speaker

    def _a_select_speaker(self, chat: Any, original: Method) -> Method:
        async def a_select_speaker(*args: Any, **options: Any) -> Any:
            stored = self._recorder.next_speaker() if self._listening else None
            return stored or await original(*args, **options)

        return a_select_speaker

    # -- beginning ------------------------------------------------------------------------------------------------

    def _initiate_chat(self, agent: ClassicAgent, original: Method) -> Method:
        def initiate_chat(*args: Any, **options: Any) -> Any:
            if not self._is_for(agent, _recipient(args, options)):
                return original(*args, **options)
            with self._recorder.call():
                if _clears_history(args, options):
                    self._recorder.clear()
                return original(*args, **options)

        return initiate_chat

    def _a_initiate_chat(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_initiate_chat(*args: Any, **options: Any) -> Any:
            if not self._is_for(agent, _recipient(args, options)):
                return await original(*args, **options)
            with self._recorder.call():
                if _clears_history(args, options):
                    self._recorder.clear()
                return await original(*args, **options)

        return a_initiate_chat

    def _run(self, agent: ClassicAgent, original: Method) -> Method:
        def run(*args: Any, **options: Any) -> Any:
            if self._is_for(agent, _recipient(args, options)):
                _clears_history(args, options)
            return original(*args, **options)

        return run

    def _resume(self, manager: Any, original: Method) -> Method:
        def resume(messages: Any, *args: Any, **options: Any) -> Any:
            with self._resuming(messages):
                return original(messages, *args, **options)

        return resume

    def _a_resume(self, manager: Any, original: Method) -> Method:
        async def a_resume(messages: Any, *args: Any, **options: Any) -> Any:
            with self._resuming(messages):
                return await original(messages, *args, **options)

        return a_resume

    @contextmanager
    def _resuming(self, messages: object) -> Iterator[None]:
        """The framework fills the agents by having them send again what was said: nothing of that is news."""
        if not self._listening:
            yield
            return
        assert isinstance(self._memory, Group)
        if as_json(messages) != as_json(self._memory.chat.messages):
            raise ValueError(
                "inside persisted() a group chat resumes from what is stored: manager.resume(messages=groupchat.messages)"
            )
        for chat in self._memory.chats:
            chat.send_introductions = False  # resume does this too, but forgets the copies
        self._recorder.resuming()
        self._listening = False
        try:
            yield
        finally:
            self._listening = True

    # -- whose business it is -------------------------------------------------------------------------------------

    def _is_for(self, agent: ClassicAgent, recipient: object) -> bool:
        return self._listening and recipient is self._memory.partner(agent)

    def _is_from(self, agent: ClassicAgent, sender: ClassicAgent) -> bool:
        if not self._listening:
            return False
        if isinstance(self._memory, Pair):
            return sender is self._memory.partner(agent)
        if self._memory.speakers.get(sender.name) is not sender:
            raise ValueError(
                f"{sender.name!r} is not in this group: give it to persisted() too, after the manager"
            )
        return True


def _recipient(args: tuple[Any, ...], options: dict[str, Any]) -> object:
    return args[0] if args else options.get("recipient")


def _clears_history(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether the history is to be cleared. If nothing was said about it: no, from now on."""
    return bool(args[1] if len(args) > 1 else options.setdefault("clear_history", False))
