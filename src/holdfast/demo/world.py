"""The outside world of the demo: it does what it is asked, counts what it did, and kills the agent when the time has come.

It lives in the process that watches, not in the one that dies, and knows nothing of the store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final

from .claim import CLOSING, MAILS, PAY, KillMoment, answer

MODEL_CALLS: Final = "calls of the model"
_IN_WORDS: Final = {"bank": "payments", "mail": "mails"}
_EFFECTS: Final = {
    "bank": "after the bank paid, before it was recorded",
    "mail": "after the mail went, before it was recorded",
}


class Struck(Exception):
    """The agent was killed; there is nobody to answer."""


@dataclass
class AgentRun:
    """One life of the agent, as the world saw it."""

    number: int
    kept: list[str] = field(default_factory=list)
    """Steps that were finished when it began."""
    halfway: list[str] = field(default_factory=list)
    """Steps that an earlier run was killed in, and that had saved how far they were."""
    done: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Steps of which it asked the service first, and heard that they were done."""
    doing: str = ""
    killed: KillMoment | None = None
    briefing: str = ""


class World:
    """A model, a bank and a mail service on a port of this machine. `kills` are the moments to strike at, in order."""

    def __init__(
        self,
        kills: Iterable[KillMoment] = (),
        *,
        think: float = 0.0,
        watch: Callable[[AgentRun], None] = lambda run: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.moments: dict[KillMoment, Counter[str]] = {}
        """Every moment that was reached, and what had been counted by then."""
        self.runs: list[AgentRun] = []
        self.result: Any = None
        self._kills, self._think, self._watch = list(kills), think, watch
        self._books: dict[str, list[dict[str, Any]]] = {"bank": [], "mail": []}
        self._lock = threading.Lock()
        self._agent: subprocess.Popen[bytes] | None = None
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> World:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def start(
        self, start: Callable[[], subprocess.Popen[bytes]]
    ) -> tuple[AgentRun, subprocess.Popen[bytes]]:
        """Begin a run with the process that `start` starts."""
        with self._lock:  # no moment is reached before it is known whom to kill
            self.runs.append(AgentRun(len(self.runs) + 1))
            self._agent = start()
            return self.runs[-1], self._agent

    # -- what the agent can ask for ----------------------------------------------------------------

    def on_begin(self, kept: list[str], halfway: list[str]) -> None:
        self.runs[-1].kept, self.runs[-1].halfway = kept, halfway
        self._show(self.runs[-1], "begins")

    def on_ask(self, messages: list[dict[str, str]]) -> str:
        *before, question = messages
        said = answer(question["content"])
        run = self.runs[-1]
        run.briefing = "\n".join(message["content"] for message in before)
        self.counts[MODEL_CALLS] += 1  # answered or not, it is paid for
        self._show(run, f"model: {question['content']}")
        time.sleep(self._think / 2)
        self._reach(said.moment)
        time.sleep(self._think / 2)
        return said.text

    def on_do(self, service: str, to: str, what: object, key: str) -> str:
        book = self._books[service]
        book.append({"to": to, "what": what, "key": key})
        number = f"{service}-{len(book)}"
        self.counts[f"{_IN_WORDS[service]} to the {to}"] += 1
        step = PAY if service == "bank" else MAILS[to]
        self._show(self.runs[-1], step)
        self._reach(KillMoment("effect", step, _EFFECTS[service]))
        return number

    def on_find(self, service: str, key: str) -> str | None:
        numbers = [
            number for number, entry in enumerate(self._books[service], 1) if entry["key"] == key
        ]
        if not numbers:
            return None
        entry = self._books[service][numbers[0] - 1]
        self.runs[-1].found.append(PAY if service == "bank" else MAILS[entry["to"]])
        return f"{service}-{numbers[0]}"

    def on_tell(self, step: str) -> None:
        run = self.runs[-1]
        if step not in run.kept:
            run.done.append(step)
            self._show(run, step)
            self._reach(KillMoment("between", step, f'between steps, after "{step}"'))

    def on_end(self, result: Any) -> None:
        self.result = result
        self.runs[-1].done.append(CLOSING)
        self._show(self.runs[-1], "finished")

    def _show(self, run: AgentRun, doing: str) -> None:
        run.doing = doing
        self._watch(run)

    def _reach(self, moment: KillMoment) -> None:
        with self._lock:
            self.moments.setdefault(moment, self.counts.copy())
            if not self._kills or self._kills[0] != moment:
                return
            self._kills.pop(0)
            self.runs[-1].killed = moment
            assert self._agent is not None
            self._agent.kill()
            self._agent.wait()  # before its connection is closed: it must not live to see that
        raise Struck


class _Server(ThreadingTCPServer):
    # Not HTTPServer, which asks the name service for its own name: here is perhaps no network.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(
            sys.exc_info()[1], ConnectionError
        ):  # the agent has gone; that is the idea
            super().handle_error(request, client_address)


def _handler(world: World) -> type[BaseHTTPRequestHandler]:
    calls = {
        f"/{name}": getattr(world, f"on_{name}")
        for name in ("begin", "ask", "do", "find", "tell", "end")
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                said = json.dumps(calls[self.path](**body)).encode()
            except Struck:
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            """The demo says itself what happens."""

    return Handler
