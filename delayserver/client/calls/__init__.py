"""The sans-IO parts of both clients: calls, retries, and the messages of a batch."""
