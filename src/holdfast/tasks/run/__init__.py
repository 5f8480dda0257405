"""Running a task: its lease and session, frames, effects and their drivers, and waits."""
