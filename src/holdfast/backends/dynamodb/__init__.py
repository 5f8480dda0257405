"""The DynamoDB backend: streams in one table."""

from .backend import DynamoDBBackend

__all__ = ["DynamoDBBackend"]
