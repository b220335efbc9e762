"""message_log, schedule_log, dispatch_log and their files."""
