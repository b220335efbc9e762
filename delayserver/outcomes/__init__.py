"""Writes decided outcomes to dispatch_log."""
