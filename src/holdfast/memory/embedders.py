"""Embedders for `store.memory(namespace, embed=…)`: OpenAI-compatible, local and static models.

An embedder is a function from a list of texts to as many vectors. It may have a `name` that
identifies the model, a `query` method for models that embed queries differently, and a `timeout`:
how many seconds a recall waits for it. A plain function works too.
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
from ..log.ids import check_id
from ..log.validation import check_seconds
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

MAX_TEXT_BYTES: Final = 8_000
"""OpenAI's models take at most 8,191 tokens per text, and a token is at least one byte."""
MAX_REQUEST_BYTES: Final = 250_000
"""A request may have at most 300,000 tokens."""


class Embedder:
    """An embedding function of yours with its settings. Change `name` when you change the model.

    `query` embeds a query, if the model embeds queries differently. `timeout` is how many seconds a
    recall waits for the embedder.
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
            raise TypeError(
                "embed must be a function from a list of texts to as many vectors,"
                f" got {type(embed).__name__}"
            )
        self._embed, self.query, self.name = embed, query, check_id(name, "name")
        self.timeout, self.is_async = check_seconds(timeout, "timeout", 0.001), is_async(embed)

    def __call__(self, texts: list[str]) -> Any:
        return self._embed(texts)


class OpenAIEmbedder:
    """Embeddings from OpenAI or any server with the same API.

    `client` is an `openai.OpenAI`, or an `AsyncOpenAI` for the async store; it has the key and the
    address. By default it is `openai.OpenAI()`, configured by environment variables. Only the first
    `most_bytes` of a text are embedded.
    """

    def __init__(
        self,
        client: Any = None,
        model: str = "text-embedding-3-small",
        dimensions: int | None = None,
        *,
        most_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        if client is None:
            client = _import_extra("openai", "OpenAIEmbedder", "openai").OpenAI()
        self._create, self._model, self._dimensions = client.embeddings.create, model, dimensions
        self._most_bytes = most_bytes
        self.name, self.is_async = f"openai/{model}", inspect.iscoroutinefunction(self._create)

    def __call__(self, texts: list[str]) -> Any:
        """Return the vectors, or an awaitable of them if the client is async."""
        requests = [self._request(part) for part in _split_requests(texts, self._most_bytes)]
        answers = [self._create(**request) for request in requests[:1]]
        if answers and hasattr(answers[0], "__await__"):
            return self._embed_async(answers[0], requests[1:])
        answers += [self._create(**request) for request in requests[1:]]
        return [vector for answer in answers for vector in _read_vectors(answer)]

    async def _embed_async(self, first: Any, requests: list[dict[str, Any]]) -> list[list[float]]:
        found = _read_vectors(await first)
        for request in requests:
            found += _read_vectors(await self._create(**request))
        return found

    def _request(self, texts: list[str]) -> dict[str, Any]:
        request = {"model": self._model, "input": texts, "encoding_format": "float"}
        return request if self._dimensions is None else {**request, "dimensions": self._dimensions}


class SentenceTransformerEmbedder:
    """A sentence-transformers model: its name, the path of its folder, or the loaded model."""

    def __init__(self, model: Any = "sentence-transformers/all-MiniLM-L6-v2") -> None:
        self._model = model
        if isinstance(model, str | PathLike):
            package = _import_extra(
                "sentence_transformers", "SentenceTransformerEmbedder", "sentence-transformers"
            )
            self._model = package.SentenceTransformer(fspath(model))
            self.name = f"sentence-transformers/{fspath(model)}"
        else:
            card = getattr(model, "model_card_data", None)
            self.name = (
                f"sentence-transformers/{getattr(card, 'base_model', None) or type(model).__name__}"
            )
        # Since release 5 a model may have different prompts for documents and queries.
        self._encode_texts = getattr(self._model, "encode_document", self._model.encode)
        self._encode_query = getattr(self._model, "encode_query", self._model.encode)

    def __call__(self, texts: list[str]) -> Sequence[Any]:
        found: Sequence[Any] = self._encode_texts(
            texts, show_progress_bar=False, convert_to_numpy=True
        )
        return found

    def query(self, text: str) -> Any:
        """Return the vector of a query."""
        return self._encode_query([text], show_progress_bar=False, convert_to_numpy=True)[0]


class StaticEmbedder:
    """A static model (one vector per word piece) from the package model2vec: fast without a GPU.

    `model` is the path of its folder, a name on the Hugging Face hub ("minishlab/potion-base-8M",
    downloaded once), or a loaded `model2vec.StaticModel`.
    """

    def __init__(self, model: Any) -> None:
        self._model, name = model, getattr(model, "base_model_name", None)
        if isinstance(model, str | PathLike):
            package = _import_extra("model2vec", "StaticEmbedder", "static")
            self._model, name = package.StaticModel.from_pretrained(fspath(model)), fspath(model)
        self.name = f"model2vec/{name or 'unnamed'}"

    def __call__(self, texts: list[str]) -> Sequence[Any]:
        found: Sequence[Any] = self._model.encode(texts, use_multiprocessing=False)
        return found


class WordLlamaEmbedder:
    """The small English model in the package wordllama: 16 MB, 256 dimensions, no download."""

    def __init__(self) -> None:
        root = logging.getLogger()
        level, handlers = root.level, list(root.handlers)
        wordllama = _import_extra("wordllama", "WordLlamaEmbedder", "static")
        root.setLevel(level)  # importing it configures logging for the whole process
        root.handlers[:] = handlers
        # By default it looks for the tokenizer outside the package's folder. Naming the folder as
        # the cache makes it look inside.
        home = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=home, disable_download=True)
        self.name = "wordllama/l2_supercat"

    def __call__(self, texts: list[str]) -> NDArray[Any]:
        found: NDArray[Any] = self._model.embed(texts)
        return found


def _import_extra(module: str, what: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(what, extra) from None


def _split_requests(texts: Iterable[str], most_bytes: int) -> Iterator[list[str]]:
    """Yield the texts in order, truncated and grouped into requests that the API accepts.

    The API rejects an empty text, so a space is sent instead.
    """
    part: list[str] = []
    size = 0
    for text in texts:
        raw = text.encode("utf-8", "replace")[:most_bytes]
        if part and size + len(raw) > MAX_REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(raw.decode("utf-8", "ignore") or " ")
        size += len(raw)
    if part:
        yield part


def _read_vectors(answer: Any) -> list[list[float]]:
    return [one.embedding for one in sorted(answer.data, key=lambda one: one.index)]
