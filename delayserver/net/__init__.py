"""Byte streams: accepted sockets and connections to other servers."""
