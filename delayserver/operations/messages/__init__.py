"""Operations on accepted messages: find, cancel, reschedule, look up, end a transaction."""
