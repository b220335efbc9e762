"""One connection to a server, blocking or on an event loop."""
