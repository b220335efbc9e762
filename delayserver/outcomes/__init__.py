"""What was decided becomes dispatch_log."""
