"""The judge of tasks: what is stored against what the world saw. It knows the rules, and nothing of
how they are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import Event, Store, TaskView

from .agent30 import ID

Note = Mapping[str, Any]
INTERRUPTIONS = ("kill", "doubt")
"""Why a step may be run again: its process was killed, or it gave the task back for a person to
settle something."""


class Outcome(msgspec.Struct):
    """What a task comes to, without anything that differs from run to run."""

    status: str
    result: Any
    plan: list[Any]
    decisions: list[tuple[str, str | None, str]]
    discoveries: list[tuple[str, str | None, str]]
    in_doubt: list[str]
    orphaned: list[str]
    messages: list[Any]


class Evidence(msgspec.Struct):
    """Everything the judge looks at."""

    notes: list[dict[str, Any]]
    history: list[Event]
    modes: dict[str, str]
    outcome: Outcome


def gathered(store: Store, notes: Iterable[dict[str, Any]]) -> Evidence:
    """The evidence, read from a store."""
    view = store.get_task(ID)
    assert view is not None
    modes: dict[str, str] = {step.path: step.mode for step in view.steps}
    messages = store.conversation(ID).messages()
    return Evidence(list(notes), store.task(ID).history(), modes, _outcome(view, messages))


def _outcome(view: TaskView, messages: list[Any]) -> Outcome:
    # Sorted: what is said in parallel may be stored in any order.
    decisions, discoveries = (
        sorted((note.text, note.why, note.step) for note in notes)
        for notes in (view.decisions, view.discoveries)
    )
    return Outcome(
        view.status,
        view.result,
        view.plan,
        decisions,
        discoveries,
        view.in_doubt,
        list(view.orphaned),
        messages,
    )


class Ends(msgspec.Struct):
    """How a step was completed: at which version, how, and by which process."""

    version: int
    how: str
    by: int | None


def judge(evidence: Evidence, expected: Outcome) -> list[str]:
    """Everything that is wrong."""
    return [
        *_unlike(evidence.outcome, expected),
        *_history(evidence.history),
        *_runs(evidence),
        *_acknowledged(evidence),
        *_effects(evidence),
        *_cursors(evidence.notes),
    ]


def _unlike(found: Outcome, expected: Outcome) -> Iterator[str]:
    for name in Outcome.__struct_fields__:
        if getattr(found, name) != getattr(expected, name):
            yield f"{name} is not that of an undisturbed run"


def _history(history: Sequence[Event]) -> Iterator[str]:
    """Versions without a gap; nobody writes without a claim; each step is completed once, each note
    made once; nothing after the end.

    The start of an ordinary step is written with whatever is appended next. If that is another
    thread's append, it may come just after the step's own end: so a start after an end is wrong
    only if the step cannot have been started before it.
    """
    held = False
    completed: set[str] = set()
    ended_in_this_run: set[str] = set()
    said: set[str] = set()
    for number, event in enumerate(history, 1):
        if event.version != number:
            yield f"version {event.version} stands where {number} should"
        if event.type == "task.claimed":
            held = True
            ended_in_this_run.clear()
        elif event.type not in ("task.created", "step.resolved") and not held:
            yield f"version {number}: {event.type}, and nobody had claimed the task"
        if event.type in ("task.released", "task.failed", "task.finished"):
            held = False
        if event.type in ("task.planned", "task.decided", "task.discovered"):
            if event.data["id"] in said:
                yield f"version {number}: {event.type} says again what was said"
            said.add(event.data["id"])
        if _is_end(event):
            if event.data["step"] in completed:
                yield f"{event.data['step']} is completed twice"
            completed.add(event.data["step"])
            ended_in_this_run.add(event.data["step"])
        elif event.type == "step.started" and event.data["step"] in completed:
            if event.data["step"] in ended_in_this_run and not event.data.get("mode"):
                ended_in_this_run.remove(
                    event.data["step"]
                )  # once: a second one would be another start
                continue
            yield f"{event.data['step']} was started again after it was completed"
    if [event.type for event in history].count("task.finished") != 1 or history[
        -1
    ].type != "task.finished":
        yield "the task was not finished once, at last"


def _is_end(event: Event) -> bool:
    settled = event.type == "step.resolved" and not event.data.get("again")
    return event.type == "step.completed" or settled


def claims_of(history: Sequence[Event]) -> list[tuple[int, int]]:
    """The claims: version and process."""
    return [
        (e.version, int(e.data["owner"].split("/")[2])) for e in history if e.type == "task.claimed"
    ]


def _ends(history: Sequence[Event]) -> dict[str, Ends]:
    ends: dict[str, Ends] = {}
    owner = None
    for event in history:
        if event.type == "task.claimed":
            owner = int(event.data["owner"].split("/")[2])
        elif event.type == "step.completed":
            ends[event.data["step"]] = Ends(event.version, event.data.get("how", "ran"), owner)
        elif _is_end(event):
            ends[event.data["step"]] = Ends(event.version, "resolved", None)
    return ends


def _runs(evidence: Evidence) -> Iterator[str]:
    """A function runs again only if what it ran in was cut off, and never after its step was
    completed."""
    ends = _ends(evidence.history)
    first_claim: dict[int, int] = {}
    for version, process in claims_of(evidence.history):
        first_claim.setdefault(process, version)
    last: dict[str, int] = {}
    cut: set[tuple[str, int]] = set()
    for note in evidence.notes:
        if note["what"] in INTERRUPTIONS:
            cut |= {(step, process) for step, process in last.items() if process == note["pid"]}
        if note["what"] != "run":
            continue
        step, process = note["step"], note["by"]
        if step in last and (step, last[step]) not in cut:
            yield f"{step} was run again, and nothing had cut it off"
        cut.discard((step, process))
        last[step] = process
        if process not in first_claim:
            yield f"{step} was run by a process that never had the task"
        elif step in ends and first_claim[process] > ends[step].version:
            yield f"{step} was run again after it was completed"
    for step, end in ends.items():
        if step not in last:
            yield f"{step} is completed and was never run"
        elif end.how == "ran" and last[step] != end.by:
            yield f"{step} was completed by a process that did not run it"


def _acknowledged(evidence: Evidence) -> Iterator[str]:
    """What the program was given is stored, and not run again."""
    completed, acknowledged = _ends(evidence.history), set()
    for note in evidence.notes:
        if note["what"] == "ack":
            acknowledged.add(note["step"])
            if note["step"] not in completed:
                yield f"{note['step']} was acknowledged and is not stored"
        elif note["what"] == "run" and note["step"] in acknowledged:
            yield f"{note['step']} was run again after it was acknowledged"


def _effects(evidence: Evidence) -> Iterator[str]:
    """Effects of `check` steps exactly once; of `once` steps too, after a person who looks has
    settled what was in doubt."""
    effects = [note for note in evidence.notes if note["what"] == "effect"]
    keys: dict[str, str] = {}
    for step, mode in evidence.modes.items():
        done = [note["key"] for note in effects if note["step"] == step]
        if mode and len(done) != 1:
            yield f"{step} ({mode}) had its effect {len(done)} times"
        if len(set(done)) > 1:
            yield f"{step} did not keep its idempotency key"
        for key in done:
            if keys.setdefault(key, step) != step:
                yield f"{step} and {keys[key]} have the same idempotency key"


def _cursors(notes: Sequence[Note]) -> Iterator[str]:
    """A step that is run again gets the place that it saved last; or one further, if the answer was
    lost."""
    saved: dict[str, int] = {}
    for note in notes:
        if note["what"] == "saved":
            saved[note["step"]] = note["cursor"]
        elif note["what"] == "resumed":
            if note["cursor"] - saved.get(note["step"], 0) not in (0, 1):
                yield (
                    f"{note['step']} had saved {saved.get(note['step'])} and was given "
                    f"{note['cursor']}"
                )
            saved[note["step"]] = note["cursor"]
