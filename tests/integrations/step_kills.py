"""What programs share whose durable runs are killed at every boundary.

A program has runs, each with a `once` tool that pays. It is killed after each write of a task, and
in each tool before and after its effect. If the `once` tool is in doubt, an operator looks at the
effects and resolves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import holdfast
from helpers.stored.notes import read_notes
from holdfast.tasks.run.session import Session
from holdfast.tasks.state import events as ev

from .process_runs import REHEARSAL, ProcessRun, run_until_finished

PAID = 7


def note_steps(process: ProcessRun) -> None:
    """Have each finished step noted when it is acknowledged, and the program killed right after."""
    plain = Session.put

    def put(session: Session, changes: Sequence[Any], *args: Any, **options: Any) -> Any:
        answer = yield from plain(session, changes, *args, **options)
        for name, event in changes:
            if name in (ev.STEP_COMPLETED, ev.STEP_STARTED):
                place = f"{session.key.id}: {event.step}"
                if name == ev.STEP_COMPLETED:
                    process.note("recorded", call=place)
                process.point(f"after {name} of {place}")
        return answer

    Session.put = put  # type: ignore[method-assign,assignment]


class NeedsOperator(Exception):
    """A task is in doubt about a payment."""


class MortalProgram:
    """The work of one process. `run` makes one of the runs, and returns its answer."""

    model = "any"

    def __init__(self, process: ProcessRun, store: holdfast.Store, base_url: str) -> None:
        self.process, self.store, self.base_url = process, store, base_url

    def act(self, what: str) -> None:
        """Have an effect, and be killed before and after it; not in a rehearsal."""
        if self.model != REHEARSAL:
            self.process.point(f"before {what}")
            self.process.note("effect", effect=what)
            self.process.point(f"after {what}")

    def run(self, way: str) -> str:
        raise AssertionError("each program has its own")

    def find_task(self, way: str) -> str:
        """Return the id of the task of a run."""
        return way


def run_ways(
    make: Callable[[ProcessRun, holdfast.Store, str], MortalProgram],
    ways: Sequence[str],
    base_url: str,
    place: str,
    notes: str,
    rehearsed: Sequence[str] | None = None,
) -> None:
    """Make all runs, process after process, until one gets to the end."""

    def resolve(program: MortalProgram, way: str) -> None:
        effects = [note["effect"] for note in read_notes(notes) if note["what"] == "effect"]
        task = program.find_task(way)
        if f"{way}: pay {PAID}" in effects:
            program.store.resolve(task, "pay", result=f"paid {PAID}")
        else:
            program.store.resolve(task, "pay", retry=True)

    def run(process: ProcessRun) -> None:
        if base_url:
            process.release_calls()
        note_steps(process)
        with holdfast.open(place) as store:
            for way in ways:
                program = make(process, store, base_url)
                try:
                    text = program.run(way)
                except (holdfast.StepInDoubt, NeedsOperator):
                    resolve(program, way)
                    text = program.run(way)
                process.note("answer", way=way, text=text)

    def rehearse() -> None:
        with holdfast.open(f"{place}.rehearsal") as store:
            program = make(ProcessRun(f"{notes}.rehearsal", base_url), store, base_url)
            program.model = REHEARSAL
            for way in ways if rehearsed is None else rehearsed:
                program.run(way)

    run_until_finished(run, notes, base_url, rehearse)
