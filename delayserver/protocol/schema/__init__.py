"""Requests and replies as types, one file a family of operations. Server, clients, HTTP and PROTOCOL.md read them.

A field stands here once: its name, type, bounds, meaning and an example. Messages in columns have no types: their paths
are written by hand.
"""
