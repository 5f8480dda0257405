"""The page about embedders is true: its endpoint is one on loopback, and sentence-transformers a
package that has what it documents."""

from __future__ import annotations

from pathlib import Path

from helpers.doc_pages import run_page
from helpers.memory.embedding_server import ANIMALS, Server, server

__all__ = ["server"]

# The package itself brings torch along, which is too much for a test.
PACKAGE = f"""
import numpy

ANIMALS = {ANIMALS!r}


class SentenceTransformer:
    def __init__(self, name):
        assert name == "sentence-transformers/all-MiniLM-L6-v2"

    def encode(self, sentences, *, show_progress_bar, convert_to_numpy):
        words = [text.lower().split() for text in sentences]
        rows = [[ANIMALS.get(word, [0.0, 0.0]) for word in text] for text in words]
        return numpy.array([numpy.sum([[0.01, 0.01], *row], axis=0) for row in rows], numpy.float32)
"""


def test_the_python_on_the_page_about_embedders_runs_and_prints_what_the_page_says(
    server: Server, tmp_path: Path
) -> None:
    packages, place = tmp_path / "packages", tmp_path / "place"
    packages.mkdir()
    place.mkdir()
    (packages / "sentence_transformers.py").write_text(PACKAGE)
    environment = {
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_KEY": "none",
        "PYTHONPATH": str(packages),
    }
    printed, promised = run_page("docs/howto/embedders.md", place, **environment)
    assert printed == promised
    assert {request["model"] for request in server.requests} == {"text-embedding-3-small"}
    assert "The terrier sleeps through every visit" in str(server.requests)
