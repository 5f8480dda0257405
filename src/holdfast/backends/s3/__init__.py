"""The S3 backend: streams under one prefix of a bucket."""

from .backend import S3Backend

__all__ = ["S3Backend"]
