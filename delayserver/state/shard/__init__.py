"""What a member of a shard knows of its shared log: who leads, and which of its own records are on their way.

Only a member of a cluster has it. Everything here is synchronous, and for the event loop.
"""
