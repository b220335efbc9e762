"""The server's state in memory. Synchronous; no file, no socket.

`Decided` alone reads files: four rooms ask for the outcomes of a window, and a reader for each would be four caches.
"""
