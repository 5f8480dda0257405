"""A Redis or Valkey server."""

from .backend import RedisBackend, StoreRegressed

__all__ = ["RedisBackend", "StoreRegressed"]
