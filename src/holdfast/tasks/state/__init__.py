"""The state of a task: its stored events, the fold that derives the state, and views of it."""
