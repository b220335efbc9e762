"""message_log, or a draining day, becomes schedule_log: each message once."""
