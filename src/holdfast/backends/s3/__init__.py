"""One prefix of an S3 bucket."""

from .backend import S3Backend

__all__ = ["S3Backend"]
