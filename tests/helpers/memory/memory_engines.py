"""The engines that an index of memories can be in."""

from __future__ import annotations

from pathlib import Path

import holdfast
from helpers.servers import url_on

ENGINES = ("memory", "sqlite", "postgres")


def on(engine: str, tmp_path: Path) -> holdfast.Store:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db"}
    return holdfast.open(url_on(engine, tmp_path) if engine == "postgres" else urls[engine])
