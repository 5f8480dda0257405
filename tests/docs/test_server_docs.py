"""The page about servers is true on each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.doc_pages import run_page
from helpers.servers import SERVERS, url_on


@pytest.mark.parametrize("engine", SERVERS)
def test_the_python_on_the_page_about_servers_runs_on_each(engine: str, tmp_path: Path) -> None:
    printed, promised = run_page(
        "docs/howto/use-a-server.md", tmp_path, HOLDFAST_URL=url_on(engine, tmp_path)
    )
    assert printed == promised
