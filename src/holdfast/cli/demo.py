"""`holdfast demo`: an agent is killed again and again in the middle of its work, and goes on each time."""

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

from ..demo.lives import AgentFailed, choose, endure, rehearse
from ..demo.report import show_briefing, show_code, show_counts, show_runs
from ..demo.show import Show
from ..demo.verdict import from_zero, problems
from ..demo.world import MODEL_CALLS, World


def run(
    *, url: str | None = None, kills: int = 5, seed: int | None = None, think: float = 0.6
) -> int:
    """Show it. The result is an exit code: 0 only if every effect happened exactly once, with the right result.

    `think` is how many seconds the model takes for an answer. Without a `url` the store is a temporary file, which is
    kept if something was wrong.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="replace"
        )  # a terminal without our signs is no reason to fail
    seed = time.time_ns() % 1_000_000 if seed is None else seed
    if url is not None:
        if url.startswith("memory:"):
            raise ValueError(
                "a memory:// store dies with the agent's process; name a file or a directory"
            )
        return 0 if _perform(url, kills, seed, think, stays=True) else 1
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    wrong = False
    try:
        wrong = not _perform(str(folder / "demo.db"), kills, seed, think)
    finally:
        if not wrong:
            shutil.rmtree(folder)
    return 1 if wrong else 0


def _perform(url: str, kills: int, seed: int, think: float, *, stays: bool = False) -> bool:
    console, task_id = Console(highlight=False), f"claim-42-{uuid.uuid4().hex[:8]}"
    with holdfast.open(url) as store:
        health = store.health()
    console.print(
        "An agent settles an insurance claim: it asks a model, pays the customer, sends\n"
        f"mails. We kill its process with [bold red]kill -9[/], {_times(kills)}, and start it again each time.\n"
        "[bold]Is the customer paid once? And do we pay for the same answers again?[/]\n"
    )
    console.print(
        Text(f"{health.engine}: {health.location}\ntask {task_id}, seed {seed}\n", "dim"),
        soft_wrap=True,
    )
    try:
        wrong = _kill_and_report(console, url, task_id, kills, seed, think)
    except AgentFailed as error:
        wrong = [str(error)]
    if wrong:
        console.print("\n[bold red]The demo has failed.[/]")
        console.print(
            Text("\n".join([*wrong, f"Look at {health.location}; the seed was {seed}."])),
            soft_wrap=True,
        )
    elif stays:
        console.print(f"All it recorded:  holdfast task URL {task_id} --history")
    return not wrong


def _kill_and_report(
    console: Console, url: str, task_id: str, kills: int, seed: int, think: float
) -> list[str]:
    """Do it, show what came of it, and say what is wrong with that."""
    undisturbed = rehearse()
    moments = choose(list(undisturbed.moments), kills, seed)
    with Show(console) as show:
        world = World(moments, think=think, watch=show.watch)
        endure(world, url, task_id, show.ended)
    with holdfast.open(url) as store:
        task = store.get_task(task_id)
    show_runs(console, world.runs)
    show_briefing(console, world.runs[-1])
    zero = from_zero(undisturbed.moments, undisturbed.counts, moments)
    show_counts(console, undisturbed.counts, world.counts, zero)
    wrong = problems(
        asked=undisturbed.counts,
        counted=world.counts,
        expected=undisturbed.result,
        result=None if task is None else task.result,
        kills=kills,
        struck=len([run for run in world.runs if run.killed is not None]),
    )
    if not wrong:
        console.print(
            f"\n[bold green]Killed {_times(kills)}: every effect happened exactly once,[/] and the result is that of a run "
            f"that nobody disturbed. Paid for: {world.counts[MODEL_CALLS]} calls of the model, not {zero[MODEL_CALLS]}. "
            "Nobody had to repair anything."
        )
        show_code(console)
    return wrong


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
