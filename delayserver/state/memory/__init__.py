"""The rows of messages that are in memory: wheels, queues, attempts, and where each row is."""
