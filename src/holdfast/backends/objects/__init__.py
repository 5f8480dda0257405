"""Streams on object stores: what the DynamoDB and S3 backends share."""
