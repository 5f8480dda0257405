"""`holdfast worker`: runs the due tasks of a program's agents, and says what becomes of them."""

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
from ..tasks.agents.declare import registered
from ..types import RunResult
from .durations import duration
from .stores import Tenant, Url, failed, opened
from .text import printable

if TYPE_CHECKING:
    from rich.text import Text

_STOPPING = b"holdfast: stopping; tasks stop at their next step. Once more ends it at once.\n"
_SHOWN = 5


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP",
            help="The program with the agents: a file, app.py, or a module, shop.agents.",
        ),
    ],
    url: Url = None,
    concurrency: Annotated[int, typer.Option(min=1, help="So many tasks at once.")] = 4,
    poll: Annotated[
        float, duration("How often to look for tasks that are due.", least=0.01, default="0.5s")
    ] = 0.5,
    grace: Annotated[
        float, duration("How long to wait for running steps when stopped.", default="30s")
    ] = 30.0,
    tenant: Tenant = "default",
) -> None:
    """Run the due tasks of the agents in a program, until SIGTERM or Ctrl-C. Start as many as you like."""
    _load(app)
    if not registered:
        raise failed(f"{app} has no agents; write @holdfast.agent('claims') above def claims(task)")
    left: list[str] = []
    code = 0
    try:
        with opened(url, tenant, create=True) as store, _Show(concurrency) as show:
            work = Worker(
                store, concurrency=concurrency, poll=poll, grace=grace, report=show.report
            )
            _stop_on_signals(work)
            show.say(f"working for {', '.join(work.agents)}")
            try:
                left = work.run()
            except HoldfastError:  # it may not write; `opened` says so
                left = list(work._running)
                raise
            finally:
                show.say(
                    "stopped"
                    if not left
                    else f"stopped in the middle of long steps: {', '.join(left)}"
                )
    except typer.Exit as end:
        code = end.exit_code
    if left:
        sys.stdout.flush()
        os._exit(code)  # what still runs in threads would be waited for
    raise typer.Exit(code)


def _load(app: str) -> None:
    """Import the program, once, with the path that Python would give it."""
    is_file = app.endswith(".py") or os.sep in app
    if is_file and not os.path.isfile(app):
        raise failed(f"there is no file {app}; name your program, like app.py, or a module")
    if is_file and Path(app).stem in sys.modules:
        raise failed(
            f"{app} is named like a module that is in use, {Path(app).stem}; give it another name"
        )
    sys.path.insert(0, str(Path(app).resolve().parent) if is_file else os.getcwd())
    try:
        if is_file:
            _load_file(app)
        else:
            importlib.import_module(app)
    except ModuleNotFoundError as error:
        if error.name is not None and (app == error.name or app.startswith(f"{error.name}.")):
            raise failed(
                f"there is no module {app} here; name a file, like app.py, or a module"
            ) from None
        raise _not_loaded(app) from None
    except Exception:
        raise _not_loaded(app) from None


def _load_file(path: str) -> None:
    name = Path(path).stem
    spec = importlib.util.spec_from_file_location(name, Path(path).resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = (
        module  # whoever imports it by name gets this one, and its agents are registered once
    )
    spec.loader.exec_module(module)


def _not_loaded(app: str) -> typer.Exit:
    traceback.print_exc()
    return failed(f"{app} could not be imported")


def _stop_on_signals(work: Worker) -> None:
    """The first signal lets the worker stop in order, the second ends the process."""

    def handle(number: int, _frame: FrameType | None) -> None:
        if stopping:
            os._exit(128 + number)
        stopping.append(number)
        os.write(2, _STOPPING)  # not `print`, which this may have interrupted
        work.stop()

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


class _Show:
    """A line for each run that begins or ends; on a terminal, below them one that says how it stands."""

    def __init__(self, concurrency: int) -> None:
        from rich.console import (
            Console,  # here: it takes a while, and no other command needs it to begin
        )

        self._console = Console(highlight=False, soft_wrap=True)
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._status = self._console.status("") if live else None
        self._lock = threading.Lock()
        self._concurrency, self._running = concurrency, dict[str, None]()
        self._ended: Counter[str] = Counter()

    def __enter__(self) -> _Show:
        if self._status is not None:
            self._status.update(self._standing())
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S}  {printable(text)}", markup=False)

    def report(self, ran: RunResult) -> None:
        """What `Worker` calls, from any thread."""
        with self._lock:
            if ran.status == "running" and not ran.seconds:
                self._running[ran.id] = None
            else:
                self._running.pop(ran.id, None)
                self._ended[ran.status] += 1
            self.say(_line(ran))
            if self._status is not None:
                self._status.update(self._standing())

    def _standing(self) -> Text:
        from rich.text import Text

        names = list(self._running)
        shown = ", ".join(map(printable, names[:_SHOWN])) + (" …" if len(names) > _SHOWN else "")
        ended = ", ".join(f"{count} {status}" for status, count in self._ended.items())
        parts = [f"running {len(names)} of {self._concurrency}", shown, ended]
        return Text("  ".join(filter(None, parts)), no_wrap=True, overflow="ellipsis")


def _line(ran: RunResult) -> str:
    said = f"{ran.agent}  {ran.id}  {ran.status}"
    if ran.status == "running" and not ran.seconds:
        return said
    facts = [
        f"{ran.seconds:.1f} s",
        ran.error or "",
        f"waits for {', '.join(ran.waits_for)}" if ran.waits_for else "",
    ]
    return "  ".join([said, *filter(None, facts)])
