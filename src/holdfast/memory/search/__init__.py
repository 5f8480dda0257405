"""The search index in SQLite or PostgreSQL: keep it up to date, find candidates, rank them."""
