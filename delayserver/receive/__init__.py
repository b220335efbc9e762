"""A checked message becomes durable in message_log and is acknowledged."""
