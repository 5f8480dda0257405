"""`task.reply`: a model step whose result is the next message of a conversation.

The message is stored in the conversation, exactly once, and not in the task.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...backends import StreamKey
from ...conversations.base import ConversationBase as Conversation
from ...conversations.messages import as_message
from ...conversations.read import load_snapshot
from ...conversations.write import NewMessage, append_messages
from ...errors import Conflict, IdReused
from ...log import operations as ops
from ...log.codec import encode_and_decode
from ...log.drivers import EffectGen
from ...log.events import AppendContext, new_append_context
from ...log.ids import stream_key
from ...log.operations import Operation
from ...log.operations.subjects import SubjectRegistrar
from ..conversation import AsyncTaskConversation, TaskConversation
from ..state import events as ev
from ..state.load import load_reply
from .declare import Step, StepOptions, stream_kind
from .run import StepCall, execute_gen

if TYPE_CHECKING:
    from ..base import TaskBase
    from ..run.frames import Frame
    from .progress import StepRun

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


def reply_gen(call: StepCall, run: StepRun, frame: Frame) -> EffectGen[Any]:
    """Return the message of a reply. Run it, unless an interrupted run has appended the message."""
    reply = ReplyMessage(call)
    call.check_first = yield from reply.find_gen()
    yield from execute_gen(call, run, frame, reply)
    return reply.message


class ReplyMessage:
    """The message of a reply. Once it is stored, `place` tells where."""

    __slots__ = ("_call", "_chat", "_id", "_new", "message", "place")

    def __init__(self, call: StepCall) -> None:
        assert call.declared.conversation is not None
        self._call, self._chat, self._id = call, call.declared.conversation, _append_id(call)
        self.place: ev.Reply | None = None
        self.message: Any = None

    def find_gen(self) -> EffectGen[bool]:
        """Find the message that an interrupted run has appended. Return False if there is none."""
        found = yield from _find_reply(self._chat._key, self._id)
        if found is not None:
            self.place, self.message = found
        return found is not None

    def encode(self, value: object) -> tuple[bytes, Any]:
        """Encode the message. Any other value is an ordinary failure: ask the model again."""
        session = self._call.session
        raw, message = encode_and_decode(as_message(value), Any)
        self.message = session.log.redaction.redact_value(message)
        self._new: NewMessage = self._chat._encode(
            self.message, {"task": session.key.id, "step": self._call.path}
        )
        return raw, self.message

    def append_gen(self) -> EffectGen[None]:
        """Append the message, before the result is recorded."""
        session, context, owner = (
            self._call.session,
            new_append_context(),
            self._chat._current_owner(),
        )
        if session.is_stale():
            yield from session.catch_up()
        session.check_writable()
        chat = self._chat._key
        self.place, other = yield from ops.settle(
            self._list_subject(lambda: _append(chat, self._new, self._id, context, owner))
        )
        self.message = self.message if other is None else other

    def _list_subject(self, make: Callable[[], Operation[T]]) -> Callable[[], Operation[T]]:
        """Make an operation first list the chat under its own subject, or else the task's."""
        chat, subject = self._chat, self._call.session.state.subject
        about = (
            SubjectRegistrar(chat._key, subject)
            if chat._subject is None and subject is not None
            else chat._subject
        )
        return make if about is None else lambda: about(make())


def _append_id(call: StepCall) -> str:
    """Return the id of the append, which is the same in every run."""
    session = call.session
    key = session.idempotency_key((*session.steps.find_identity(call.scope), *call.identity()))
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
    """Append a message. Return its place, and the content if another run already appended it."""
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
