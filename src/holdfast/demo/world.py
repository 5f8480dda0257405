"""The outside world of the demo: serves the agent's requests, counts them, and kills the agent.

It runs in the parent process, not in the agent's, and knows nothing of the store.
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

from .claim import CLOSING, MAILS, PAY, KillMoment, answer_question

MODEL_CALLS: Final = "model calls"
_EFFECTS: Final = {"bank": "payments", "mail": "emails"}
_EFFECT_KILLS: Final = {
    "bank": "after the bank paid, before the step was recorded",
    "mail": "after the email was sent, before the step was recorded",
}


class AgentKilled(Exception):
    """The agent was killed, so its request gets no response."""


@dataclass
class AgentRun:
    """One run of the agent's process, as the world saw it."""

    number: int
    kept: list[str] = field(default_factory=list)
    """Steps that were already finished when the run started."""
    halfway: list[str] = field(default_factory=list)
    """Steps in which an earlier run was killed after saving progress."""
    done: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Steps that were not repeated, because the service reported that they were done."""
    doing: str = ""
    killed: KillMoment | None = None
    resume_context: str = ""


class World:
    """A model, a bank and a mail service on a local port. `kills` are in the order they happen."""

    def __init__(
        self,
        kills: Iterable[KillMoment] = (),
        *,
        think: float = 0.0,
        on_step: Callable[[AgentRun], None] = lambda run: None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.moments: dict[KillMoment, Counter[str]] = {}
        """Every moment that was reached, with the counts so far."""
        self.runs: list[AgentRun] = []
        self.result: Any = None
        self._kills, self._think, self._on_step = list(kills), think, on_step
        self._books: dict[str, list[dict[str, Any]]] = {"bank": [], "mail": []}
        self._lock = threading.Lock()
        self._agent: subprocess.Popen[bytes] | None = None
        self._server = _Server(("127.0.0.1", 0), _create_handler(self))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> World:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def start_run(
        self, command: list[str], environment: dict[str, str]
    ) -> tuple[AgentRun, subprocess.Popen[bytes]]:
        """Start the agent's process."""
        with self._lock:  # no kill before the process to kill is known
            self.runs.append(AgentRun(len(self.runs) + 1))
            self._agent = subprocess.Popen(  # noqa: S603  our own module
                command, stdin=subprocess.DEVNULL, env=environment
            )
            return self.runs[-1], self._agent

    # -- the agent's requests ------------------------------------------------------------------

    def on_begin(self, kept: list[str], halfway: list[str]) -> None:
        self.runs[-1].kept, self.runs[-1].halfway = kept, halfway
        self._show(self.runs[-1], "starting")

    def on_ask(self, messages: list[dict[str, str]]) -> str:
        *before, question = messages
        answer = answer_question(question["content"])
        run = self.runs[-1]
        run.resume_context = "\n".join(message["content"] for message in before)
        self.counts[MODEL_CALLS] += 1  # billed even if the agent never gets the answer
        self._show(run, f"model: {question['content']}")
        time.sleep(self._think / 2)
        self._reach(answer.moment)
        time.sleep(self._think / 2)
        return answer.text

    def on_do(self, service: str, to: str, what: object, key: str) -> str:
        book = self._books[service]
        book.append({"to": to, "what": what, "key": key})
        number = f"{service}-{len(book)}"
        self.counts[f"{_EFFECTS[service]} to the {to}"] += 1
        step = PAY if service == "bank" else MAILS[to]
        self._show(self.runs[-1], step)
        self._reach(KillMoment("effect", step, _EFFECT_KILLS[service]))
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

    def on_report(self, step: str) -> None:
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
        self._on_step(run)

    def _reach(self, moment: KillMoment) -> None:
        with self._lock:
            self.moments.setdefault(moment, self.counts.copy())
            if not self._kills or self._kills[0] != moment:
                return
            self._kills.pop(0)
            self.runs[-1].killed = moment
            assert self._agent is not None
            self._agent.kill()
            self._agent.wait()  # before its connection closes: the agent must not see that
        raise AgentKilled


class _Server(ThreadingTCPServer):
    # Not HTTPServer, which looks up its host name in DNS: there may be no network.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A ConnectionError is expected: the agent was killed.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _create_handler(world: World) -> type[BaseHTTPRequestHandler]:
    calls = {
        f"/{name}": getattr(world, f"on_{name}")
        for name in ("begin", "ask", "do", "find", "report", "end")
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                response = json.dumps(calls[self.path](**body)).encode()
            except AgentKilled:
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the demo shows the requests itself."""

    return Handler
