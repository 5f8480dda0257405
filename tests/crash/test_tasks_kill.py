"""kill -9 of an agent of thirty steps: at every boundary of every write, and at random instants.

No finished step runs again, `once` effects happen at most once and `check`ed ones exactly once, and
it all comes to what an undisturbed run comes to. `HOLDFAST_TASK_KILLS` says how many random kills
for each engine and variant (10 unless told), `HOLDFAST_SEED` repeats a run's draws. Unless told,
each variant is killed at one of the boundaries of each write, and a relay dies at all of them.
"""

from __future__ import annotations

import copy
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from helpers.servers import postgres
from holdfast import Event, Store
from holdfast.log.log import Log

from .crew import program
from .task_judge import Evidence, gathered, judge
from .task_kills import SERVER, Finding, KillPlan, Place

TOLD = os.environ.get("HOLDFAST_TASK_KILLS")
KILLS = int(TOLD or 10)
STEPS = 30

LOCAL = ("sqlite", "files")


def on(*engines: str, first: str = "sync") -> pytest.MarkDecorator:
    """Each engine with one interface, beginning with `first`; with both if it may take long."""
    ways = ("sync", "async")
    pairs = [
        (engine, way)
        for number, engine in enumerate(engines)
        for way in ways
        if TOLD or (number + ways.index(first) + ways.index(way)) % 2 == 0
    ]
    return pytest.mark.parametrize(("engine", "variant"), pairs)


