"""The programs of the README and the tutorials resume after a real kill -9, as the pages show."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.doc_pages import BLOCK, ROOT

CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown_runs(page: str, program: str) -> list[list[str]]:
    """Return the lines that the page shows below each `$ python program`."""
    consoles = "".join(CONSOLE.findall((ROOT / page).read_text()))
    runs = re.split(rf"\$ (?:timeout -s KILL [0-9.]+ )?python {re.escape(program)}\n", consoles)[1:]
    return [run.partition("\n$ ")[0].splitlines() for run in runs]


@pytest.mark.parametrize(
    ("page", "block", "program", "runs"),
    [
        ("README.md", 0, "agent.py", slice(0, 3)),
        ("docs/tutorial-agent.md", 0, "agent.py", slice(0, 3)),
        ("docs/tutorial-agent.md", 1, "agent.py", slice(3, 5)),
        ("docs/tutorial.md", 1, "chat.py", slice(0, 2)),
        ("docs/quickstart.md", 0, "research.py", slice(0, 3)),
        ("docs/explanation/exactly-once.md", 0, "pay.py", slice(0, 3)),
    ],
)
def test_a_program_on_the_page_is_killed_and_resumes_as_shown(
    page: str, block: int, program: str, runs: slice, tmp_path: Path
) -> None:
    (tmp_path / program).write_text(BLOCK.findall((ROOT / page).read_text())[block])
    killed, *later = shown_runs(page, program)[runs]
    assert killed.pop().startswith("Killed")

    process = subprocess.Popen(
        [sys.executable, program], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        printed = [process.stdout.readline().rstrip() for _ in killed]
        process.kill()
    assert (printed, process.returncode) == (killed, -signal.SIGKILL)

    for shown in later:
        again = subprocess.run(
            [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert again.stdout.splitlines() == [line for line in shown if line]
