"""The recovery tools: reading, reconciling and repairing a data directory. The commands are in `delayserver.cli`.

What only reads works beside a running server; what changes anything takes the lock of the directory first.
"""
