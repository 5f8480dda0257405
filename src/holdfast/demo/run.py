"""Run the demo: kill the agent repeatedly, resume it, and report what happened."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

import holdfast

from .agent_runs import AgentFailed, choose_moments, rehearse, run_until_finished
from .progress import RunProgress
from .report import show_code, show_counts, show_resume_context, show_runs
from .verdict import count_from_zero, find_problems
from .world import MODEL_CALLS, World


@dataclass
class DemoReport:
    """What happened: the runs, and what the bank, the mail service and the model counted.

    `undisturbed` are their counts without kills, and `from_zero` those of an agent that starts from
    zero after each kill.
    """

    task: str
    seed: int
    kills: int
    ok: bool = False
    problems: list[str] = field(default_factory=list)
    runs: list[dict[str, object]] = field(default_factory=list)
    undisturbed: dict[str, int] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    from_zero: dict[str, int] = field(default_factory=dict)


def run_demo(
    *,
    url: str | None = None,
    kills: int = 5,
    seed: int | None = None,
    think: float = 0.6,
    serve: bool = False,
    to_stderr: bool = False,
) -> DemoReport:
    """Run the demo. The report is ok if each side effect happened once and the result is right.

    The model takes `think` seconds for an answer. Without a `url`, the store is a temporary file,
    which is kept only if the demo fails. With `serve`, the web dashboard shows the runs, and the
    demo ends when it is interrupted. With `to_stderr`, what it shows goes to standard error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may lack the symbols we print
    console = Console(highlight=False, stderr=to_stderr)
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    if url is not None:
        if url.startswith("memory:"):
            raise ValueError(
                "a memory:// store is lost when the agent's process is killed;"
                " name a file or a directory"
            )
        return _run_and_show(console, url, kills, seed, think, kept=True, serve=serve)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    failed = False
    try:
        path = str(folder / "demo.db")
        report = _run_and_show(console, path, kills, seed, think, kept=False, serve=serve)
        failed = not report.ok
    finally:
        if not failed:
            shutil.rmtree(folder)
    return report


def _run_and_show(
    console: Console, url: str, kills: int, seed: int, think: float, *, kept: bool, serve: bool
) -> DemoReport:
    """Run the demo on a store, with the web dashboard if it is to be served."""
    task_id = f"claim-42-{uuid.uuid4().hex[:8]}"
    if not serve:
        return _run_on(console, url, task_id, kills, seed, think, kept=kept)
    from ..web import WebOptions
    from ..web.server import serve_in_background

    with holdfast.open(url) as store, serve_in_background(store, WebOptions()) as address:
        print(f"dashboard: {address}task?id={task_id}\n", file=console.file, flush=True)
        report = _run_on(console, url, task_id, kills, seed, think, kept=kept)
        end = f"\nThe dashboard is at {address} until you press Ctrl-C."
        try:
            print(end, file=console.file, flush=True)
            while True:  # in short waits: Python may miss a signal that comes just before one
                time.sleep(0.5)
        except KeyboardInterrupt:
            pass
    return report


def _run_on(
    console: Console, url: str, task_id: str, kills: int, seed: int, think: float, *, kept: bool
) -> DemoReport:
    """Run the demo on a store, and report. `kept` means the store is kept."""
    report = DemoReport(task_id, seed, kills)
    with holdfast.open(url) as store:
        health = store.health()
    console.print(
        "An agent settles an insurance claim: it calls a model, pays the customer and sends\n"
        f"e-mail. We kill its process with [bold red]kill -9[/], {_times(kills)}, and restart it"
        " each time.\n"
        "[bold]Is the customer paid once? Do we pay for the same model answers again?[/]\n"
    )
    console.print(
        Text(f"{health.engine}: {health.location}\ntask {task_id}, seed {seed}\n", "dim"),
        soft_wrap=True,
    )
    try:
        _kill_and_report(console, url, report, think)
    except AgentFailed as error:
        report.problems = [str(error)]
    if report.problems:
        console.print("\n[bold red]The demo failed.[/]")
        console.print(
            Text("\n".join([*report.problems, f"See {health.location}; the seed was {seed}."])),
            soft_wrap=True,
        )
    elif kept:
        console.print(f"Show everything it recorded:  holdfast task URL {task_id} --history")
    report.ok = not report.problems
    return report


def _kill_and_report(console: Console, url: str, report: DemoReport, think: float) -> None:
    """Kill and restart the agent until it finishes. Show and report what happened."""
    task_id, kills = report.task, report.kills
    undisturbed = rehearse()
    moments = choose_moments(list(undisturbed.moments), kills, report.seed)
    with RunProgress(console) as progress:
        world = World(moments, think=think, on_step=progress.show_step)
        run_until_finished(world, url, task_id, progress.show_end)
    with holdfast.open(url) as store:
        task = store.get_task(task_id)
    show_runs(console, world.runs)
    show_resume_context(console, world.runs[-1])
    from_zero = count_from_zero(undisturbed.moments, undisturbed.counts, moments)
    show_counts(console, undisturbed.counts, world.counts, from_zero)
    report.undisturbed, report.counted = dict(undisturbed.counts), dict(world.counts)
    report.from_zero = dict(from_zero)
    report.runs = [
        {
            "number": run.number,
            "kept": run.kept,
            "completed": run.done,
            "found": run.found,
            "killed": None if run.killed is None else run.killed.description,
        }
        for run in world.runs
    ]
    report.problems = find_problems(
        undisturbed=undisturbed.counts,
        counted=world.counts,
        expected=undisturbed.result,
        result=None if task is None else task.result,
        planned_kills=kills,
        actual_kills=sum(run.killed is not None for run in world.runs),
    )
    if not report.problems:
        console.print(
            f"\n[bold green]Killed {_times(kills)}: every effect happened exactly once,[/] and the"
            " result is the same as without kills. Paid for:"
            f" {world.counts[MODEL_CALLS]} model calls, not {from_zero[MODEL_CALLS]}. No repair was"
            " needed."
        )
        show_code(console)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
