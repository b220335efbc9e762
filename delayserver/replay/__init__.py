"""message_log, or a draining day, becomes schedule_log: each message once.

Placing runs in a worker thread, publishing on the event loop: encoding, checksums and writes run in parallel to
receiving. A round of at most 512 rows for one existing file stays on the loop.

A round of single sends waits up to 50 ms for more. It does not wait if a row is due within 200 ms, or if a part waits
for the replay.

Deduplication is a 64-bit index for each window, confirmed by bytes. A dropped index is rebuilt from the files, so
memory is bounded, and correctness does not depend on a cache.

Accepted messages are counted, not summed over the marks of files. Such a sum is right only when all rows are placed,
and `status` shows the count at any moment.

Minutes reach 12 to 36 hours ahead (`storage.fine_horizon_ms`). Farther, a round of spread due times touches too many
files.
"""