def findings(engine: str, variant: str, folder: Path, what: str, *more: object) -> list[Finding]:
    """What was found in each store, all of it without fault."""
    done = subprocess.run(
        program("task_kills", engine, variant, folder, what, *more),
        env={**os.environ, SERVER: postgres()} if engine == "postgres" else None,
        capture_output=True,
        timeout=270 + KILLS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = [msgspec.json.decode(line, type=Finding) for line in done.stdout.splitlines()]
    wrong = [(finding.what, finding.problems) for finding in found if finding.problems]
    assert not wrong, wrong[:5]
    kills, in_flight = sum(f.kills for f in found), sum(f.in_flight for f in found)
    settled, checked = sum(f.settled for f in found), sum(f.checked for f in found)
    print(
        f"{engine}, {variant}, {what}: {len(found)} stores, {kills} kills, {in_flight} of them in "
        "the middle of a step; "
        f"{settled} steps settled by a person, {checked} by their check"
    )
    assert in_flight, "no kill hit a step: this run proved nothing"
    return found


@on(*LOCAL)
def test_killed_at_any_boundary_of_a_write_the_next_run_comes_to_the_same(
    engine: str, variant: str, folder: Path
) -> None:
    found = findings(engine, variant, folder, "each", "all" if TOLD else "share")
    assert [finding.kills for finding in found] == [1] * len(found)
    ended = {
        finding.what.partition("step.completed ")[2]
        for finding in found
        if "step.completed" in finding.what
    }
    assert len(ended) == STEPS - 1, "one step fails, all others are completed"
    assert any(finding.settled for finding in found) and any(finding.checked for finding in found)


@on(*LOCAL, "postgres", first="async")
def test_killed_at_one_boundary_after_the_other_the_last_run_comes_to_the_same(
    engine: str, variant: str, folder: Path
) -> None:
    [found] = findings(engine, variant, folder, "relay")
    assert found.kills > (3 if engine == "postgres" else 5) * STEPS
    assert found.settled and found.checked


@pytest.mark.timeout(300 + KILLS)
@on(*LOCAL, "postgres")
def test_killed_at_random_instants_it_comes_to_the_same(
    engine: str, variant: str, folder: Path
) -> None:
    seed = os.environ.get("HOLDFAST_SEED") or secrets.token_hex(4)
    print(f"HOLDFAST_SEED={seed}", file=sys.stderr)
    found = findings(engine, variant, folder, "random", KILLS, seed)
    assert sum(finding.kills for finding in found) >= KILLS


# -- the judge itself ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """That of a run in which nothing went wrong."""
    place = Place("sqlite", "sync", tmp_path_factory.mktemp("tasks") / "store")
    place.live(KillPlan(place.world))
    with Store(Log(place.backend(KillPlan(place.world))), "default") as store:
        found = gathered(store, place.notes())
    place.clear()
    return found


def test_the_judge_finds_no_fault_with_an_undisturbed_run(evidence: Evidence) -> None:
    assert judge(evidence, evidence.outcome) == []
    assert len(evidence.modes) == STEPS


def note(evidence: Evidence, what: str, step: str) -> dict[str, object]:
    return next(each for each in evidence.notes if (each["what"], each.get("step")) == (what, step))


def ran_twice(evidence: Evidence) -> None:
    run = note(evidence, "run", "big")
    evidence.notes.insert(evidence.notes.index(run), run)


def ran_after_its_end(evidence: Evidence) -> None:
    evidence.notes += [
        {"what": "kill", "pid": note(evidence, "run", "big")["by"]},
        note(evidence, "run", "big"),
    ]


def ran_after_its_end_unacknowledged(evidence: Evidence) -> None:
    evidence.notes.remove(note(evidence, "ack", "big"))
    evidence.notes += [{"what": "kill", "pid": note(evidence, "run", "big")["by"]}]
    evidence.notes += [{**note(evidence, "run", "big"), "by": 1}]
    claim = evidence.history[1]
    owner = claim.data["owner"].split("/")
    owner[2] = "1"
    late = msgspec.structs.replace(
        claim, version=len(evidence.history) + 1, data={**claim.data, "owner": "/".join(owner)}
    )
    evidence.history.append(late)


def paid_twice(evidence: Evidence) -> None:
    evidence.notes.append(note(evidence, "effect", "pay[1]"))


def never_mailed(evidence: Evidence) -> None:
    evidence.notes.remove(note(evidence, "effect", "mail#2"))


def key_shared(evidence: Evidence) -> None:
    note(evidence, "effect", "mail")["key"] = note(evidence, "effect", "mail#2")["key"]


def completed_twice(evidence: Evidence) -> None:
    evidence.history.append(
        next(event for event in evidence.history if event.type == "step.completed")
    )


def start_of(evidence: Evidence, step: str) -> Event:
    told = next(
        e for e in evidence.history if e.data.get("step") == step
    )  # the start, or an end that tells of it
    return msgspec.structs.replace(told, type="step.started", version=len(evidence.history) + 1)


def started_in_a_later_run(evidence: Evidence) -> None:
    evidence.history.append(
        msgspec.structs.replace(evidence.history[1], version=len(evidence.history) + 1)
    )
    evidence.history.append(start_of(evidence, "big"))


def started_twice_after_its_end(evidence: Evidence) -> None:
    evidence.history.append(start_of(evidence, "big"))
    evidence.history.append(start_of(evidence, "big"))


def eagerly_started_after_its_end(evidence: Evidence) -> None:
    evidence.history.append(start_of(evidence, "mail"))


def gap(evidence: Evidence) -> None:
    del evidence.history[7]


def lost(evidence: Evidence) -> None:
    evidence.history[:] = [
        e for e in evidence.history if e.type != "step.completed" or e.data["step"] != "big"
    ]


def message_doubled(evidence: Evidence) -> None:
    evidence.outcome.messages.append(evidence.outcome.messages[0])


def decision_doubled(evidence: Evidence) -> None:
    evidence.outcome.decisions.append(evidence.outcome.decisions[0])


def said_again(evidence: Evidence) -> None:
    evidence.history.append(
        next(event for event in evidence.history if event.type == "task.discovered")
    )


def other_result(evidence: Evidence) -> None:
    evidence.outcome.result["returned"][0] = None


def cursor_forgotten(evidence: Evidence) -> None:
    evidence.notes.append(note(evidence, "resumed", "collect"))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (ran_twice, "nothing had cut it off"),
        (ran_after_its_end, "run again after it was acknowledged"),
        (ran_after_its_end_unacknowledged, "run again after it was completed"),
        (paid_twice, "pay[1] (check) had its effect 2 times"),
        (never_mailed, "mail#2 (once) had its effect 0 times"),
        (key_shared, "have the same idempotency key"),
        (completed_twice, "is completed twice"),
        (started_in_a_later_run, "big was started again after it was completed"),
        (started_twice_after_its_end, "big was started again after it was completed"),
        (eagerly_started_after_its_end, "mail was started again after it was completed"),
        (gap, "stands where"),
        (lost, "was acknowledged and is not stored"),
        (message_doubled, "messages is not that of an undisturbed run"),
        (decision_doubled, "decisions is not that of an undisturbed run"),
        (said_again, "says again what was said"),
        (other_result, "result is not that of an undisturbed run"),
        (cursor_forgotten, "collect had saved 3 and was given 0"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_judge_complains(
    evidence: Evidence, spoil: Callable[[Evidence], None], complaint: str
) -> None:
    spoiled = copy.deepcopy(evidence)
    spoil(spoiled)
    assert any(complaint in problem for problem in judge(spoiled, evidence.outcome))
