"""Opens a data directory as the last stop, or the last crash, left it."""
