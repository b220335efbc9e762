"""Leadership of a shard: a standby claims it where the primary is silent, and a primary keeps it by its beats.

Nothing that is promised depends on the times of this room. They decide how quickly a standby takes over. Who leads is
decided by the place of a claim in the log (`follow`).
"""
