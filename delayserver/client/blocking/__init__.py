"""The blocking client. Its operations are made from those of the asynchronous client."""
