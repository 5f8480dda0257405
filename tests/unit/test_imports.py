"""`import holdfast` and the command line import what they need and no more, to start quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

PACKAGES = {"backends", "encryption", "errors", "log", "redaction"}
"""The packages and modules of Holdfast that every program needs."""
MAX_MODULES = 40
"""How many modules of Holdfast every program may load: each takes time to find and to run."""
UNAVOIDABLE = "import concurrent.futures.thread, contextvars, hashlib, logging, msgspec"
"""What every program needs of other packages. Some Pythons load much with it: on 3.10, msgspec
loads subprocess, by way of uuid and platform."""
SLOW = {
    "apsw",
    "ast",
    "asyncio",
    "click",
    "dataclasses",
    "email",
    "html",
    "http",
    "inspect",
    "ipaddress",
    "json",
    "multiprocessing",
    "pathlib",
    "random",
    "rich",
    "shutil",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "typing_extensions",
    "urllib.parse",
    "urllib.request",
}
"""Modules that only some programs need."""


def modules_after(code: str, *arguments: str) -> set[str]:
    """Return the modules that a new process has imported after running the code."""
    script = f"""
import sys
before = set(sys.modules)
try:
    {code}
except SystemExit:
    pass
found = sorted(set(sys.modules) - before)
sys.stderr.write(repr(found).replace("'", '"'))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr))


def test_importing_holdfast_imports_only_what_every_program_needs() -> None:
    found = modules_after("import holdfast")
    assert (found - modules_after(UNAVOIDABLE)) & SLOW == set()
    own = {name for name in found if name.startswith("holdfast.")}
    assert len(own) < MAX_MODULES
    parts = {name.split(".")[1] for name in own}
    assert {part for part in parts if not part.startswith("_")} == PACKAGES
    backends = {name for name in found if name.startswith("holdfast.backends.")}
    assert backends == {
        f"holdfast.backends.{name}" for name in ("clock", "deadline", "fork", "interface", "urls")
    }


@pytest.mark.parametrize("milliseconds", [0, 2, 4, 8])
def test_threads_may_make_their_first_calls_at_the_same_time(milliseconds: int) -> None:
    """A thread may see half of a package that another one is importing."""
    code = f"""
import threading, time, holdfast
store, failed = holdfast.open("memory://"), []
def call(function):
    try:
        function()
    except Exception as error:
        failed.append(repr(error))
calls = [
    lambda: store.get_task("t"),
    lambda: store.submit("claims", "c", goal="x"),
    lambda: list(store.tasks()),
    lambda: holdfast.replay,
    lambda: store.memory("m").remember("x"),
    lambda: store.health(),
]
threads = [threading.Thread(target=call, args=(each,)) for each in calls]
for thread in threads:
    thread.start()
    time.sleep({milliseconds} / 1000)
for thread in threads:
    thread.join()
print(failed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_can_be_imported() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
        assert name in dir(holdfast)


def test_help_does_not_import_rich(tmp_path: Path) -> None:
    main = "from holdfast.cli import main; main()"
    assert "rich" not in modules_after(main, "--help")
    assert "rich" not in modules_after(main, "tasks", "--help")


def test_listing_tasks_imports_no_other_backend(tmp_path: Path) -> None:
    path = str(tmp_path / "agents.db")
    holdfast.open(path).close()
    found = modules_after("from holdfast.cli import main; main()", "tasks", path)
    assert "rich" not in found
    backends = {name.split(".")[2] for name in found if name.startswith("holdfast.backends.")}
    assert "sqlite" in backends
    assert backends.isdisjoint({"files", "postgres", "redis", "memory"})
    commands = {name for name in found if name.startswith("holdfast.cli.")}
    assert "holdfast.cli.tasks" in commands
    assert commands.isdisjoint(f"holdfast.cli.{name}" for name in ("worker", "memory", "keys"))
    assert "pydantic" not in found and "asyncio" not in found
