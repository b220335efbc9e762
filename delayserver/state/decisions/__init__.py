"""Decisions about messages that are not written yet."""
