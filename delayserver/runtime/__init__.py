"""What every part may ask for: the time, chance, a turn of the event loop, worker threads, a place for damage."""
