"""Embedders for `store.memory(namespace, embed=…)`: any OpenAI-compatible endpoint, sentence-transformers, and static models.

An embedder is a function from a list of texts to as many vectors. It may have a `name` that says which model it is, a `query`
that makes the vector of a question where that is made in another way, and a `timeout`, the seconds for which a recall waits for it.
Write your own as a plain function; these save you that.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import MissingExtra
from ..log.ids import checked_id
from ..log.validation import seconds
from .vectors.calls import is_async

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Embedder",
    "OpenAIEmbedder",
    "SentenceTransformerEmbedder",
    "StaticEmbedder",
    "WordLlamaEmbedder",
]

TEXT_BYTES: Final = 8_000
"""A token is at least one byte, and OpenAI's models take 8,191 tokens of a text: what is longer is cut off."""
REQUEST_BYTES: Final = 250_000
"""And 300,000 tokens in one request."""


class Embedder:
    """A function of yours with what is to be known of it. Its `name` has to change with the model.

    `query` makes the vector of a question, if that is made in another way. `timeout`: for how many seconds a recall waits for it.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Any],
        *,
        name: str,
        query: Callable[[str], Any] | None = None,
        timeout: float | timedelta = 10.0,
    ) -> None:
        if not callable(embed):
            raise TypeError("embed must be a function: a list of texts in, as many vectors out")
        self._embed, self.query, self.name = embed, query, checked_id(name, "name")
        self.timeout, self.is_async = seconds(timeout, "timeout", 0.001), is_async(embed)

    def __call__(self, texts: list[str]) -> Any:
        return self._embed(texts)


class OpenAIEmbedder:
    """OpenAI's embeddings, or those of any server that speaks the same. The key and address are the client's.

    `client` is an `openai.OpenAI` (or `AsyncOpenAI`, for the async store); without one, `openai.OpenAI()` as the environment
    has it. Of very long texts only the beginning is embedded (`most_bytes`).
    """

    def __init__(
        self,
        client: Any = None,
        model: str = "text-embedding-3-small",
        dimensions: int | None = None,
        *,
        most_bytes: int = TEXT_BYTES,
    ) -> None:
        if client is None:
            client = _imported("openai", "OpenAIEmbedder", "openai").OpenAI()
        self._create, self._model, self._dimensions = client.embeddings.create, model, dimensions
        self._most_bytes = most_bytes
        self.name, self.is_async = f"openai/{model}", inspect.iscoroutinefunction(self._create)

    def __call__(self, texts: list[str]) -> Any:
        """As many vectors; an awaitable of them, if the client is async."""
        requests = [self._request(part) for part in _parts(texts, self._most_bytes)]
        answers = [self._create(**request) for request in requests[:1]]
        if answers and hasattr(answers[0], "__await__"):
            return self._awaited(answers[0], requests[1:])
        answers += [self._create(**request) for request in requests[1:]]
        return [vector for answer in answers for vector in _vectors(answer)]

    async def _awaited(self, first: Any, requests: list[dict[str, Any]]) -> list[list[float]]:
        found = _vectors(await first)
        for request in requests:
            found += _vectors(await self._create(**request))
        return found

    def _request(self, texts: list[str]) -> dict[str, Any]:
        request = {"model": self._model, "input": texts, "encoding_format": "float"}
        return request if self._dimensions is None else {**request, "dimensions": self._dimensions}


class SentenceTransformerEmbedder:
    """A model of the package sentence-transformers: its name, the path of its folder, or the loaded model."""

    def __init__(self, model: Any = "sentence-transformers/all-MiniLM-L6-v2") -> None:
        self._model = model
        if isinstance(model, str | PathLike):
            package = _imported(
                "sentence_transformers", "SentenceTransformerEmbedder", "sentence-transformers"
            )
            self._model = package.SentenceTransformer(fspath(model))
            self.name = f"sentence-transformers/{fspath(model)}"
        else:
            card = getattr(model, "model_card_data", None)
            self.name = (
                f"sentence-transformers/{getattr(card, 'base_model', None) or type(model).__name__}"
            )
        # From its release 5 on, a model may have a prompt for what is searched, and another for what is asked.
        self._encode_texts = getattr(self._model, "encode_document", self._model.encode)
        self._encode_query = getattr(self._model, "encode_query", self._model.encode)

    def __call__(self, texts: list[str]) -> Sequence[Any]:
        found: Sequence[Any] = self._encode_texts(
            texts, show_progress_bar=False, convert_to_numpy=True
        )
        return found

    def query(self, text: str) -> Any:
        """The vector of a question."""
        return self._encode_query([text], show_progress_bar=False, convert_to_numpy=True)[0]


class StaticEmbedder:
    """A static model (one vector for each word piece) by the package model2vec: fast on any machine, without a GPU.

    `model` is the path of its folder, a name on the Hugging Face hub ("minishlab/potion-base-8M"; downloaded once), or a loaded
    `model2vec.StaticModel`.
    """

    def __init__(self, model: Any) -> None:
        self._model, name = model, getattr(model, "base_model_name", None)
        if isinstance(model, str | PathLike):
            package = _imported("model2vec", "StaticEmbedder", "static")
            self._model, name = package.StaticModel.from_pretrained(fspath(model)), fspath(model)
        self.name = f"model2vec/{name or 'unnamed'}"

    def __call__(self, texts: list[str]) -> Sequence[Any]:
        found: Sequence[Any] = self._model.encode(texts, use_multiprocessing=False)
        return found


class WordLlamaEmbedder:
    """The small static model that comes inside the package wordllama: 16 MB, 256 numbers, English; nothing is downloaded."""

    def __init__(self) -> None:
        root = logging.getLogger()
        level, handlers = root.level, list(root.handlers)
        wordllama = _imported("wordllama", "WordLlamaEmbedder", "static")
        root.setLevel(level)  # it sets up logging for the whole program when it is imported
        root.handlers[:] = handlers
        # Its own search looks beside the folder where the package has the tokenizer. Named as a cache, the folder is found.
        home = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
        self.name = "wordllama/l2_supercat"

    def __call__(self, texts: list[str]) -> NDArray[Any]:
        found: NDArray[Any] = self._model.embed(texts)
        return found


def _imported(module: str, what: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(what, extra) from None


def _parts(texts: Iterable[str], most_bytes: int) -> Iterator[list[str]]:
    """The texts in order, cut to what a model takes, in requests that are not too large. An empty text is refused, so none is sent."""
    part: list[str] = []
    size = 0
    for text in texts:
        raw = text.encode("utf-8", "replace")[:most_bytes]
        if part and size + len(raw) > REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(raw.decode("utf-8", "ignore") or " ")
        size += len(raw)
    if part:
        yield part


def _vectors(answer: Any) -> list[list[float]]:
    return [one.embedding for one in sorted(answer.data, key=lambda one: one.index)]
