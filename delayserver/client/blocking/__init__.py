"""The blocking client. Its operations are made from those of the asynchronous client.

They are generated, because a shared core would not save signatures and docstrings, and wrappers made at run time hide
them from mypy. Connections, attempts and batching differ, so they are written by hand for both clients.
"""
