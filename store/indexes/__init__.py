"""Finds rows by sequence, id or due time."""
