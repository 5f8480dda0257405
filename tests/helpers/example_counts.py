"""How long tests go on: for a short while in `make test`, and as long as one likes in `make
soak`."""

from __future__ import annotations

import os

LONGER = int(os.environ.get("HOLDFAST_EXAMPLES", "1"))
"""How many times as many examples as usual."""
LONG = LONGER > 1
"""Whether every combination is tried, and not only those that tell engines and interfaces apart."""


def examples(count: int) -> int:
    """How many examples a law is tried on."""
    return count * LONGER
