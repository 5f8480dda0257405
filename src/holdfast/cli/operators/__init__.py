"""What operators need: next command, name, many tasks at once, notifications, dashboard."""
