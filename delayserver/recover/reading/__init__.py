"""Reads a data directory, whole or damaged, without changing it."""
