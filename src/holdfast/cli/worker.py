"""`holdfast worker`: run queued tasks of an application's agents until stopped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from .. import HoldfastError, Worker
from ..tasks.agents.declare import registered_agents
from ..types import RunResult
from .durations import duration_option
from .stores import Tenant, Url, fail, open_store
from .text import printable

if TYPE_CHECKING:
    from rich.text import Text

_STOPPING = b"holdfast: stopping; tasks stop at their next step. Repeat to exit at once.\n"
_MAX_SHOWN_TASKS = 5


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP",
            help="The application with the agents: a file (app.py) or a module (shop.agents).",
        ),
    ],
    url: Url = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Maximum number of tasks to run concurrently.")
    ] = 4,
    poll: Annotated[
        float, duration_option("How often to poll for due tasks.", least=0.01, default="0.5s")
    ] = 0.5,
    grace: Annotated[
        float, duration_option("How long to wait for running steps on shutdown.", default="30s")
    ] = 30.0,
    tenant: Tenant = "default",
) -> None:
    """Run queued tasks until stopped.

    SIGTERM or Ctrl-C stops the worker. Any number of workers can share a store.
    """
    load_app(app)
    if not registered_agents:
        fail(f"{app} has no agents; decorate a function with @holdfast.agent('claims')")
    left: list[str] = []
    code = 0
    try:
        with open_store(url, tenant, create=True) as store, _RunDisplay(concurrency) as display:
            work = Worker(
                store, concurrency=concurrency, poll=poll, grace=grace, report=display.report
            )
            _stop_on_signals(work)
            display.print(f"working for {', '.join(work.agents)}")
            try:
                left = work.run()
            except HoldfastError:  # no write permission; `open_store` reports it
                left = list(work._running)
                raise
            finally:
                within = f" in the middle of long steps: {', '.join(left)}" if left else ""
                display.print(f"stopped{within}")
    except typer.Exit as end:
        code = end.exit_code
    if left:
        sys.stdout.flush()
        os._exit(code)  # a normal exit would wait for the threads that still run
    raise typer.Exit(code)


def load_app(app: str) -> None:
    """Import the application once, with the path that Python would give it."""
    is_file = app.endswith(".py") or os.sep in app
    if is_file and not os.path.isfile(app):
        fail(f"there is no file {app}; name a file, such as app.py, or a module")
    if is_file and Path(app).stem in sys.modules:
        fail(f"{app} has the same name as the loaded module {Path(app).stem}; rename the file")
    sys.path.insert(0, str(Path(app).resolve().parent) if is_file else os.getcwd())
    try:
        if is_file:
            _load_file(app)
        else:
            importlib.import_module(app)
    except Exception as error:
        name = error.name if isinstance(error, ModuleNotFoundError) else None
        if name is not None and (app == name or app.startswith(f"{name}.")):
            fail(f"there is no module {app} here; name a file, such as app.py, or a module")
        traceback.print_exc()
        fail(f"{app} could not be imported")


def _load_file(path: str) -> None:
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, Path(path).resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # an import by name gets this module: its agents register once
    spec.loader.exec_module(module)


def _stop_on_signals(work: Worker) -> None:
    """Stop the worker on the first signal and end the process on the second."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stopping:
            os._exit(128 + number)
        stopping.append(number)
        os.write(2, _STOPPING)  # not `print`, which this may have interrupted
        work.stop()

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


class _RunDisplay:
    """Prints a line for each run that starts or ends; on a terminal, also a live status line."""

    def __init__(self, concurrency: int) -> None:
        from rich.console import Console  # slow to import, and other commands do not need it

        self._console = Console(highlight=False, soft_wrap=True)
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._status = self._console.status("") if live else None
        self._lock = threading.Lock()
        self._concurrency, self._running = concurrency, dict[str, None]()
        self._ended: Counter[str] = Counter()

    def __enter__(self) -> _RunDisplay:
        if self._status is not None:
            self._status.update(self._status_text())
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def print(self, text: str) -> None:
        """Print a line with the time."""
        self._console.print(f"{datetime.now():%H:%M:%S}  {printable(text)}", markup=False)

    def report(self, run: RunResult) -> None:
        """Print a run. The `Worker` calls this from any thread."""
        with self._lock:
            if run.status == "running" and not run.seconds:
                self._running[run.id] = None
            else:
                self._running.pop(run.id, None)
                self._ended[run.status] += 1
            self.print(_run_line(run))
            if self._status is not None:
                self._status.update(self._status_text())

    def _status_text(self) -> Text:
        from rich.text import Text

        names = list(self._running)
        more = " …" if len(names) > _MAX_SHOWN_TASKS else ""
        shown = ", ".join(map(printable, names[:_MAX_SHOWN_TASKS])) + more
        ended = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        parts = [f"running {len(names)} of {self._concurrency}", shown, ended]
        return Text("  ".join(filter(None, parts)), no_wrap=True, overflow="ellipsis")


def _run_line(run: RunResult) -> str:
    line = f"{run.agent}  {run.id}  {run.status}"
    if run.status == "running" and not run.seconds:
        return line
    waits = f"waits for {', '.join(run.waits_for)}" if run.waits_for else ""
    return "  ".join(filter(None, [line, f"{run.seconds:.1f} s", run.error, waits]))
