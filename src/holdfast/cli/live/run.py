"""`holdfast run`: run one task in the foreground, and print its steps as they happen."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final

import click

from ... import Event, HoldfastError, NotFound, Store
from ...errors import StepInDoubt, Suspended
from ...tasks.agents.declare import registered_agents
from ..parser.build import INTERRUPTED
from ..parser.completion import complete_agents
from ..parser.declare import Argument, Option, command
from ..stores import Json, Tenant, Url, fail, open_store
from ..tasks import TaskId, parse_json
from ..text import cut, event_json, printable, to_json
from ..worker import App, load_app

WAITS: Final = 3
IN_DOUBT: Final = 4
_RUN_ENDS: Final = frozenset(
    {
        "task.finished",
        "task.failed",
        "task.suspended",
        "task.released",
        "task.stuck",
        "task.cancelled",
    }
)
_QUIET: Final = frozenset({"task.renewed", "task.recalled", "step.accepted", "step.used"})


@command(
    "holdfast run agents.db app.py claims claim-42",
    "holdfast run agents.db app.py claims claim-43 --input '{\"sum\": 41}'",
)
def run(
    url: Url,
    app: App,
    agent: Annotated[
        str, Argument(metavar="AGENT", help="The agent's name.", complete=complete_agents)
    ],
    task_id: TaskId,
    input: Annotated[str | None, Option(metavar="JSON", help="The input of a new task.")] = None,
    goal: Annotated[str | None, Option(metavar="TEXT", help="The goal of a new task.")] = None,
    tenant: Tenant = "default",
    as_json: Json = False,
) -> None:
    """Run one task in the foreground.

    Starts the task, or resumes it, and prints its steps as they happen. The exit code is 0 if it
    has finished, 1 if it failed, 3 if it waits, 4 if a step is in doubt, and 130 after Ctrl-C.
    """
    value = None if input is None else parse_json(input, "input", "--input '\"text\"'")
    load_app(app)
    if agent not in registered_agents:
        known = ", ".join(sorted(registered_agents)) or "none"
        fail(f"{app} has no agent {agent!r}; its agents: {known}")
    show = event_json if as_json else _event_text
    with open_store(url, tenant, create=True, quiet=as_json) as store:
        code = _run_and_print(store, agent, task_id, goal, value, show)
    raise click.exceptions.Exit(code)


def _run_and_print(
    store: Store,
    agent: str,
    task_id: str,
    goal: str | None,
    value: Any,
    show: Callable[[Event], str],
) -> int:
    with _EventPrinter(store, task_id, show):
        try:
            if registered_agents[agent].is_async:
                asyncio.run(store.aio.run(agent, task_id, goal=goal, input=value))
            else:
                store.run(agent, task_id, goal=goal, input=value)
            return 0
        except Suspended:
            return WAITS
        except StepInDoubt as error:
            click.echo(f"holdfast: {printable(str(error))}", err=True)
            return IN_DOUBT
        except KeyboardInterrupt:
            return INTERRUPTED
        except HoldfastError as error:
            if error.__cause__ is None:  # not the agent's: a lease, a key, the database
                raise
            traceback.print_exc()
        except Exception:
            traceback.print_exc()
    return 1


class _EventPrinter:
    """Prints the events of a task from a thread, from the current version on, inside a block."""

    def __init__(self, store: Store, task_id: str, show: Callable[[Event], str]) -> None:
        self._store, self._id, self._show = store, task_id, show
        self._version = store.task(task_id).version()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-events", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._stop.is_set()
            try:
                # A short pause, so that this ends soon if the run leaves no event.
                timeout = 0.0 if last else 1.0
                for event in self._store.follow(
                    self._id, after=self._version, timeout=timeout, until_end=False
                ):
                    self._version = event.version
                    if event.type not in _QUIET:
                        click.echo(self._show(event))
                    if event.type in _RUN_ENDS:
                        return
            except NotFound:  # it does not exist yet
                self._stop.wait(0.05)
            except HoldfastError as error:
                click.echo(f"holdfast: cannot read events ({type(error).__name__})", err=True)
                self._stop.wait(1.0)
            if last:
                return


def _event_text(event: Event) -> str:
    at = f"{event.at.astimezone():%H:%M:%S}"
    data = event.data if isinstance(event.data, dict) else {}
    kind, _, what = event.type.partition(".")
    parts = [at, what]
    if kind == "step":
        parts = [at, "step", cut(str(data.get("step")), 80), what, _step_details(event, data)]
    elif event.type == "task.failed":
        parts += [f"{data.get('type')}: {data.get('message')}"]
    elif event.type == "task.finished":
        parts += [f"result: {to_json(data.get('result'))}"]
    elif event.type == "task.asked":
        parts += [str(data.get("name") or ""), str(data.get("question") or "")]
    elif event.type in ("task.decided", "task.discovered"):
        parts += [str(data.get("text"))]
    return cut(printable("  ".join(filter(None, parts))))


def _step_details(event: Event, data: dict[str, Any]) -> str:
    since, found = data.get("since"), list[str]()
    if event.type in ("step.completed", "step.failed") and since is not None:
        found.append(f"{max(event.at.timestamp() - since, 0.0):.1f} s")
    if data.get("error"):
        found.append(f"{data['error']}: {data.get('message', '')}")
    if data.get("done") is not None:
        total = data.get("total")
        found.append(f"{data['done']:g}" if total is None else f"{data['done']:g} of {total:g}")
    return "  ".join(found)
