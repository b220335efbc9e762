"""Checkpoints, retention, free space, clock steps."""
