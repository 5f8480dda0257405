"""One DynamoDB table."""

from .backend import DynamoDBBackend

__all__ = ["DynamoDBBackend"]
