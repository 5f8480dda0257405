"""Memories, embedders, and the engines their index is in."""
