"""How long a test goes on: for a short while in a run of everything, and as long as one likes in `make soak`."""

from __future__ import annotations

import os

LONGER = int(os.environ.get("HOLDFAST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """How many examples a law is tried on. `HOLDFAST_EXAMPLES` says how many times as many as usual."""
    return count * LONGER
