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
    """Derive ids, salts and the times inside ids from a seed, in the whole process.

    A single-threaded run then gets the same ids every time. Use it with an empty store only: in
    a store written under the same seed, ids would repeat.
    """
    before = ids.random_bytes, ids.time_ns
    ticks = count(FIRST_MILLISECOND)
    ids.random_bytes = random.Random(seed).randbytes  # noqa: S311  repeatable, not secret
    ids.time_ns = lambda: next(ticks) * 1_000_000
    try:
        yield
    finally:
        ids.random_bytes, ids.time_ns = before
