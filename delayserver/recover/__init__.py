"""The recovery tools: reading, reconciling and repairing a data directory. The commands are in `delayserver.cli`.

Tools that only read work beside a running server. Tools that change files take the lock of the directory first.
"""
