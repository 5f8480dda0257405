"""`holdfast worker`: run queued tasks of an application's agents until stopped."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import click

from .. import HoldfastError, Worker
from ..notify.hooks import Command, Hook, Webhook, check_hooks
from ..tasks.agents.declare import registered_agents
from ..telemetry.json_logs import json_logs
from ..types import RunResult
from ..worker.worker import CONCURRENCY
from .operators.next_command import StoreCommands, advise_resolving
from .parser.declare import Argument, Option, command
from .parser.durations import duration_option
from .stores import Json, Tenant, Url, fail, open_store
from .text import printable, to_json

if TYPE_CHECKING:
    from rich.text import Text

_STOPPING = b"holdfast: stopping; tasks stop at their next step. Repeat to exit at once.\n"
_MAX_SHOWN_TASKS = 5


class LogFormat(str, Enum):
    """How a worker writes its log."""

    text = "text"
    json = "json"


App = Annotated[
    str, Argument(metavar="APP", help="The application: a file (app.py) or a module (shop.agents).")
]


@command(
    "holdfast worker agents.db app.py",
    "holdfast worker postgresql://host/agents shop.agents --concurrency 4 --grace 2m",
    "holdfast worker agents.db app.py --notify-command 'mail -s holdfast ops@example.com'",
)
def worker(
    url: Url,
    app: App,
    concurrency: Annotated[
        int, Option(min=1, help="Maximum number of tasks to run concurrently.")
    ] = CONCURRENCY,
    poll: Annotated[
        float, duration_option("How often to poll for due tasks.", least=0.01, default="0.5s")
    ] = 0.5,
    grace: Annotated[
        float, duration_option("How long to wait for running steps on shutdown.", default="30s")
    ] = 30.0,
    register: Annotated[
        bool,
        Option(
            "--register/--no-register",
            help="Keep an entry in the store, for `holdfast workers`.",
            default_text="register",
        ),
    ] = True,
    code_version: Annotated[
        str | None,
        Option(
            metavar="TEXT",
            envvar="HOLDFAST_CODE_VERSION",
            help="The version of the application to show there."
            " [default: its __version__, or when the file was changed]",
        ),
    ] = None,
    notify_webhook: Annotated[
        list[str] | None,
        Option(
            metavar="URL",
            help="Send a notification to this URL when a task needs attention. Repeatable."
            " HOLDFAST_WEBHOOK_SECRET has the signing key.",
        ),
    ] = None,
    notify_command: Annotated[
        list[str] | None,
        Option(
            metavar="COMMAND",
            help="Run this shell command when a task needs attention, with the notification as"
            " JSON on its standard input. Repeatable.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        Option(help="Log to standard error: readable text, or one JSON object per line."),
    ] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Run queued tasks until stopped.

    SIGTERM or Ctrl-C stops the worker. Any number of workers can share a store.
    """
    hooks = _make_hooks(notify_webhook or [], notify_command or [])
    if log_format is not None:
        _log_to_stderr(log_format)
    load_app(app)
    if not registered_agents:
        fail(f"{app} has no agents; decorate a function with @holdfast.agent('claims')")
    left: list[str] = []
    code = 0
    try:
        with (
            open_store(url, tenant, create=True, quiet=as_json) as store,
            _RunDisplay(concurrency, StoreCommands(url, tenant), as_json) as display,
        ):
            work = Worker(
                store,
                concurrency=concurrency,
                poll=poll,
                grace=grace,
                report=display.report,
                register=register,
                code_version=code_version or find_code_version(app),
                notify=hooks,
            )
            _stop_on_signals(work)
            display.print(f"waiting for tasks of {', '.join(work.agents)}")
            try:
                left = work.run()
            except HoldfastError:  # no write permission; `open_store` reports it
                left = list(work._running)
                raise
            finally:
                within = f" in the middle of long steps: {', '.join(left)}" if left else ""
                display.print(f"stopped{within}")
    except click.exceptions.Exit as end:
        code = end.exit_code
    if left:
        sys.stdout.flush()
        os._exit(code)  # a normal exit would wait for the threads that still run
    raise click.exceptions.Exit(code)


def _log_to_stderr(format: LogFormat) -> None:
    """Write the log of Holdfast to standard error."""
    if format is LogFormat.json:
        json_logs()
        return
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s [%(correlation)s] %(message)s")
    )
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _make_hooks(urls: list[str], commands: list[str]) -> list[Hook]:
    secret = os.environ.get("HOLDFAST_WEBHOOK_SECRET") or None
    try:
        webhooks = [Webhook(url, secret=secret) for url in urls]
        return check_hooks([*webhooks, *map(Command, commands)])
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def load_app(app: str) -> None:
    """Import the application once, with the import path that Python would use for it."""
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
    sys.modules[name] = module  # imports by name get this module, so its agents register once
    spec.loader.exec_module(module)


def find_code_version(app: str) -> str | None:
    """Return the version of an imported application, or else when its file was changed."""
    is_file = app.endswith(".py") or os.sep in app
    module = sys.modules.get(Path(app).stem if is_file else app)
    version = getattr(module, "__version__", None)
    if isinstance(version, str) and version:
        return version[:100]
    file = getattr(module, "__file__", None)
    try:
        changed = datetime.fromtimestamp(os.stat(file).st_mtime, timezone.utc)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return f"{changed:%Y-%m-%dT%H:%M:%SZ}"


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

    def __init__(self, concurrency: int, commands: StoreCommands, as_json: bool) -> None:
        from rich.console import Console  # slow to import, and other commands do not need it

        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True, stderr=as_json)
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._status = self._console.status("") if live else None
        self._lock = threading.Lock()
        self._concurrency, self._running = concurrency, dict[str, None]()
        self._commands = commands
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
        """Print a line with the time, and further lines below it."""
        first, *others = map(printable, text.split("\n"))
        lines = [
            f"{datetime.now():%H:%M:%S}  {first}",
            *(f"{'':10}{line}".rstrip() for line in others),
        ]
        self._console.print("\n".join(lines), markup=False)

    def report(self, run: RunResult) -> None:
        """Print a run. The `Worker` calls this from any thread."""
        with self._lock:
            if run.status == "running" and not run.seconds:
                self._running[run.id] = None
            else:
                self._running.pop(run.id, None)
                self._ended[run.status] += 1
            if self._as_json:
                click.echo(_run_json(run))
            else:
                self.print("\n".join([_run_line(run), *_explain_run(run, self._commands)]))
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


def _run_json(run: RunResult) -> str:
    """Return the run as JSON, without the messages of exceptions, as in the text."""
    facts = {"id": run.id, "agent": run.agent, "status": run.status, "seconds": run.seconds}
    more = {"error": run.error, "waits_for": run.waits_for, "in_doubt": run.in_doubt}
    return to_json({"at": datetime.now(timezone.utc), **facts, **more})


def _explain_run(run: RunResult, commands: StoreCommands) -> list[str]:
    """Return where the run failed, and what an operator types next if no worker retries it.

    Messages of exceptions are left out, because they may have content; `holdfast task` shows them.
    """
    lines: list[str] = []
    if run.failure is not None and run.status in ("failed", "retrying", "pending"):
        root = run.failure.root
        if root.frames or root.cause or root.group:
            lines += run.failure.format(messages=False).split("\n")
    if run.in_doubt:
        lines += advise_resolving(run.id, [(step, None) for step in run.in_doubt], commands)
    elif run.status in ("failed", "stuck"):
        lines += [commands.build("task", run.id), commands.build("retry", run.id)]
    return lines
