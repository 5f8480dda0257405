"""Whether there is a store of files at a path, before it is opened."""

from __future__ import annotations

import os


def is_file_store(path: str) -> bool:
    """Whether there is an SQLite file. An empty one is what somebody left who was killed while making a store."""
    return os.path.exists(path) and os.path.getsize(path) > 0


def is_folder_store(path: str) -> bool:
    """Whether there is a folder of files that Holdfast has marked as its own."""
    return is_file_store(os.path.join(path, "holdfast.json"))
