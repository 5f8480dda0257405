"""Integrations, tested with the real frameworks against a scripted model on this machine."""
