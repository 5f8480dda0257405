"""The programs of `examples/before_and_after`, killed with -9 in the middle of their work: what
those by hand lose, and what those with Holdfast keep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from helpers.model_server import ModelServer
from helpers.paths import ROOT
from helpers.servers import url_on

pytest_plugins = ["integrations.openai_fixtures"]

PROGRAMS = ROOT / "examples" / "before_and_after"
PAIRS = sorted(path.stem.removesuffix("_before") for path in PROGRAMS.glob("*_before.py"))


class Bank:
    """A bank on loopback. It pays each key once more for each POST, and says what it has paid.

    While `silent`, it pays and does not answer: the caller is killed in between.
    """

    def __init__(self) -> None:
        self.payments: list[str] = []
        self.silent = False
        self.paid, self.closing = threading.Event(), threading.Event()
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer("paid 3000" if self.path in bank.payments else None)

            def do_POST(self) -> None:
                bank.payments.append(self.path)
                bank.paid.set()
                if bank.silent:
                    bank.closing.wait(60)
                else:
                    self.answer("paid 3000")

            def answer(self, value: str | None) -> None:
                body = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.close()


@contextmanager
def started(
    program: str, store: str, server: ModelServer, **settings: str
) -> Iterator[subprocess.Popen[str]]:
    """A program while it runs. At the end of the block it is killed with -9."""
    environment = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none", **settings}
    with subprocess.Popen(
        [sys.executable, str(PROGRAMS / f"{program}.py"), store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str], *lines: str) -> list[str]:
    """Give the program its input to the end, and return what it prints."""
    printed, _ = process.communicate("".join(f"{line}\n" for line in lines), timeout=60)
    assert process.returncode == 0
    return printed.splitlines()


@pytest.mark.parametrize("pair", PAIRS)
def test_the_program_after_is_no_longer_than_the_one_before(pair: str) -> None:
    before, after = (
        [
            line
            for line in (PROGRAMS / f"{pair}_{which}.py").read_text().splitlines()
            if line.strip()
        ]
        for which in ("before", "after")
    )
    assert len(after) <= len(before)


@pytest.mark.parametrize("kind", ["openai_chat", "openai_chat_async"])
@pytest.mark.parametrize("which", ["before", "after"])
def test_a_chat_that_is_killed_while_the_model_answers(
    kind: str, which: str, server: ModelServer, tmp_path: Path
) -> None:
    program, store = f"{kind}_{which}", str(tmp_path / "chat")
    with started(program, store, server) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("first\n")
        process.stdin.flush()
        assert process.stdout.readline() == "seen 1 messages; last: first\n"
        hold = server.hold()
        process.stdin.write("second\n")
        process.stdin.flush()
        hold.wait()
    hold.release()
    with started(program, store, server) as process:
        printed = finish(process, "third")
    if which == "before":
        assert printed == ["seen 3 messages; last: third"], "the second question is lost"
    else:
        assert printed == ["seen 3 messages; last: second", "seen 5 messages; last: third"]


@pytest.mark.parametrize("which", ["before", "after", "after on dynamodb"])
def test_a_checkpoint_loop_that_is_killed_while_it_pays_pays_once(
    which: str, server: ModelServer, bank: Bank, tmp_path: Path
) -> None:
    on_aws = which == "after on dynamodb"
    store = url_on("dynamodb", tmp_path) if on_aws else str(tmp_path / "agents.db")
    program = "checkpoint_loop_" + which.split()[0]
    bank.silent = True
    with started(program, store, server, BANK_URL=bank.url) as process:
        assert bank.paid.wait(60)
    bank.silent = False
    with started(program, store, server, BANK_URL=bank.url) as process:
        printed = finish(process)
    assert [line.partition(":")[0] for line in printed] == ["pay", "write the letter"]
    assert printed[0] == "pay: paid 3000"
    assert len(bank.payments) == 1
    asked = [shown[-1]["content"] for shown in server.shown()]
    assert asked == ["read the claim", "write the letter"], "no model call is repeated"
    briefing = server.shown()[1][0]["content"]
    assert "Settle claim 42" in briefing and "paid 3000" in briefing


@pytest.mark.parametrize(
    ("which", "runs"), [("before", "both runs pay"), ("after", "the second run is refused")]
)
def test_a_checkpoint_loop_that_is_started_twice(
    which: str, runs: str, server: ModelServer, bank: Bank, tmp_path: Path
) -> None:
    program, store = f"checkpoint_loop_{which}", str(tmp_path / "agents.db")
    hold = server.hold()
    with started(program, store, server, BANK_URL=bank.url) as first:
        hold.wait()
        with started(program, store, server, BANK_URL=bank.url) as second:
            if which == "before":
                finish(second)
                hold.release()
                finish(first)
                asked = [shown[-1]["content"] for shown in server.shown()]
                assert asked.count("read the claim") == 2, "two processes did the same work"
                return
            hold.release()
            finish(first)
            printed = finish(second)
    assert [line.partition(":")[0] for line in printed] == []
    asked = [shown[-1]["content"] for shown in server.shown()]
    assert asked == ["read the claim", "write the letter"]
    assert len(bank.payments) == 1
