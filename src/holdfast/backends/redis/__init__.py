"""The Redis and Valkey backend."""

from .backend import RedisBackend, StoreRegressed

__all__ = ["RedisBackend", "StoreRegressed"]
