"""Compare a run that crashed with a run that did not, for the crash matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from .report import Violation

StepId = tuple[str, str]
"""A task id and the path of a step in it."""


class Evidence(msgspec.Struct):
    """What is known about one run, from its first process to its last."""

    status: str
    result: Any
    notes: list[dict[str, Any]]
    results: dict[StepId, Any]
    """The results of the steps."""
    doubts: list[StepId]
    """Steps that were in doubt and were resolved."""
    problem: str = ""
    """Why the run did not finish."""


def judge(
    point: str, found: Evidence, expected: Evidence, *, effects_only: bool = False
) -> Iterator[Violation]:
    """Yield everything that would not have happened without the crash.

    With `effects_only`, the result may differ.
    """
    if found.problem:
        yield Violation(
            point, found.problem, "make the run repeatable: code between steps runs again on resume"
        )
        return
    same = found.status == expected.status and (effects_only or found.result == expected.result)
    if not same:
        yield Violation(
            point,
            f"the task is {found.status}, and its result differs from a run without a crash",
            "build the result from step results: everything else is computed again on resume",
        )
    yield from _judge_runs(point, found, expected)
    yield from _judge_effects(point, found, expected)


def _judge_runs(point: str, found: Evidence, expected: Evidence) -> Iterator[Violation]:
    """Check that finished steps don't run again, `once` steps run at most once, and `check`
    steps run again only after their check.
    """
    completed: set[StepId] = set()
    for note in found.notes:
        if note["what"] == "completed":
            completed.update((task, step) for task, step in note["steps"])
        elif note["what"] == "entered" and (note["task"], note["step"]) in completed:
            what = "ran again after it had finished"
            advice = f"{note['step']}: call it with the same arguments each time"
            yield Violation(point, what, advice, note["step"], note["mode"])
    entered, usual = _entries(found), _entries(expected)
    for (task, step, mode), times in entered.items():
        if mode and times > max(1, usual[task, step, mode]):
            what = f"its function ran {times} times" + (
                " without calling its check first" if mode == "check" else ""
            )
            yield Violation(
                point, what, f"{step}: this is a bug in Holdfast, please report it", step, mode
            )


def _entries(evidence: Evidence) -> Counter[tuple[str, str, str]]:
    """Count the runs of each step's function, except those that a check allowed."""
    counted: Counter[tuple[str, str, str]] = Counter()
    for note in evidence.notes:
        if note["what"] in ("entered", "asked"):
            counted[note["task"], note["step"], note["mode"]] += (
                1 if note["what"] == "entered" else -1
            )
    return counted


def _judge_effects(point: str, found: Evidence, expected: Evidence) -> Iterator[Violation]:
    """Check that each effect happened as often as without a crash."""
    happened, usual = _count_effects(found), _count_effects(expected)
    where = {
        note["effect"]: note for note in [*found.notes, *expected.notes] if note["what"] == "effect"
    }
    for effect, note in where.items():
        times, wanted = happened[effect], usual[effect]
        step, mode = note["step"] or "", note["mode"]
        if times == wanted or (times < wanted and _is_doubtful(note, found)):
            continue
        what = f"{effect!r} happened {times} times, expected {wanted}"
        yield Violation(
            point, what, _advice(step, mode, times > wanted), step, mode, effect, times, wanted
        )


def _count_effects(evidence: Evidence) -> Counter[str]:
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
    """Return True if the effect belongs to a step that was in doubt, so that it may be missing."""
    task, step = note["task"], note["step"] or ""
    return any(
        task == doubted[0] and f"{step}/".startswith(f"{doubted[1]}/") for doubted in found.doubts
    )


def _advice(step: str, mode: str, too_often: bool) -> str:
    if not step:
        return "it happens outside any step, in code that runs again on resume: move it into a step"
    if not too_often:
        return f"{step}: it is recorded as done but did not happen; " + (
            "its check mistakes something else for its effect"
            if mode == "check"
            else "move the effect into the step"
        )
    if mode == "check":
        return f"{step}: its check missed an effect; let it look for the step's first effect"
    if mode == "once":
        return f"{step}: declared once=, but it ran again; was its name or key changed?"
    return (
        f"{step} is an ordinary step, which may run again; "
        "pass holdfast.idempotency_key() to the service, or declare check= or once="
    )
