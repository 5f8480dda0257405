"""Run the demo: kill the agent repeatedly, resume it, and report what happened."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path

from rich.console import Console
from rich.text import Text

import holdfast

from .agent_runs import AgentFailed, choose_moments, rehearse, run_until_finished
from .progress import RunProgress
from .report import show_code, show_counts, show_resume_context, show_runs
from .verdict import count_from_zero, find_problems
from .world import MODEL_CALLS, World


def run_demo(
    *, url: str | None = None, kills: int = 5, seed: int | None = None, think: float = 0.6
) -> int:
    """Run the demo and return 0 if each side effect happened once and the result is right, else 1.

    The model takes `think` seconds for an answer. Without a `url` the store is a temporary file,
    which is only kept if the demo fails.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal may lack the symbols we print
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    if url is not None:
        if url.startswith("memory:"):
            raise ValueError(
                "a memory:// store is lost when the agent's process is killed;"
                " name a file or a directory"
            )
        return 0 if _run_on(url, kills, seed, think, kept=True) else 1
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    failed = False
    try:
        failed = not _run_on(str(folder / "demo.db"), kills, seed, think)
    finally:
        if not failed:
            shutil.rmtree(folder)
    return 1 if failed else 0


def _run_on(url: str, kills: int, seed: int, think: float, *, kept: bool = False) -> bool:
    """Run the demo on a store and return whether it succeeded. `kept`: the store is kept."""
    console, task_id = Console(highlight=False), f"claim-42-{uuid.uuid4().hex[:8]}"
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
        failures = _kill_and_report(console, url, task_id, kills, seed, think)
    except AgentFailed as error:
        failures = [str(error)]
    if failures:
        console.print("\n[bold red]The demo failed.[/]")
        console.print(
            Text("\n".join([*failures, f"See {health.location}; the seed was {seed}."])),
            soft_wrap=True,
        )
    elif kept:
        console.print(f"Show everything it recorded:  holdfast task URL {task_id} --history")
    return not failures


def _kill_and_report(
    console: Console, url: str, task_id: str, kills: int, seed: int, think: float
) -> list[str]:
    """Kill and restart the agent until it finishes, show the report, and return the problems."""
    undisturbed = rehearse()
    moments = choose_moments(list(undisturbed.moments), kills, seed)
    with RunProgress(console) as progress:
        world = World(moments, think=think, on_step=progress.show_step)
        run_until_finished(world, url, task_id, progress.show_end)
    with holdfast.open(url) as store:
        task = store.get_task(task_id)
    show_runs(console, world.runs)
    show_resume_context(console, world.runs[-1])
    from_zero = count_from_zero(undisturbed.moments, undisturbed.counts, moments)
    show_counts(console, undisturbed.counts, world.counts, from_zero)
    failures = find_problems(
        undisturbed=undisturbed.counts,
        counted=world.counts,
        expected=undisturbed.result,
        result=None if task is None else task.result,
        planned_kills=kills,
        actual_kills=sum(run.killed is not None for run in world.runs),
    )
    if not failures:
        console.print(
            f"\n[bold green]Killed {_times(kills)}: every effect happened exactly once,[/] and the"
            " result is the same as without kills. Paid for:"
            f" {world.counts[MODEL_CALLS]} model calls, not {from_zero[MODEL_CALLS]}. No repair was"
            " needed."
        )
        show_code(console)
    return failures


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
