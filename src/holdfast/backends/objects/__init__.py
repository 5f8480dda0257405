"""Streams on object stores: the common part of the DynamoDB and S3 backends."""
