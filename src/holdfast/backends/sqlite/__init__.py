"""The default backend: one SQLite file."""

from .backend import SQLiteBackend

__all__ = ["SQLiteBackend"]
