"""What the tests of the command line share: an environment without surprises, and a way to run a
command in it."""

from __future__ import annotations

import subprocess

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.app import app


def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide, without colours, and with no store named in the environment."""
    for name in ("HOLDFAST_URL", "HOLDFAST_TENANT", "FORCE_COLOR", "PY_COLORS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def run(
    *arguments: object, input: str | bytes | None = None, env: dict[str, str] | None = None
) -> Result:
    """Run a command. `input` is what it reads at its standard input."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=input, env=env)


def paste(line: str) -> list[str]:
    """Return the arguments that bash hands to `holdfast` if this line is pasted."""
    script = f"holdfast() {{ printf '%s\\0' \"$@\"; }}\n{line}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C"}, timeout=60
    )
    return done.stdout.decode().split("\0")[:-1]
