"""Consolidate memories: find proposals, check what a model proposes, apply them once, undo them."""
