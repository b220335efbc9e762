"""Who the members of a cluster are. Each start of a member is a record of a small log of its own, the map.

The map decides nothing: who leads a shard is in the log of the shard. From the map a member learns the ids of its shard and
its own number, and the command line learns where the members are.
"""
