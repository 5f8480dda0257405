"""The embedders that come with Holdfast, against the real packages; the server of OpenAI is one on
loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import holdfast
from helpers.memory.embedding_server import ANIMALS, Server, meaning, server
from holdfast.memory.embedders import (
    OpenAIEmbedder,
    SentenceTransformerEmbedder,
    StaticEmbedder,
    WordLlamaEmbedder,
)

__all__ = ["server"]  # a fixture


def recalls(embed: Any) -> None:
    """A memory finds by meaning with this embedder."""
    with holdfast.open("memory://") as store:
        memory = store.memory("m", embed=embed)
        memory.remember_many([{"text": "Her sedan was blue"}, {"text": "The terrier slept"}])
        [hit] = memory.recall("puppy", k=1)
        assert hit.text == "The terrier slept"
        assert hit.why["meaning"] > 0
        assert memory.stats().vectors == 2


# -- OpenAI ----------------------------------------------------------------------------------------


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_openai_embeds_with_the_model_and_dimensions_that_are_asked_for(
    server: Server, client: openai.OpenAI
) -> None:
    recalls(OpenAIEmbedder(client))
    assert {request["model"] for request in server.requests} == {"text-embedding-3-small"}
    assert not any("dimensions" in request for request in server.requests)
    server.requests.clear()
    recalls(OpenAIEmbedder(client, "nomic-embed-text", dimensions=3))
    assert {(request["model"], request["dimensions"]) for request in server.requests} == {
        ("nomic-embed-text", 3)
    }


@pytest.mark.slow
def test_openai_gets_long_texts_cut_and_in_requests_that_are_not_too_large(
    server: Server, client: openai.OpenAI
) -> None:
    texts = ["", "ä" * 100_000, *["word " * 2_000] * 60, "puppy"]
    found = OpenAIEmbedder(client)(texts)
    assert len(found) == len(texts)
    assert found[-1] == meaning("puppy", 4)
    sizes = [sum(len(text.encode()) for text in request["input"]) for request in server.requests]
    assert len(sizes) > 1
    assert max(sizes) <= 250_000


def test_an_endpoint_that_is_down_leaves_recall_by_words(
    server: Server, client: openai.OpenAI
) -> None:
    server.status = 503
    with holdfast.open("memory://") as store:
        memory = store.memory("m", embed=OpenAIEmbedder(client))
        memory.remember("The terrier slept")
        [hit] = memory.recall("terrier")
        assert "meaning" not in hit.why
        server.status = 200
        assert memory.recall("puppy")[0].why["meaning"] > 0


@pytest.mark.slow
def test_the_async_client_is_awaited_on_the_async_store(server: Server) -> None:
    async def play() -> None:
        server.longest = 24_000
        async with openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            async with holdfast.aopen("memory://") as store:
                memory = store.memory("m", embed=OpenAIEmbedder(client, most_bytes=24_000))
                texts = [
                    "Her sedan was blue",
                    "The terrier slept",
                    *[f"item{n} " * 2_500 for n in range(30)],
                ]
                await memory.remember_many([{"text": text} for text in texts])
                [hit] = await memory.recall("puppy", k=1)
                assert hit.text == "The terrier slept"
        assert len(server.requests) > 3, "the question, and the memories in several requests"

    asyncio.run(play())


def test_without_a_client_the_environment_says_where_to_ask(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert OpenAIEmbedder()(["puppy"]) == [meaning("puppy", 4)]


# -- sentence-transformers -------------------------------------------------------------------------


class Encoder:
    """Has what the package documents of `SentenceTransformer`: the package itself brings torch
    along, which is too much for a test."""

    def encode(
        self, sentences: list[str], *, show_progress_bar: bool, convert_to_numpy: bool
    ) -> Any:
        assert convert_to_numpy and not show_progress_bar
        return np.array([meaning(text) for text in sentences], np.float32)


class Prompting(Encoder):
    """Since its release 5: texts and questions are embedded with prompts of their own."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode_query(self, sentences: list[str], **options: Any) -> Any:
        self.asked += sentences
        return self.encode(sentences, **options)

    def encode_document(self, sentences: list[str], **options: Any) -> Any:
        return self.encode(sentences, **options)


def test_sentence_transformers_encode_memories_and_questions() -> None:
    recalls(SentenceTransformerEmbedder(Encoder()))
    model = Prompting()
    recalls(SentenceTransformerEmbedder(model))
    assert model.asked == ["puppy"]


# -- static models ---------------------------------------------------------------------------------


@pytest.fixture
def static_model(tmp_path: Path) -> Any:
    """A model of a few words, saved in a folder as the package saves them."""
    import model2vec
    import tokenizers

    words = ["[UNK]", *ANIMALS]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {word: place for place, word in enumerate(words)}, unk_token="[UNK]"
        )
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rows = np.array([[0.01, 0.01], *ANIMALS.values()], np.float32)
    model = model2vec.StaticModel(rows, tokenizer, config={}, normalize=True)
    model.save_pretrained(tmp_path / "tiny")
    return model


def test_a_static_model_is_loaded_from_its_folder(static_model: Any, tmp_path: Path) -> None:
    embed = StaticEmbedder(tmp_path / "tiny")
    assert embed.name.endswith("/tiny")
    recalls(embed)
    recalls(StaticEmbedder(str(tmp_path / "tiny")))
    recalls(StaticEmbedder(static_model))


def test_the_small_model_inside_the_package_needs_no_network() -> None:
    recalls(WordLlamaEmbedder())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("openai", "OpenAIEmbedder()", "openai"),
        ("sentence_transformers", "SentenceTransformerEmbedder()", "sentence-transformers"),
        ("model2vec", "StaticEmbedder('x')", "static"),
        ("wordllama", "WordLlamaEmbedder()", "static"),
    ],
)
def test_a_missing_package_is_named(module: str, call: str, extra: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None; from holdfast.memory.embedders import "
        f"*; {call}"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    message = done.stderr.partition("MissingExtra: ")[2]
    assert f"pip install '.[{extra}]'" in message.splitlines()[0]
