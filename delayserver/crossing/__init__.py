"""The directory of a single server becomes the first one of a shard, and that of a member becomes a single server's.

No server runs on the directory meanwhile. Nothing is delivered.
"""
