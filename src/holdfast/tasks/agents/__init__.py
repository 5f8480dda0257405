"""Agents: declare them, run them, and run them as children."""
