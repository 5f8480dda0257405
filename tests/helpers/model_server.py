"""A scripted model behind the APIs of OpenAI and Anthropic, on this machine: what it was asked is
the evidence of what was restored.

    with ModelServer("first answer", Reply(calls=[Call("add", {"a": 1, "b": 2})]), 500) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        ...
        server.shown()     # the list of messages of each request

Chat completions, Responses and Messages, whole and streamed. It answers with the replies it was
given, and when none is left:

- after a tool result: `tool said: …`, or, for parallel calls, all their results;
- if the newest user text says `call NAME {"json": "arguments"}`, once or several times: with those
  calls;
- otherwise: `seen 3 messages; last: …`, where the number counts what it was shown.

As they do, it refuses a history with an unanswered tool call, or with an answer to none, with
status 400.

`hold()` stops the next call before its first byte, or in the middle of its stream, until released:
a program can be killed while a call is surely in flight. For a server that is to live in another
process, `python -m frameworks.model_server` (in the folder `tests`) prints its base URL; the same
controls are then under `/_log`, `/_say`, `/_hold`, `/_held` and `/_release`. Standard library only,
for the environments of other frameworks.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from helpers.messages_wire import check_turns, is_text_event, message, message_events, results_in
from helpers.model_wire import (
    Body,
    Call,
    Refused,
    Reply,
    chat_chunks,
    chat_completion,
    check_chat,
    check_items,
    messages_of,
    response,
    response_events,
)

__all__ = ["Call", "Hold", "ModelServer", "Reply"]

PATIENCE_SECONDS = 60.0
"""How long anything here waits for a test to do its part; a test that lets it pass fails."""

MODEL_PATHS = ("/chat/completions", "/responses", "/messages")
CALL = re.compile(r"\bcall (\w+) (?=\{)")


class Hold:
    """One call that is stopped, before its first byte or after some pieces of its stream."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._reached, self._released = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Return once the call is in flight and stopped."""
        if not self._reached.wait(PATIENCE_SECONDS):
            raise TimeoutError("no model call came")

    def release(self) -> None:
        """Let it go on; if whoever called is gone by now, nothing happens."""
        self._released.set()

    def _stop_here(self) -> None:
        self._reached.set()
        self._released.wait(PATIENCE_SECONDS)


