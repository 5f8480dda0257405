"""Where a store is, before it is opened."""

from __future__ import annotations

import os
from urllib.parse import unquote


def missing(url: str) -> str | None:
    """The path of a store that is not there yet; None if it is there, or is not one of files."""
    scheme, is_url, path = url.partition("://")
    if is_url:
        if scheme not in ("sqlite", "file") or not path.startswith("/") or "?" in path or "#" in path:
            return None  # open() says what a URL is
        path = unquote(path[1:] if scheme == "sqlite" else path)
    else:
        path = url
    marker = os.path.join(path, "holdfast.json") if scheme == "file" and is_url else path
    return path if path and (not os.path.exists(marker) or os.path.getsize(marker) == 0) else None
