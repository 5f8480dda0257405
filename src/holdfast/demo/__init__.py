"""`holdfast demo`: an agent that is killed repeatedly, and the report of what it did."""
