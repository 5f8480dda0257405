"""Integrations, one module per framework. Each raises ImportError if its framework is missing."""
