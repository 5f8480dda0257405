"""Replay: run an agent against the recording of its task, without side effects."""
