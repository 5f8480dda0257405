"""Crash tests: programs that are killed, disks that lose what was not synced, and the checker that
comes afterwards."""
