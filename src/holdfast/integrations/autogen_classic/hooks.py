"""Hook into a classic AutoGen chat by temporarily replacing methods of its agents and group chat.

The methods are replaced on the instances, not on the classes. Only public methods are replaced; all
three packages have them with the same parameters. Every message goes through its receiver's
`receive`, after the sender's own hooks have changed it and before any agent acts on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .participants import ClassicAgent, Group, Pair, Participants, encode_json
from .recorder import Recorder

Method = Callable[..., Any]
_MISSING = object()


class Hooks:
    """The replaced methods of one chat. Other chats with the same agents may wrap them again."""

    def __init__(self, recorder: Recorder, participants: Participants) -> None:
        self._recorder, self._participants = recorder, participants
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._active = False
        self.agents = frozenset(map(id, participants.listeners))

    def install(self) -> None:
        self._active = True
        for agent in self._participants.listeners:
            self._replace(agent, "receive", self._receive)
            self._replace(agent, "a_receive", self._a_receive)
        for agent in self._participants.speakers.values():
            self._replace(agent, "send", self._send)
            self._replace(agent, "a_send", self._a_send)
            self._replace(agent, "generate_reply", self._generate_reply)
            self._replace(agent, "a_generate_reply", self._a_generate_reply)
            self._replace(agent, "initiate_chat", self._initiate_chat)
            self._replace(agent, "a_initiate_chat", self._a_initiate_chat)
            # These call `initiate_chat`, with a default of their own.
            for name in ("run", "a_run", "run_iter", "a_run_iter"):
                self._replace(agent, name, self._run)
        if isinstance(self._participants, Group):
            for chat in self._participants.chats:
                self._replace(chat, "select_speaker", self._select_speaker)
                self._replace(chat, "a_select_speaker", self._a_select_speaker)
            self._replace(self._participants.manager, "resume", self._resume)
            self._replace(self._participants.manager, "a_resume", self._a_resume)

    def remove(self) -> None:
        self._active = False
        for target, name, before, ours in reversed(self._replaced):
            if vars(target).get(name) is not ours:
                continue  # other code has wrapped it since; it stays, without effect
            if before is _MISSING:
                delattr(target, name)
            else:
                setattr(target, name, before)
        self._replaced.clear()

    def _replace(self, target: Any, name: str, make: Callable[[Any, Method], Method]) -> None:
        original = getattr(target, name, None)
        if original is not None:
            ours = functools.wraps(original)(make(target, original))
            self._replaced.append((target, name, vars(target).get(name, _MISSING), ours))
            setattr(target, name, ours)

    # -- sending -------------------------------------------------------------------------------

    def _send(self, agent: ClassicAgent, original: Method) -> Method:
        def send(message: Any, recipient: Any, *args: Any, **options: Any) -> Any:
            if not self._is_for(agent, recipient):
                return original(message, recipient, *args, **options)
            with self._recorder.track_call():
                self._recorder.note_sender(agent)
                return original(message, recipient, *args, **options)

        return send

    def _a_send(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_send(message: Any, recipient: Any, *args: Any, **options: Any) -> Any:
            if not self._is_for(agent, recipient):
                return await original(message, recipient, *args, **options)
            with self._recorder.track_call():
                self._recorder.note_sender(agent)
                return await original(message, recipient, *args, **options)

        return a_send

    def _receive(self, agent: ClassicAgent, original: Method) -> Method:
        def receive(message: Any, sender: Any, *args: Any, **options: Any) -> Any:
            if self._is_from(agent, sender):
                message = self._recorder.record_message(agent, sender, message, awaited=False)
            return original(message, sender, *args, **options)

        return receive

    def _a_receive(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_receive(message: Any, sender: Any, *args: Any, **options: Any) -> Any:
            if self._is_from(agent, sender):
                message = self._recorder.record_message(agent, sender, message, awaited=True)
            return await original(message, sender, *args, **options)

        return a_receive

    # -- replying ------------------------------------------------------------------------------

    def _generate_reply(self, agent: ClassicAgent, original: Method) -> Method:
        def generate_reply(
            messages: Any = None, sender: Any = None, *args: Any, **options: Any
        ) -> Any:
            stored, reply = (
                self._recorder.replay_reply(agent, sender) if self._active else (False, None)
            )
            return reply if stored else original(messages, sender, *args, **options)

        return generate_reply

    def _a_generate_reply(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_generate_reply(
            messages: Any = None, sender: Any = None, *args: Any, **options: Any
        ) -> Any:
            stored, reply = (
                self._recorder.replay_reply(agent, sender) if self._active else (False, None)
            )
            return reply if stored else await original(messages, sender, *args, **options)

        return a_generate_reply

    def _select_speaker(self, chat: Any, original: Method) -> Method:
        def select_speaker(*args: Any, **options: Any) -> Any:
            stored = self._recorder.replay_speaker() if self._active else None
            return stored or original(*args, **options)

        return select_speaker

    def _a_select_speaker(self, chat: Any, original: Method) -> Method:
        async def a_select_speaker(*args: Any, **options: Any) -> Any:
            stored = self._recorder.replay_speaker() if self._active else None
            return stored or await original(*args, **options)

        return a_select_speaker

    # -- starting ------------------------------------------------------------------------------

    def _initiate_chat(self, agent: ClassicAgent, original: Method) -> Method:
        def initiate_chat(*args: Any, **options: Any) -> Any:
            if not self._is_for(agent, _get_recipient(args, options)):
                return original(*args, **options)
            with self._recorder.track_call():
                if _default_clear_history(args, options):
                    self._recorder.clear()
                return original(*args, **options)

        return initiate_chat

    def _a_initiate_chat(self, agent: ClassicAgent, original: Method) -> Method:
        async def a_initiate_chat(*args: Any, **options: Any) -> Any:
            if not self._is_for(agent, _get_recipient(args, options)):
                return await original(*args, **options)
            with self._recorder.track_call():
                if _default_clear_history(args, options):
                    self._recorder.clear()
                return await original(*args, **options)

        return a_initiate_chat

    def _run(self, agent: ClassicAgent, original: Method) -> Method:
        def run(*args: Any, **options: Any) -> Any:
            if self._is_for(agent, _get_recipient(args, options)):
                _default_clear_history(args, options)
            return original(*args, **options)

        return run

    def _resume(self, manager: Any, original: Method) -> Method:
        def resume(messages: Any, *args: Any, **options: Any) -> Any:
            with self._pause_for_resume(messages):
                return original(messages, *args, **options)

        return resume

    def _a_resume(self, manager: Any, original: Method) -> Method:
        async def a_resume(messages: Any, *args: Any, **options: Any) -> Any:
            with self._pause_for_resume(messages):
                return await original(messages, *args, **options)

        return a_resume

    @contextmanager
    def _pause_for_resume(self, messages: object) -> Iterator[None]:
        """Record nothing while the framework sends the old messages again to restore the agents."""
        if not self._active:
            yield
            return
        assert isinstance(self._participants, Group)
        if encode_json(messages) != encode_json(self._participants.chat.messages):
            raise ValueError(
                "messages must be the stored ones inside persisted():"
                " call manager.resume(messages=groupchat.messages)"
            )
        for chat in self._participants.chats:
            chat.send_introductions = False  # resume does this too, but not for the copies
        self._recorder.note_resume()
        self._active = False
        try:
            yield
        finally:
            self._active = True

    # -- filters -------------------------------------------------------------------------------

    def _is_for(self, agent: ClassicAgent, recipient: object) -> bool:
        return self._active and recipient is self._participants.partner(agent)

    def _is_from(self, agent: ClassicAgent, sender: ClassicAgent) -> bool:
        if not self._active:
            return False
        if isinstance(self._participants, Pair):
            return sender is self._participants.partner(agent)
        if self._participants.speakers.get(sender.name) is not sender:
            raise ValueError(
                f"{sender.name!r} is not in this group; pass it to persisted(), after the manager"
            )
        return True


def _get_recipient(args: tuple[Any, ...], options: dict[str, Any]) -> object:
    return args[0] if args else options.get("recipient")


def _default_clear_history(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Set `clear_history` to False if it isn't given, and return its value."""
    return bool(args[1] if len(args) > 1 else options.setdefault("clear_history", False))
