"""Compares what the files of a data directory say."""
