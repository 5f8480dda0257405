"""Stores with something in them: written, copied, altered, or judged."""
