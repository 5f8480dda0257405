"""Decide whether two texts are duplicates: normalized words, fillers, typos."""
