"""How fast, how small, how many syncs: Holdfast beside the same work written by hand on SQLite and
PostgreSQL. Run `python -m bench`.

What is measured is a ratio wherever it can be: the machine differs, and so do the hours of its day,
but both sides of a ratio are measured within the same second, in random order. Benchmarks inform;
they never fail a build.
"""
