"""The wire protocol, sans-IO: frames, columns, receipts, errors, outcomes and limits. PROTOCOL.md draws the bytes.

Server and clients share this package. It has no socket, no clock and no event loop.
"""