class ModelServer:
    """The server, in a thread of this process while the `with` block lasts."""

    def __init__(self, *replies: Reply | str | int, port: int = 0) -> None:
        self.requests: list[Body] = []
        """Each request to the model, in order of arrival: {"path": "/v1/…", "body": {…}}."""
        self._script: list[Reply] = []
        self._holds: list[Hold] = []
        self._newest_hold: Hold | None = None
        self._responses: dict[str, list[Body]] = {}
        self._reasoned: dict[str, str] = {}
        self._changed = threading.Condition()
        self.say(*replies)
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
        self._server.model = self  # type: ignore[attr-defined]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for hold in self._holds:
            hold.release()
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve in this thread."""
        self._server.serve_forever()

    def say(self, *replies: Reply | str | int) -> None:
        """Answer with these next: a text, an HTTP status, or a `Reply`."""
        with self._changed:
            self._script += [_reply(reply) for reply in replies]

    def hold(self, *, after: int = 0) -> Hold:
        """Stop the next call before its first byte, or, if it is streamed, after so many pieces of
        text."""
        with self._changed:
            self._newest_hold = Hold(after)
            self._holds.append(self._newest_hold)
        return self._newest_hold

    def shown(self) -> list[list[Body]]:
        """The messages of each request."""
        return [messages_of(request["body"]) for request in list(self.requests)]

    def wait_for_requests(self, count: int) -> None:
        """Return once so many have arrived since the beginning."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, PATIENCE_SECONDS):
                raise TimeoutError(f"{len(self.requests)} requests came, not {count}")

    def _take(self, path: str, body: Body) -> tuple[int, Reply, Hold | None]:
        """Note a request; its number, what to answer and whether to stop on the way."""
        with self._changed:
            self.requests.append({"path": path, "body": body})
            number = len(self.requests)
            self._changed.notify_all()
            hold = self._holds.pop(0) if self._holds else None
            shown = self._responses.get(body.get("previous_response_id", ""), []) + messages_of(
                body
            )
            try:
                if path.endswith("/messages"):
                    check_turns(shown)
                    shown = [each for each in shown if each["role"] != "system"]
                elif "messages" in body:
                    check_chat(shown)
                else:
                    check_items(shown, self._reasoned)
            except Refused as error:
                return number, Reply(str(error), status=400), hold
            reply = (
                self._script.pop(0) if self._script else _derived(shown, body.get("tools") or [])
            )
            if "messages" not in body:
                output = response(number, body, reply)["output"]
                self._responses[f"resp_{number}"] = shown + output
                if reply.reasoning and len(output) > 1:
                    self._reasoned[output[1]["id"]] = output[0]["id"]
            return number, reply, hold

    def _drop_hold(self) -> None:
        """Release the newest hold, and forget it if no call came."""
        with self._changed:
            if self._newest_hold is not None:
                self._newest_hold.release()
            if self._newest_hold in self._holds:
                self._holds.remove(self._newest_hold)

    def _control(self, path: str, body: Any) -> Any:
        """What a test in another process asks for."""
        if path == "/_log":
            return self.requests
        if path == "/_say":
            self.say(*[_reply(said) for said in body])
        elif path == "/_hold":
            self._drop_hold()  # whoever asked for it was killed
            self.hold(after=int((body or {}).get("after", 0)))
        elif self._newest_hold is not None and path == "/_held":
            self._newest_hold.wait()
        elif self._newest_hold is not None and path == "/_release":
            self._drop_hold()
        else:
            return None
        return {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing: standard error belongs to the test."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            pass  # who called was killed between two requests

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(
            json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"null")
        )

    def _answer(self, body: Any) -> None:
        model: ModelServer = self.server.model  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        try:
            if not path.endswith(MODEL_PATHS):
                found = model._control(path, body)
                self._send(
                    404 if found is None else 200,
                    _error(404, "no such path") if found is None else found,
                )
                return
            number, reply, hold = model._take(path, body)
            streamed = bool(body.get("stream")) and reply.status == 200
            if hold and not (streamed and hold.after):
                hold._stop_here()
            if reply.status != 200:
                self._send(reply.status, _error(reply.status, reply.text or "as scripted"))
            elif streamed:
                self._stream(_forms(path)[1](number, body, reply), reply, hold)
            else:
                self._send(200, _forms(path)[0](number, body, reply))
        except ConnectionError:
            self.close_connection = True  # who called was killed

    def _send(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Sequence[Body], reply: Reply, hold: Hold | None) -> None:
        # Chunked, so that a client can tell an end from a break.
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        said = 0
        for data, is_text in _encoded(events):
            if is_text and said == reply.cut_after:
                self.close_connection = True
                if reply.cleanly:
                    self._chunk(b"")
                return
            self._chunk(data)
            said += is_text
            if is_text and hold and said == hold.after:
                hold._stop_here()
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _forms(path: str) -> tuple[Callable[..., Body], Callable[..., list[Body]]]:
    """The functions that make a whole answer and a streamed one."""
    if path.endswith("/messages"):
        return message, message_events
    if path.endswith("/responses"):
        return response, response_events
    return chat_completion, chat_chunks


def _encoded(events: Sequence[Body]) -> Iterator[tuple[bytes, bool]]:
    """Server-sent events, and whether each is a piece of the answer's text."""
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        is_text = (
            event.get("type") == "response.output_text.delta"
            or is_text_event(event)
            or any(choice["delta"].get("content") for choice in event.get("choices", ()))
        )
        yield f"{name}data: {json.dumps(event)}\n\n".encode(), is_text
    if events and "choices" in events[0]:
        yield b"data: [DONE]\n\n", False


def _reply(said: Any) -> Reply:
    if isinstance(said, Reply):
        return said
    if isinstance(said, int):
        return Reply(status=said)
    if isinstance(said, str):
        return Reply(said)
    return Reply(**{**said, "calls": [Call(**call) for call in said.get("calls", ())]})


def _error(status: int, message: str) -> Body:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _derived(shown: Sequence[Body], tools: Sequence[Body]) -> Reply:
    """The reply that follows from the request alone."""
    results: list[str] = []
    for item in reversed(shown):
        if item.get("role") != "tool" and item.get("type") != "function_call_output":
            break
        results.insert(0, _text(item.get("content", item.get("output"))))
    results = results or results_in(shown[-1])
    if results:
        return Reply("tool said: " + "; ".join(results))
    newest = next(
        (_text(item.get("content")) for item in reversed(shown) if item.get("role") == "user"), ""
    )
    offered = {(tool.get("function") or tool).get("name") for tool in tools}
    calls = [
        Call(found[1], json.JSONDecoder().raw_decode(newest, found.end())[0])
        for found in CALL.finditer(newest)
        if found[1] in offered
    ]
    if calls:
        return Reply(calls=calls)
    return Reply(f"seen {len(shown)} messages; last: {newest}")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


if __name__ == "__main__":
    server = ModelServer(port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    print(server.base_url, flush=True)
    server.serve_forever()
