"""Holdfast keeps the state of LLM agents alive."""
