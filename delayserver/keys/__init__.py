"""Which messages bear an id, over everything that waits: the index of `store/keys`, beside the running server.

A round of the replay adds its messages, a checkpoint makes them durable, and runs are merged in a worker thread. An index
that is missing, behind or damaged is made again from schedule_log, while the server serves everything else. Every member of
a cluster makes its own.
"""
