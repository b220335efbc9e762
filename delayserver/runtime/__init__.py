"""The services of the process for every part: time, chance, turns of the event loop, worker threads, damage report."""
