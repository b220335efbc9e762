"""`delayserver backup` and `delayserver restore`."""
