"""One SQLite file: the default backend."""

from .backend import SQLiteBackend

__all__ = ["SQLiteBackend"]
