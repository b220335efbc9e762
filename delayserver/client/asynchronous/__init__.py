"""The asynchronous client, on trio and on asyncio.

The keyword parameters of `send`, `prepare`, `publish` and the one-way calls are written out, because editors and the
reference show them.
"""
