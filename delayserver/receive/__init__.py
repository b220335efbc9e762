"""Checks messages, makes them durable in message_log and acknowledges them."""
