"""Control of tasks from outside their block: answers, signals, cancelling, forking, deleting."""
