"""The PostgreSQL backend: one schema of a database."""

from .backend import PostgresBackend

__all__ = ["PostgresBackend"]
