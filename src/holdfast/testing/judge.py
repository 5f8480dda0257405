"""The judge of the crash matrix: what a run with a crash came to, against one without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from .report import Violation

Place = tuple[str, str]
"""A task's id, and a step's path in it."""


class Evidence(msgspec.Struct):
    """What is known of one run, from its first life to its last."""

    status: str
    result: Any
    notes: list[dict[str, Any]]
    results: dict[Place, Any]
    """The results of the steps."""
    doubts: list[Place]
    """Steps that were in doubt, and were settled."""
    problem: str = ""
    """Why it did not get to its end."""


def judge(point: str, found: Evidence, expected: Evidence) -> Iterator[Violation]:
    """Everything that would not have happened without the crash."""
    if found.problem:
        yield Violation(
            point, found.problem, "make the run repeatable: code between steps runs again on resume"
        )
        return
    if (found.status, found.result) != (expected.status, expected.result):
        yield Violation(
            point,
            f"the task is {found.status}, and its result is not that of a run without a crash",
            "make the result from the results of steps: what else it holds is computed again on resume",
        )
    yield from _runs(point, found, expected)
    yield from _effects(point, found, expected)


def _runs(point: str, found: Evidence, expected: Evidence) -> Iterator[Violation]:
    """Finished steps are not run again; `once` ones at most once; `check` ones not again before their check was asked."""
    completed: set[Place] = set()
    for note in found.notes:
        if note["what"] == "completed":
            completed.update((task, step) for task, step in note["steps"])
        elif note["what"] == "entered" and (note["task"], note["step"]) in completed:
            what = "was run again after it had finished"
            advice = f"{note['step']}: ask for it with the same arguments each time"
            yield Violation(point, what, advice, note["step"], note["mode"])
    entered, usual = _entries(found), _entries(expected)
    for (task, step, mode), times in entered.items():
        if mode and times > max(1, usual[task, step, mode]):
            what = f"its function was run {times} times" + (
                ", and its check not asked before" if mode == "check" else ""
            )
            yield Violation(
                point, what, f"{step}: this is a fault of Holdfast, please report it", step, mode
            )


def _entries(evidence: Evidence) -> Counter[tuple[str, str, str]]:
    """How often the function of each step was run; of `check` steps, without the times that its check had allowed."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for note in evidence.notes:
        if note["what"] in ("entered", "asked"):
            counted[note["task"], note["step"], note["mode"]] += (
                1 if note["what"] == "entered" else -1
            )
    return counted


def _effects(point: str, found: Evidence, expected: Evidence) -> Iterator[Violation]:
    """Each effect as often as without a crash. What has one key counts once."""
    happened, usual = _counted(found), _counted(expected)
    where = {
        note["effect"]: note for note in [*found.notes, *expected.notes] if note["what"] == "effect"
    }
    for effect, note in where.items():
        times, wanted = happened[effect], usual[effect]
        step, mode = note["step"] or "", note["mode"]
        if times == wanted or (times < wanted and _is_doubtful(note, found)):
            continue
        what = f"{effect!r} happened {times} times, not {wanted}"
        yield Violation(
            point, what, _advice(step, mode, times > wanted), step, mode, effect, times, wanted
        )


def _counted(evidence: Evidence) -> Counter[str]:
    notes = [note for note in evidence.notes if note["what"] == "effect"]
    counted = Counter(note["effect"] for note in notes if note["key"] is None)
    counted.update(
        effect
        for effect, _ in {
            (note["effect"], note["key"]) for note in notes if note["key"] is not None
        }
    )
    return counted


def _is_doubtful(note: dict[str, Any], found: Evidence) -> bool:
    """Whether the effect is of a step that was in doubt, or of one inside it: then it may be missing."""
    task, step = note["task"], note["step"] or ""
    return any(
        task == doubted[0] and f"{step}/".startswith(f"{doubted[1]}/") for doubted in found.doubts
    )


def _advice(step: str, mode: str, too_often: bool) -> str:
    if not step:
        return "it is done outside of any step, in code that runs again on resume: do it in a step"
    if not too_often:
        return f"{step}: it is recorded as done and was not; " + (
            "its check takes something else for its effect"
            if mode == "check"
            else "do the effect inside of the step"
        )
    if mode == "check":
        return f"{step}: its check said that it was not done, and it was; let the check look for what the step does first"
    if mode == "once":
        return f"{step}: it is declared once and was done again; is it asked for under another name or key?"
    return f"{step} is an ordinary step: it may run again; give the service holdfast.idempotency_key(), or declare check= or once="
