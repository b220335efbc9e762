"""Opens a data directory after a stop or a crash."""
