"""The example and the command line do what their first lines say."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver

import holdfast
from helpers.paths import ROOT
from helpers.run_cli import plain_terminal, run
from holdfast.integrations.langgraph import HoldfastSaver

from .graphs import chat_graph, thread


def start(place: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples/langgraph_agent.py"), "bill-17", "7", str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_example_killed_while_it_asks_asks_again_and_pays_once(tmp_path: Path) -> None:
    heard = []
    with start(tmp_path / "agents.db") as program:
        assert program.stdout is not None
        heard += [program.stdout.readline() for _ in range(2)]
        program.send_signal(signal.SIGKILL)
    for answer in ("y\n", ""):
        with start(tmp_path / "agents.db") as program:
            heard += program.communicate(answer, timeout=240)[0].splitlines(keepends=True)
            assert program.returncode == 0
    assert heard == [
        "checking the bill\n",
        "Pay 7? [y/n]\n",
        "Pay 7? [y/n]\n",
        "paying 7\n",
        "checked, paid 7\n",
        "checked, paid 7\n",
    ]


def test_migrate_imports_the_threads_of_a_saver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_terminal(monkeypatch)
    with closing(sqlite3.connect(tmp_path / "old.db", check_same_thread=False)) as connection:
        chat_graph(SqliteSaver(connection)).invoke({"messages": [HumanMessage("Hello")]}, thread())
    result = run("migrate", tmp_path / "agents.db", tmp_path / "old.db")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "imported 3 checkpoints and 3 writes of 1 thread"
    again = json.loads(run("migrate", tmp_path / "agents.db", tmp_path / "old.db", "--json").stdout)
    assert again == {"threads": 1, "checkpoints": 0, "writes": 0, "unreadable": []}
    with holdfast.open(tmp_path / "agents.db") as store:
        found = HoldfastSaver(store).get_tuple(thread())
        assert found is not None
        assert [one.content for one in found.checkpoint["channel_values"]["messages"]] == [
            "Hello",
            "answer 1",
        ]
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("UPDATE checkpoints SET type = 'pickle'")
        connection.commit()
    bad = run("migrate", tmp_path / "other.db", tmp_path / "old.db")
    assert bad.exit_code == 1
    assert bad.stderr.count("left out: thread 't'") == 3
    missing = run("migrate", tmp_path / "other.db", tmp_path / "missing.db")
    assert missing.exit_code == 1 and "must be an SQLite file" in missing.stderr
