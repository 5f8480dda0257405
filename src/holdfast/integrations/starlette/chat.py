"""A durable chat as routes of a web application, with server-sent events."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route

from ... import AsyncTask, agent, current_step
from ...conversations import AsyncConversation, DraftPiece, MessageEntry
from ...errors import (
    AlreadyAnswered,
    Conflict,
    Expired,
    HoldfastError,
    IdReused,
    LeaseHeld,
    NotFound,
    OutcomeUnknown,
    TaskEnded,
    Unavailable,
)
from ...tasks.agents.declare import DEFAULT_ATTEMPTS
from ..drafts import DraftBuffer
from .agui import AguiStream, parse_event_id, read_run
from .lifespan import check_name, find_lifespan
from .turns import ChatBusy, TurnItem, TurnKeeper, TurnState

F = TypeVar("F", bound=Callable[..., Any])

DRAFT_SECONDS: Final = 0.1
DRAFT_CHARACTERS: Final = 1024
"""A streamed answer is stored after this much new text or time, not after every word."""
RETRY_MILLISECONDS: Final = 1000
MAX_STREAMS: Final = 1000
MAX_BODY_BYTES: Final = 1024 * 1024

_STATUS_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (ChatBusy, 409),
    (LeaseHeld, 409),
    (Conflict, 409),
    (IdReused, 409),
    (TaskEnded, 409),
    (AlreadyAnswered, 409),
    (NotFound, 404),
    (Expired, 410),
    (OutcomeUnknown, 503),
    (Unavailable, 503),
    (HoldfastError, 422),
    (TypeError, 422),
    (ValueError, 422),
)


class ChatTurn(msgspec.Struct, frozen=True):
    """The input of an answer: the user's message, the conversation, and the task.

    Steps of the task are done once, even if the server dies: put model calls and tools in steps
    if they must not be repeated. `task.ask` asks the user for an approval.
    """

    task: AsyncTask
    chat: AsyncConversation
    message: dict[str, Any]


class DurableChat:
    """A chat whose answers are tasks, served by the routes of `mount`.

    Args:
        name: The name of the agent that answers. Any process that imports the application can run
            its tasks.
        max_attempts: As for `holdfast.agent`.
        timeout: As for `holdfast.agent`.
        user: A function from a request to the name of the user, recorded with their answers.
        max_streams: How many responses this process streams at once; further ones get 503.

    Example:
        >>> chat = DurableChat("support")
        >>> @chat.answer
        ... async def answer(turn):
        ...     async for piece in ask_model(await turn.chat.window(8000)):
        ...         yield piece
        >>> app.router.routes.append(chat.mount("/chat"))
    """

    def __init__(
        self,
        name: str,
        *,
        max_attempts: int = DEFAULT_ATTEMPTS,
        timeout: float | timedelta | None = None,
        user: Callable[[Request], str | None] | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._name, self._user = name, user
        self._max_attempts, self._timeout = max_attempts, timeout
        self._max_streams, self._streams = max_streams, 0

    def answer(self, fn: F) -> F:
        """Register the function that answers: async, with `yield` for each piece of text.

        Without `yield`, it returns the text, or the assistant's message. It runs in a worker.
        """
        if not inspect.isasyncgenfunction(fn) and not inspect.iscoroutinefunction(fn):
            raise TypeError("the function that answers must be async, with yield or return")

        async def run_turn(task: AsyncTask) -> str:
            conversation, version = task.input["conversation"], task.input["version"]
            async with task.conversation(conversation).turn() as chat:
                asked = (await chat.entries(after=version - 1))[0]
                turn = ChatTurn(task, chat, asked.message)

                async def answer(chat: AsyncConversation) -> Any:
                    return await _write(fn, turn)

                message = await task.reply(chat, answer)
            return str(message.get("content") or "")

        agent(self._name, max_attempts=self._max_attempts, timeout=self._timeout, remember=False)(
            run_turn
        )
        return fn

    def mount(self, path: str) -> Mount:
        """Return the routes of the chat below `path`.

        | Route | What it does |
        | --- | --- |
        | `POST {path}/{id}` | send a message, and stream its answer |
        | `GET {path}/{id}/events` | continue after the `Last-Event-ID` |
        | `GET {path}/{id}` | the messages, and the version to continue from |
        | `POST {path}/{id}/answer` | answer a question of the turn |
        | `POST {path}/agui` | a run of the AG-UI protocol |
        | `GET {path}/agui/{id}` | continue it after the `Last-Event-ID` |
        """
        return Mount(
            path,
            routes=[
                Route("/agui", self._run_agui, methods=["POST"]),
                Route("/agui/{conversation}", self._continue_agui, methods=["GET"]),
                Route("/{conversation}", self._send, methods=["POST"]),
                Route("/{conversation}", self._show, methods=["GET"]),
                Route("/{conversation}/events", self._continue, methods=["GET"]),
                Route("/{conversation}/answer", self._answer, methods=["POST"]),
            ],
        )

    # -- routes ----------------------------------------------------------------------------------

    async def _send(self, request: Request) -> Response:
        try:
            self._check_room()  # before the message is stored
            keeper, body = self._keeper(request), await _read_json(request)
            request_id = check_name(body.get("id") or uuid.uuid4().hex, "id")
            version = await keeper.begin(_read_message(body.get("message")), request_id)
            turn = keeper.turn_id(request_id)
            return self._stream(_encode(keeper.follow(turn, version)), turn)
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    async def _continue(self, request: Request) -> Response:
        try:
            keeper = self._keeper(request)
            given = request.headers.get("last-event-id") or request.query_params.get("after", "0")
            after = _read_version(given)
            turn = await keeper.find_turn()
            return self._stream(_encode(keeper.follow(turn, after)), turn)
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    async def _show(self, request: Request) -> Response:
        try:
            keeper = self._keeper(request)
            entries = await keeper.chat.entries()
            turn = await keeper.find_turn()
            state = await keeper.read_state(turn)
            found = {
                "messages": [_describe_message(entry) for entry in entries],
                "version": entries[-1].version if entries else 0,
                "turn": turn,
                "status": "working" if state is None else state.status,
                "questions": [] if state is None else _describe_questions(state),
            }
            return Response(msgspec.json.encode(found), media_type="application/json")
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    async def _answer(self, request: Request) -> Response:
        try:
            keeper, body = self._keeper(request), await _read_json(request)
            turn = check_name(body.get("turn") or await keeper.find_turn(), "turn")
            question = check_name(body.get("question"), "question")
            await keeper.answer(turn, question, body.get("value"), self._find_user(request))
            return Response(status_code=204)
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    async def _run_agui(self, request: Request) -> Response:
        try:
            self._check_room()
            run = read_run(await _read_json(request))
            keeper = self._keeper(request, check_name(run.thread_id, "threadId"))
            if run.answers:
                turn = check_name(await keeper.find_turn(), "turn")
                start = await keeper.chat.version()
                by = self._find_user(request)
                for question, (is_answered, value) in run.answers.items():
                    if is_answered:
                        await keeper.answer(turn, question, value, by)
                    else:
                        await keeper.cancel(turn, by)
            else:
                request_id = check_name(run.message_id, "the id of the message")
                start = await keeper.begin(run.message, request_id)
                turn = keeper.turn_id(request_id)
            events = AguiStream(keeper, turn, run.run_id, start)
            return self._stream(events.follow((start, -1)), turn)
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    async def _continue_agui(self, request: Request) -> Response:
        try:
            keeper = self._keeper(request)
            start, after = parse_event_id(request.headers.get("last-event-id", ""))
            turn = await keeper.find_turn()
            run_id = request.query_params.get("runId") or turn or ""
            events = AguiStream(keeper, turn, run_id, start)
            return self._stream(events.follow(after), turn)
        except (HoldfastError, TypeError, ValueError) as error:
            return _problem(error)

    def _keeper(self, request: Request, conversation: str | None = None) -> TurnKeeper:
        lifespan = find_lifespan(request)
        name = conversation or check_name(request.path_params["conversation"], "conversation")
        return TurnKeeper(self._name, lifespan, lifespan.find_store(request), name)

    def _find_user(self, request: Request) -> str | None:
        return None if self._user is None else self._user(request)

    def _check_room(self) -> None:
        if self._streams >= self._max_streams:
            raise Unavailable("the server has too many open streams; try again soon")

    def _stream(self, events: AsyncIterator[str], turn: str | None) -> Response:
        self._check_room()

        async def send() -> AsyncIterator[str]:
            self._streams += 1
            try:
                yield f"retry: {RETRY_MILLISECONDS}\n: follows\n\n"
                async for event in events:
                    yield event
            finally:
                self._streams -= 1
                await events.aclose()  # type: ignore[attr-defined]  # a generator

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if turn is not None:
            headers["x-holdfast-turn"] = quote(turn)  # it may have any characters
        return StreamingResponse(send(), media_type="text/event-stream", headers=headers)


async def _write(fn: Callable[..., Any], turn: ChatTurn) -> Any:
    """Run the function that answers, and store its text piece by piece. Return the message."""
    if inspect.iscoroutinefunction(fn):
        said = await fn(turn)
        return {"role": "assistant", "content": said} if isinstance(said, str) else said
    draft, is_first = DraftBuffer(DRAFT_SECONDS, DRAFT_CHARACTERS), True
    async for piece in fn(turn):
        if type(piece) is not str:
            raise TypeError(f"a piece of an answer must be a str, got {type(piece).__name__}")
        draft.add(piece)
        if draft.new and (is_first or draft.is_due()):
            await turn.chat.draft(draft.take(), of=draft.of)
            if is_first:
                # Progress: after a crash, this turn need not run alone.
                await current_step().save({"draft": draft.of}, flush=True)
            is_first = False
    if draft.new:
        await turn.chat.draft(draft.take(), of=draft.of)
    return {"role": "assistant", "content": draft.whole}


# -- events ----------------------------------------------------------------------------------------


async def _encode(items: AsyncIterator[TurnItem]) -> AsyncIterator[str]:
    """Yield a follower's items as server-sent events. The id of a stored item is its version."""
    async for item in items:
        if item is None:
            yield ": still here\n\n"
        elif isinstance(item, DraftPiece):
            yield format_event("delta", {"of": item.of, "text": item.text}, item.version)
        elif isinstance(item, MessageEntry):
            yield format_event("message", _describe_message(item), item.version)
        else:
            if item.questions:
                yield format_event("question", {"questions": _describe_questions(item)})
            yield format_event("done", {"status": item.status, "error": item.error})


