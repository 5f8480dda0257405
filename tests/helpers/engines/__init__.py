"""Servers, proxies before them, and engines in memory that can fail."""
