"""Streams of application-defined events: `Stream` and `AsyncStream`."""
