"""Kafka as the engine of shared logs: a topic of a cluster, with a partition for each shard. Needs the extra `kafka`.

Only the builder of a server with a cluster imports this room. It uses neither Kafka's transactions nor its groups.
"""
