"""Follows the shared log of a shard: each record that counts becomes part of this directory, in the order of the log.

All members do the same with what they read, primary or standby. What this process proposed is answered here, when it came
back. Nothing is written to message_log before that. So a member that is superseded has nothing to undo.
"""
