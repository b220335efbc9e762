"""Byte streams: accepted sockets, connections to other servers."""
