"""How much code one ordinary step runs through. A longer way is slower, and harder to read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

PACKAGE = Path(holdfast.__file__).parent
MAX_FILES = 19
MAX_CALLS = 98


def count_calls(folder: str) -> Counter[str]:
    """Return how often one step calls each function of the package, as `file:function`."""
    calls = Counter[str]()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            calls[f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_name}"] += 1

    with holdfast.open(f"{folder}/walk.db") as store, store.task("t", lease=3600) as task:
        for number in range(3):
            task.step(f"warm up {number}", abs, number)
        sys.setprofile(note)
        try:
            task.step("measured", abs, -1)
        finally:
            sys.setprofile(None)
    return calls


def test_an_ordinary_step_takes_a_short_way(tmp_path: Path) -> None:
    # In a process of its own: what other tests import, such as OpenTelemetry, makes it longer.
    done = subprocess.run(
        [sys.executable, __file__, tmp_path], capture_output=True, text=True, check=True
    )
    calls = Counter[str](json.loads(done.stdout))
    assert len({name.partition(":")[0] for name in calls}) <= MAX_FILES
    assert calls.total() <= MAX_CALLS
    assert calls["log/drivers.py:drive"] == 1 and "log/drivers.py:drive_async" not in calls


if __name__ == "__main__":
    print(json.dumps(count_calls(sys.argv[1])))
