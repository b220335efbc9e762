"""The asynchronous client, on trio and on asyncio."""
