"""Periodic work: checkpoints, retention, free space, clock steps."""
