"""The server's state in memory. Synchronous; no file, no socket."""
