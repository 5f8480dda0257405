"""No flipped bit of a store goes unnoticed: it is refused, or `verify` reports it, or it has no
effect.

A share of all bits, from a seed that is printed; HOLDFAST_FLIP_SEED chooses it. HOLDFAST_FLIPS is
another number for each kind of store; with "all", every bit of every file is flipped (`make soak`),
which takes hours.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from pathlib import Path

import pytest

from helpers.stored.bit_flips import BAD, Flipper

pytestmark = [pytest.mark.slow, pytest.mark.unencrypted("runs on encrypted stores by itself")]

CHOSEN = os.environ.get("HOLDFAST_FLIPS", "")
SEED = int(os.environ.get("HOLDFAST_FLIP_SEED", "0")) or secrets.randbelow(1_000_000) + 1
FLIPS = {"sqlite": 1100, "sqlite-encrypted": 700, "files": 100, "files-encrypted": 100}
CHUNKS = 2
"""Each kind of store in so many tests, which can run side by side."""


@pytest.mark.timeout(0 if CHOSEN else 300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("kind", FLIPS)
def test_no_flipped_bit_goes_unnoticed(kind: str, chunk: int, tmp_path: Path) -> None:
    print(f"HOLDFAST_FLIP_SEED={SEED}")
    with Flipper(kind, tmp_path, seed=SEED) as flipper:
        count = int(CHOSEN) if CHOSEN.isdecimal() else FLIPS[kind]
        places = flipper.every() if CHOSEN == "all" else flipper.choose(count, SEED)
        judged = [
            (place, flipper.judge(place))
            for number, place in enumerate(places)
            if number % CHUNKS == chunk
        ]
    assert not [each for each in judged if each[1].how in BAD]
    found = Counter(judgement.how for _, judgement in judged)
    # Otherwise the flips hit nothing, or `verify` refuses everything.
    assert found["reported"] > len(judged) / 5 and found["no effect"]
