"""Structured logs: events with names and fields, written as text for people or as JSON lines."""
