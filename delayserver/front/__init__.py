"""Accepts connections: frames come in, operations are called, replies go out."""
