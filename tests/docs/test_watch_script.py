"""The check in docs/howto/watch.md fires for tasks that were given up, and only for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import holdfast
from helpers.doc_pages import ROOT


def check(url: str) -> tuple[int, str]:
    """Run the script. Return its exit code and what it prints."""
    page = (ROOT / "docs/howto/watch.md").read_text()
    [script] = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    command = f'holdfast() {{ "{sys.executable}" -m holdfast.cli "$@"; }}\n{script}'
    run = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "HOLDFAST_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.returncode, run.stdout


def test_the_check_fires_for_tasks_that_were_given_up_and_not_for_those_that_wait_for_a_retry(
    tmp_path: Path,
) -> None:
    @holdfast.agent("retries", max_attempts=5)
    def retries(task: holdfast.Task) -> None:
        raise ValueError

    @holdfast.agent("fails", max_attempts=1)
    def fails(task: holdfast.Task) -> None:
        raise ValueError

    url = str(tmp_path / "agents.db")
    assert check(url)[0] == 2  # no store
    with holdfast.open(url) as store:
        store.submit(retries, "waits-for-its-retry")
        store.run_due()
        assert [info.status for info in store.tasks()] == ["retrying"]
    assert check(url) == (0, "")
    with holdfast.open(url) as store:
        store.submit(fails, "given-up")
        store.run_due()
    code, printed = check(url)
    assert code == 1
    assert "given-up" in printed and "waits-for-its-retry" not in printed
