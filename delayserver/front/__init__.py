"""Accepts connections, decodes requests, calls operations and sends replies."""
