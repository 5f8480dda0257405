"""A process killed at every named point, and at every single call that changes a file, leaves a
store that is right.

`HOLDFAST_KILL_CYCLES` says that it may take long: otherwise it is every fourth call, beginning with
one of the first four by chance.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from .crew import program
from .points import CALLS, NAMED_POINTS, Death

STEP = 1 if "HOLDFAST_KILL_CYCLES" in os.environ else 4


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory if possible: a kill loses nothing that was written, so the disk adds nothing but
    time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def deaths(engine: str, folder: Path) -> list[Death]:
    place = folder / engine
    place.mkdir()
    done = subprocess.run(
        program("points", engine, place, STEP), capture_output=True, timeout=280, check=False
    )
    sys.stderr.write(done.stderr.decode())
    assert done.returncode == 0
    return [msgspec.json.decode(line, type=Death) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("engine", ["sqlite", "files"])
def test_death_at_any_point_loses_nothing_acknowledged_and_the_next_run_resumes(
    engine: str, folder: Path
) -> None:
    points = NAMED_POINTS * (engine == "sqlite") + CALLS
    found: dict[str, list[Death]] = {point: [] for point in points}
    for death in deaths(engine, folder):
        assert death.verdict.ok, (death.point, death.passes, death.verdict.violations)
        assert death.later.ok, (death.point, death.passes, death.later.violations)
        assert not death.later.doubts, "what was repeated with its id is settled"
        found[death.point].append(death)
    for point, each in found.items():
        killed = [death for death in each if death.killed]
        in_flight = [death for death in killed if death.verdict.in_flight]
        stored = sum(death.verdict.in_doubt_stored for death in in_flight)
        print(
            f"{engine}, {point}: {len(killed)} deaths, {len(in_flight)} with an append in flight, "
            f"{stored} stored"
        )
        assert in_flight, f"nobody died {point} with an append in flight"
        if point in NAMED_POINTS:
            # Before the commit nothing is stored; after it everything is, though nobody was told.
            # (A transaction of the store's own, such as the one for a large value, is not the
            # append itself.)
            assert bool(stored) == (point == "after commit, before the answer")
