"""Structured logs: events with names and fields, written as text for people or as JSON lines.

They stand on the standard library's `logging`, so a program that embeds the server or uses the client configures its
lines as all others.
"""
