"""Commands that show what happens while it happens: watch and follow tasks, run one, workers."""