def format_event(kind: str, data: Any, id: int | str | None = None) -> str:
    """Return a server-sent event."""
    head = f"event: {kind}\n" if kind else ""
    last = "" if id is None else f"id: {id}\n"
    return f"{head}{last}data: {msgspec.json.encode(data).decode()}\n\n"


def _describe_message(entry: MessageEntry) -> dict[str, Any]:
    return {"version": entry.version, "message": entry.message, "at": entry.at}


def _describe_questions(state: TurnState) -> list[dict[str, Any]]:
    return [
        {
            "id": question.id,
            "name": question.name,
            "text": question.text,
            "payload": question.payload,
            "schema": question.schema,
            "until": question.until,
        }
        for question in state.questions
    ]


# -- requests --------------------------------------------------------------------------------------


async def _read_json(request: Request) -> dict[str, Any]:
    """Return the body of a request.

    It must be declared as JSON: pages of other sites can then not send it with a user's cookies.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ValueError("the body must be JSON, with Content-Type: application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"a body must have at most {MAX_BODY_BYTES} bytes")
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("the body must be JSON") from None
    if not isinstance(found, dict):
        raise ValueError("the body must be a JSON object")
    return found


def _read_message(given: Any) -> dict[str, Any]:
    if isinstance(given, str) and given:
        return {"role": "user", "content": given}
    raise ValueError("message must be a string")


def _read_version(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise ValueError("Last-Event-ID must be the id of an event of this stream")
    return int(given)


def _problem(error: BaseException) -> Response:
    status = next((code for kind, code in _STATUS_CODES if isinstance(error, kind)), 500)
    facts = {"error": type(error).__name__, "message": str(error)}
    if isinstance(error, ChatBusy) and error.turn is not None:
        facts["turn"] = error.turn
    headers = {"retry-after": "1"} if status == 503 else None
    return Response(msgspec.json.encode(facts), status, headers, "application/json")
