"""Integrations, one module per framework; each raises ImportError if its framework is missing."""
