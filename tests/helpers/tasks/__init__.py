"""Tasks, steps and workers for tests to run."""
