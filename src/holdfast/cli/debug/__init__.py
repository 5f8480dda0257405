"""Commands that test agents: replay a recorded task, and kill an agent around every write."""
