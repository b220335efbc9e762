"""What the server knows in memory. Synchronous; no file, no socket."""
