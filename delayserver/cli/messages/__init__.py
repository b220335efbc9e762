"""Commands about messages: send, publish, cancel, reschedule, look up, count."""
