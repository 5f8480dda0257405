"""From a function to a command: declare it, build it with click, write its help, complete names."""
