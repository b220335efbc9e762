"""The wire protocol, sans-IO: frames, columns, receipts, errors, outcomes and limits. PROTOCOL.md draws the bytes.

No socket, no clock and no event loop lives here; server and clients are written against it alike.
"""
