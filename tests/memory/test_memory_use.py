"""Wrong use of memory is refused at once, and what looks right does what it looks like."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.memory import Weights
from holdfast.memory.vectors.embedding import Embedding


@pytest.mark.parametrize(
    "wrong",
    [
        {"reach": "a"}, {"reach": -1}, {"reach": 1.5}, {"reach": math.nan}, {"candidates": 0},
        {"candidates": 50.0},
        {"recency": "0.2"}, {"recency": math.nan}, {"recency": -3}, {"recency": math.inf},
        {"length": None},
        {"recency_days": 0},
    ],
    ids=str,
)  # fmt: skip
def test_weights_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Weights(**wrong)


def test_feedback_is_yes_or_no() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("buyer")
        name = memory.remember("Ann signs the orders")
        odd: Any = "no"
        with pytest.raises(TypeError, match="useful"):
            memory.feedback(name, useful=odd)


@pytest.mark.parametrize("index", ["memory", ":memory:", "memory://"])
def test_an_index_in_memory_makes_no_file(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open("agents.db", index=index) as store:
        store.memory("buyer").remember("Ann signs the orders")
        assert store.memory("buyer").recall("orders")
    assert {path.name.partition("-")[0] for path in tmp_path.iterdir()} == {"agents.db"}


def test_the_modules_are_there_without_an_import_of_their_own() -> None:
    program = "import holdfast; holdfast.memory.Weights(); holdfast.memory.embedders.Embedder"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


@pytest.mark.slow
def test_an_embedder_of_a_script_goes_by_the_name_of_its_file(tmp_path: Path) -> None:
    program = (
        "from holdfast.memory.vectors.embedding import Embedding\n"
        "def embed(texts): return [[1.0] for _ in texts]\n"
        "print(Embedding(embed, allow_async=False).name)\n"
    )
    for name in ("ask", "ingest"):
        (tmp_path / f"{name}.py").write_text(program)
        done = subprocess.run(
            [sys.executable, str(tmp_path / f"{name}.py")],
            check=True,
            timeout=60,
            capture_output=True,
            text=True,
        )
        assert done.stdout.split()[-1] == f"{name}.embed"
    with pytest.raises(ValueError, match="name"):
        Embedding(lambda texts: [[1.0] for _ in texts], allow_async=False)


@pytest.mark.slow
def test_wordllama_does_not_set_up_logging_for_the_program() -> None:
    program = (
        "import logging; from holdfast.memory.embedders import WordLlamaEmbedder; "
        "WordLlamaEmbedder()\n"
        "assert not logging.getLogger().handlers and logging.getLogger().level == logging.WARNING"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env={**os.environ})


def test_what_the_briefing_told_is_not_reinforced_by_remembering_it() -> None:
    with holdfast.open("memory://") as store:
        memory = store.memory("buyer")
        name = memory.remember("Vendor B quotes its prices without tax", author="ann")
        with store.task(
            "order", goal="Order from vendor B at its quoted prices", agent="buyer"
        ) as task:
            assert "without tax" in task.resume_context().text
            assert task.remember("Vendor B quotes its prices without tax.") == name
            new = task.remember("Vendor B delivers on Fridays")
            task.finish("ordered")
        told = memory.get(name)
        assert told is not None and told.mentions == 1 and "task/order" not in told.sources
        assert memory.get(new) is not None
