"""Replies: a model is asked for the next message of a conversation, which is stored there, once, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...backends import AppendResult, StreamKey
from ...conversations.base import ConversationBase as Conversation
from ...conversations.messages import as_message
from ...conversations.read import learn
from ...conversations.write import New, append_messages
from ...errors import Conflict, IdReused
from ...log import operations as ops
from ...log.blobs import incarnation_hex
from ...log.codec import there_and_back
from ...log.events import AppendContext
from ...log.ids import stream_key
from ...log.operations import Operation
from ...log.stream_ops import new_append_context
from ...log.subjects import SubjectRegistrar
from ..conversation import AsyncTaskConversation, TaskConversation
from ..run.effects import RunOnce, RunOperation, Script
from ..state import events as ev
from ..state.load import said
from .declare import Options, Step, streams
from .run import StepCall, StepExecution

if TYPE_CHECKING:
    from ..base import TaskBase

T = TypeVar("T")


def reply_step(task: TaskBase, chat: object, fn: Callable[..., Any]) -> Step[Any, Any]:
    """A function that returns the next message of a conversation, as a model step."""
    if not callable(fn):
        raise TypeError(
            f"fn must be a function: task.reply(chat, fn, *args), got {type(fn).__name__}"
        )
    if streams(fn):
        raise TypeError(
            "a reply is one message, and a generator gives many chunks: return the message, or use task.step"
        )
    if isinstance(fn, Step):
        declared = copy.copy(fn)
        declared.options = msgspec.structs.replace(fn.options, kind="model", returns=Any)
        declared.is_model, declared._returns = True, Any
    else:
        declared = Step(fn, Options(kind="model", returns=Any))
    if declared.mode:
        raise TypeError(
            f"{declared.name!r} has once or check, and a reply has neither: its message tells whether it was done"
        )
    declared.to = _conversation(task, chat, declared)
    return declared


def _conversation(task: TaskBase, chat: object, declared: Step[Any, Any]) -> Conversation:
    session = task._held()
    if isinstance(chat, str):
        kind = AsyncTaskConversation if declared.is_async else TaskConversation
        return kind(task._log, stream_key(session.key.tenant, "conversation", chat), session)
    if not isinstance(chat, Conversation):
        raise TypeError(f"chat must be a conversation or the id of one, got {type(chat).__name__}")
    elsewhere = (
        chat._log is not session.log and session.replaying is None
    )  # a replay has a log of its own
    if elsewhere or chat._key.tenant != session.key.tenant:
        raise ValueError(
            f"conversation {chat.id!r} is of another store or tenant than {session.key}"
        )
    return chat


class ReplyExecution(StepExecution):
    """A reply while it is made. `reply` and `message`: where it is and what it says, as soon as it is stored."""

    __slots__ = ("chat", "id", "message", "new", "reply")

    def script(self) -> Script[Any]:
        call = self.call
        assert call.declared.to is not None
        self.chat, self.id = call.declared.to, _append_id(call)
        self.reply: ev.Reply | None = None
        found = yield RunOperation(lambda: _find(self.chat._key, self.id))
        if found is not None:
            self.reply, self.message = found
        call.ask_first = found is not None
        yield from super().script()
        return self.message

    def _ask(self) -> Script[list[Any] | None]:
        """The message is there, from a run that was cut off before it could say so."""
        yield RunOnce(self._completing(b"", "checked"))
        return [self.message]

    def stored(self, value: object, declared: Any) -> tuple[bytes, Any]:
        raw, self.message = there_and_back(as_message(value), Any)
        self.message = self.session.log.redaction.value(self.message)
        self.new: New = self.chat._new(
            self.message, {"task": self.session.key.id, "step": self.call.path}
        )
        return raw, self.message

    def say(self) -> Script[None]:
        session, stamp, owner = self.session, new_append_context(), self.chat._owner()
        if session.is_stale():
            yield RunOperation(session.catch_up)
        session.check()
        self.reply, other = yield RunOperation(
            self._noting(lambda: _append(self.chat._key, self.new, self.id, stamp, owner))
        )
        self.message = self.message if other is None else other

    def _noting(self, make: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
        """An operation that first lists the chat with whom it is about, or, if that is nobody, with whom the task is about."""
        chat, subject = self.chat, self.session.state.subject
        about = (
            SubjectRegistrar(chat._key, subject)
            if chat._about is None and subject is not None
            else chat._about
        )
        return make if about is None else lambda: about(make())

    def _completing(self, raw: bytes, how: str) -> Operation[AppendResult]:
        run = self.run
        run.forget()
        return self.session.put(
            [(ev.STEP_COMPLETED, run.end(run.event(how=how, reply=self.reply)))],
            new_append_context(),
        )


def _append_id(call: StepCall) -> str:
    """The id under which the message is appended, in whatever run."""
    session = call.session
    key = session.idempotency_key((*session.identity(call.scope), *call.identity()))
    before = None if call.record is None else call.record.reply
    if before is None:
        return f"reply/{key}"
    return f"reply/{key}/{before.incarnation}/{before.version}"  # it is to be made anew (drift="rerun"), after that one


def _find(key: StreamKey, id: str) -> Operation[tuple[ev.Reply, Any] | None]:
    """The message that was appended under an id, and where it is."""
    known = yield from learn(key)
    found = None if known is None else (yield from ops.find(key, id))
    if known is None or found is None:
        return None
    base = known.fold.base
    reply = ev.Reply(key.id, incarnation_hex(known.incarnation), found.last + base, base)
    return reply, (yield from said(key, reply))


def _append(
    key: StreamKey, new: New, id: str, stamp: AppendContext, owner: str | None
) -> Operation[tuple[ev.Reply, Any]]:
    """Append a message. Where it is; and what it says, if another was there already, which counts."""
    try:
        answer, known = yield from append_messages(
            key, [new], stamp, known=None, id=id, owner=owner
        )
    except IdReused:
        known = None
    if known is not None:
        return ev.Reply(
            key.id, incarnation_hex(known.incarnation), answer.last, known.fold.base
        ), None
    found = yield from _find(key, id)
    if found is None:  # deleted since
        raise Conflict(str(key), expected=1, actual=0)
    return found
