"""The examples work as their first lines say: killed with -9 where it hurts, started again, and
they go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import holdfast
from helpers.model_server import ModelServer
from helpers.paths import ROOT

pytest_plugins = ["integrations.openai_fixtures"]

EXAMPLES = ROOT / "examples"


@contextmanager
def started(server: ModelServer, example: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """An example while it runs; it ends with the block, by kill -9 if it has not ended by then."""
    settings = {
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / example), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    ) as program:
        try:
            yield program
        finally:
            program.kill()


def say(program: subprocess.Popen[str], line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(line + "\n")
    program.stdin.flush()


def hear(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().rstrip("\n")


def end(program: subprocess.Popen[str]) -> Sequence[str]:
    """What is still said when there is no more to be read."""
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    return said.splitlines()


def test_the_chat_in_the_terminal_goes_on_where_it_was_killed(
    server: ModelServer, tmp_path: Path
) -> None:
    command = "openai_chat.py", str(tmp_path / "chat.db")
    with started(server, *command) as program:
        say(program, 'call roll {"sides": 1}')
        assert hear(program) == "tool said: 1"
        hold = server.hold(after=2)
        say(program, "hello")
        hold.wait()
    hold.release()
    with started(server, *command) as program:
        assert hear(program) == "(resuming after 5 messages)"
        assert hear(program) == "seen 6 messages; last: hello"
        say(program, "thanks")
        assert hear(program) == "seen 8 messages; last: thanks"
        assert end(program) == []


def test_the_support_bot_knows_its_customer_in_the_next_session(
    server: ModelServer, tmp_path: Path
) -> None:
    bot, place = "support_bot.py", str(tmp_path / "support.db")
    said = "My parcels go to Ghent"
    with started(server, bot, "ann", "monday", place) as program:
        say(program, said)
        assert hear(program) == f"seen 2 messages; last: {said}"
        hold = server.hold(after=1)
        say(program, "And when?")
        hold.wait()
    hold.release()
    with started(server, bot, "ann", "monday", place) as program:
        assert [hear(program), hear(program)] == ["(resuming)", "seen 4 messages; last: And when?"]
        assert end(program) == []
    with started(server, bot, "ann", "friday", place) as program:
        say(program, "Where do parcels go?")
        assert hear(program) == "seen 3 messages; last: Where do parcels go?"
        assert end(program) == []
    assert said in str(server.shown()[-1])
    with started(server, bot, "bo", "friday", place) as program:
        say(program, "Where do parcels go?")
        assert hear(program) == "seen 2 messages; last: Where do parcels go?"
        assert end(program) == []
    assert "Ghent" not in str(server.shown()[-1])
    with holdfast.open(place) as store:
        assert [one.text for one in store.memory("customer-ann").all()] == [said]


def test_the_cashier_killed_while_it_asks_asks_again_and_pays_once(
    server: ModelServer, tmp_path: Path
) -> None:
    words, place = 'call pay {"amount": 7, "to": "Ann"}', str(tmp_path / "agents.db")
    command = "openai_agents_session.py", "bill-17", words, place
    question = 'pay {"amount": 7, "to": "Ann"}? [y/n]'
    with started(server, *command) as program:
        assert hear(program) == question
    with started(server, *command) as program:
        said, _ = program.communicate(timeout=60)  # nobody is there to answer
        assert (said.splitlines(), program.returncode) == ([question], 1)
    with started(server, *command) as program:
        assert hear(program) == question
        say(program, "y")
        assert end(program) == ["paying 7 to Ann", "tool said: paid"]
    with started(server, *command) as program:
        assert end(program) == ["tool said: paid"]
    assert len(server.requests) == 2
    with holdfast.open(place) as store:
        assert store.conversation("bill-17").validate() == []


def test_the_durable_cashier_killed_while_it_asks_asks_again_and_pays_once(
    server: ModelServer, tmp_path: Path
) -> None:
    words, place = 'call pay {"amount": 7, "to": "Ann"}', str(tmp_path / "agents.db")
    command = "openai_agents_runner.py", "bill-17", words, place
    question = 'pay {"amount": 7, "to": "Ann"}? [y/n]'
    with started(server, *command) as program:
        assert hear(program) == question
    with started(server, *command) as program:
        assert hear(program) == question
        say(program, "y")
        assert end(program) == ["paying 7 to Ann", "tool said: paid"]
    with started(server, *command) as program:
        assert end(program) == ["tool said: paid"]
    assert len(server.requests) == 2


def test_the_cashier_says_how_it_is_called(server: ModelServer) -> None:
    with started(server, "openai_agents_session.py") as program:
        program.communicate(timeout=60)
        assert program.returncode == 1
