"""Ids and salts that are the same in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from ..log import ids

FIRST_MILLISECOND = 1_700_000_000_000


@contextmanager
def seeded_ids(seed: int = 0) -> Iterator[None]:
    """Take ids, salts and the times inside ids from a seed, in the whole process: a run in one thread has the same ones each time.

    Only for a store that is empty: in one that another run has written to, under the same seed, ids would repeat.
    """
    before = ids.random_bytes, ids.time_ns
    ticks = count(FIRST_MILLISECOND)
    ids.random_bytes = random.Random(seed).randbytes  # noqa: S311  to be repeated, not to be secret
    ids.time_ns = lambda: next(ticks) * 1_000_000
    try:
        yield
    finally:
        ids.random_bytes, ids.time_ns = before
