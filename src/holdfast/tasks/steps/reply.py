"""`task.reply`: a model step whose result is the next message of a conversation.

The message is stored in the conversation, exactly once, and not in the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...backends import AppendResult, StreamKey
from ...conversations.base import ConversationBase as Conversation
from ...conversations.messages import as_message
from ...conversations.read import load_snapshot
from ...conversations.write import NewMessage, append_messages
from ...errors import Conflict, IdReused
from ...log import operations as ops
from ...log.codec import encode_and_decode
from ...log.events import AppendContext
from ...log.ids import stream_key
from ...log.operations import Operation
from ...log.operations.stream_ops import new_append_context
from ...log.operations.subjects import SubjectRegistrar
from ..conversation import AsyncTaskConversation, TaskConversation
from ..run.effects import RunOnce, RunOperation, TaskGen
from ..state import events as ev
from ..state.load import load_reply
from .declare import Step, StepOptions, stream_kind
from .run import StepCall, StepExecution

if TYPE_CHECKING:
    from ..base import TaskBase

T = TypeVar("T")


def reply_step(task: TaskBase, chat: object, fn: Callable[..., Any]) -> Step[Any, Any]:
    """Return a model step for a function that returns the next message of a conversation."""
    if not callable(fn):
        raise TypeError(
            f"fn must be a function: task.reply(chat, fn, *args), got {type(fn).__name__}"
        )
    if stream_kind(fn):
        raise TypeError(
            "fn must return one message, got a generator function; return the message, or use"
            " task.step"
        )
    if isinstance(fn, Step):
        declared = copy.copy(fn)
        declared.options = msgspec.structs.replace(fn.options, kind="model", returns=Any)
        declared.is_model, declared._returns = True, Any
    else:
        declared = Step(fn, StepOptions(kind="model", returns=Any))
    if declared.mode:
        raise TypeError(
            f"fn must not have once or check, but {declared.name!r} does;"
            " the conversation shows whether a reply was done"
        )
    declared.conversation = _conversation(task, chat, declared)
    return declared


def _conversation(task: TaskBase, chat: object, declared: Step[Any, Any]) -> Conversation:
    session = task._require_session()
    if isinstance(chat, str):
        kind = AsyncTaskConversation if declared.is_async else TaskConversation
        return kind(task._log, stream_key(session.key.tenant, "conversation", chat), session)
    if not isinstance(chat, Conversation):
        raise TypeError(f"chat must be a conversation or the id of one, got {type(chat).__name__}")
    # A replay has a log of its own.
    elsewhere = chat._log is not session.log and session.replaying is None
    if elsewhere or chat._key.tenant != session.key.tenant:
        raise ValueError(
            f"conversation {chat.id!r} belongs to another store or tenant than {session.key}"
        )
    return chat


class ReplyExecution(StepExecution):
    """A reply that is running. Once stored, `reply` is its place and `message` its content."""

    __slots__ = ("chat", "id", "message", "new", "reply")

    def run_gen(self) -> TaskGen[Any]:
        call = self.call
        assert call.declared.conversation is not None
        self.chat, self.id = call.declared.conversation, _append_id(call)
        self.reply: ev.Reply | None = None
        found = yield RunOperation(lambda: _find_reply(self.chat._key, self.id))
        if found is not None:
            self.reply, self.message = found
        call.check_first = found is not None
        yield from super().run_gen()
        return self.message

    def _check_gen(self) -> TaskGen[list[Any] | None]:
        """Record the result: an interrupted run has already appended the message."""
        yield RunOnce(self._record_completed(b"", "checked"))
        return [self.message]

    def encode_result(self, value: object, declared: Any) -> tuple[bytes, Any]:
        raw, self.message = encode_and_decode(as_message(value), Any)
        self.message = self.session.log.redaction.redact_value(self.message)
        self.new: NewMessage = self.chat._encode(
            self.message, {"task": self.session.key.id, "step": self.call.path}
        )
        return raw, self.message

    def _append_reply_gen(self) -> TaskGen[None]:
        session, context, owner = self.session, new_append_context(), self.chat._current_owner()
        if session.is_stale():
            yield RunOperation(session.catch_up)
        session.check_writable()
        self.reply, other = yield RunOperation(
            self._list_subject(lambda: _append(self.chat._key, self.new, self.id, context, owner))
        )
        self.message = self.message if other is None else other

    def _list_subject(self, make: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
        """Return an operation that first lists the chat under its subject, or else the task's."""
        chat, subject = self.chat, self.session.state.subject
        about = (
            SubjectRegistrar(chat._key, subject)
            if chat._subject is None and subject is not None
            else chat._subject
        )
        return make if about is None else lambda: about(make())

    def _record_completed(self, raw: bytes, how: str) -> Operation[AppendResult]:
        run = self.run
        run.discard_unsaved()
        return self.session.put(
            [(ev.STEP_COMPLETED, run.end_event(run.event(how=how, reply=self.reply)))],
            new_append_context(),
        )


def _append_id(call: StepCall) -> str:
    """Return the id of the append, which is the same in every run."""
    session = call.session
    key = session.idempotency_key((*session.step_identity(call.scope), *call.identity()))
    before = None if call.record is None else call.record.reply
    if before is None:
        return f"reply/{key}"
    # With drift="rerun", a new message replaces that one.
    return f"reply/{key}/{before.incarnation}/{before.version}"


def _find_reply(key: StreamKey, id: str) -> Operation[tuple[ev.Reply, Any] | None]:
    """Return the place and content of the message appended with an id; None if there is none."""
    known = yield from load_snapshot(key)
    found = None if known is None else (yield from ops.find_append(key, id))
    if known is None or found is None:
        return None
    base = known.fold.base
    reply = ev.Reply(key.id, known.incarnation.hex(), found.last + base, base)
    return reply, (yield from load_reply(key, reply))


def _append(
    key: StreamKey, new: NewMessage, id: str, context: AppendContext, owner: str | None
) -> Operation[tuple[ev.Reply, Any]]:
    """Append a message. Return its place, and the content if another run has appended it before."""
    try:
        answer, known = yield from append_messages(
            key, [new], context, snapshot=None, id=id, owner=owner
        )
    except IdReused:
        known = None
    if known is not None:
        return ev.Reply(key.id, known.incarnation.hex(), answer.last, known.fold.base), None
    found = yield from _find_reply(key, id)
    if found is None:  # deleted in the meantime
        raise Conflict(str(key), expected=1, actual=0)
    return found
