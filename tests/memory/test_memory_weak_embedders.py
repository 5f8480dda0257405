"""An embedder that knows little must not hide what the words of a question find."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pytest

import holdfast
from helpers.paths import ROOT
from holdfast.memory.embedders import Embedder
from holdfast.memory.search.recall import _measure_contrast

sys.path.insert(0, str(ROOT))  # `bench` is beside the tests, and not installed

from bench import memory_set


def draw(texts: Sequence[str]) -> list[list[float]]:
    """Return a vector for each text that says nothing about it."""
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
    seeds = [int.from_bytes(digest, "big") for digest in digests]
    return [np.random.default_rng(seed).standard_normal(64).tolist() for seed in seeds]


def measure_recall(memory: holdfast.Memory) -> float:
    """Return recall@10 of the labelled set."""
    told = memory_set.memories()
    ids = memory.remember_many(
        [{"text": one.text, "source": one.source, "at": one.at} for one in told]
    )
    names = dict(zip(ids, (one.id for one in told), strict=True))
    shares = [
        len({names[hit.id] for hit in memory.recall(one.text, 10)} & set(one.answers))
        / len(one.answers)
        for one in memory_set.questions()
    ]
    return sum(shares) / len(shares)


@pytest.mark.slow
def test_vectors_that_say_nothing_cost_little_recall() -> None:
    with holdfast.open("memory://") as store:
        words = measure_recall(store.memory("words"))
        noise = measure_recall(store.memory("noise", embed=Embedder(draw, name="noise")))
    assert noise >= words - 0.02


@pytest.mark.parametrize(
    ("best", "rest", "total", "contrast"),
    [
        (0.9, [0.1] * 100, 1_000, 1.0),
        (0.31, [0.3] * 100, 1_000, 0.0),
        (0.9, [], 1, 1.0),  # too few to tell
    ],
)
def test_confidence_is_how_far_the_best_stands_out(
    best: float, rest: list[float], total: int, contrast: float
) -> None:
    assert _measure_contrast([best, *rest], 0.0, total) == contrast
