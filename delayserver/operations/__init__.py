"""The operations behind the requests."""
