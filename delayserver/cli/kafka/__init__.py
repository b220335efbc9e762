"""Calls of Kafka from the command line."""
