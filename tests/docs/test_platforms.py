"""The package can be imported on Windows, and says there what it can't do.

There is no Windows here, so a process takes away what Python lacks there. It imports everything
once before that, because the libraries for Linux that the package uses need what is taken away.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from helpers.doc_pages import ROOT

PROGRAM = r"""
import importlib, os, pkgutil, signal, sys, warnings

warnings.simplefilter("ignore")  # of other libraries, while they are imported

import holdfast

names = ["holdfast"]
for found in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ImportError as error:  # a framework that is tested in an environment of its own
            assert found.name.startswith("holdfast.integrations."), error
        else:
            names.append(found.name)

for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "chown", "fchmod"),
    *("fork", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg"),
    *("pread", "pwrite", "register_at_fork", "sched_getaffinity", "setsid", "uname"),
):
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    delattr(signal, name)

for name in names:
    importlib.import_module(name)
print(len(names), "modules")

import holdfast

with holdfast.open("memory://") as store, store.task("t-1") as task:
    print(task.finish(task.step("add", lambda: 1 + 1)))
for url in ("agents.db", "sqlite:///agents.db", "file:///agents"):
    try:
        holdfast.open(url)
    except OSError as error:
        print(error)
"""


def test_every_module_can_be_imported_without_what_windows_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    modules, result, *refused = done.stdout.splitlines()
    assert int(modules.removesuffix(" modules")) > 300
    assert result == "2"
    assert len(refused) == 3
    assert all("on Windows, run Python in WSL 2" in line for line in refused)
    assert list(tmp_path.iterdir()) == []


def test_the_workflow_runs_the_tests_on_every_python_that_the_package_names() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    assert set(named) <= set(matrix["python"])
    table = (ROOT / "docs/reference/platforms.md").read_text()
    assert set(re.findall(r"^\| Python (3\.\d+) \|", table, re.MULTILINE)) == set(matrix["python"])
