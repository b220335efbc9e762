"""Checks messages, makes them durable in message_log and acknowledges them.

A bad row never fails its neighbours. A batch is all or nothing, across a crash too. No later part sees a record
before its sync. A failed sync is final: all waiting callers get the error, and the server stops.

A group of at most 64 KiB is synced on the event loop, because a hop to a thread costs as much. While the mean of the
last small syncs is 1 ms or more, they go to a thread. `Publishing` does the same for the broker's store.

Between a sync and its answers both ask whether the file still has its name, at most once in a millisecond: if an
operator has deleted it, its messages end with the process. A small group bypasses the page cache where the file
system can do that; the space was zeroed and synced before.

A commit that finds the last segment full makes no file: it appends to `next.tmp`, which is made when three quarters
are used, and its own sync covers the header too. Without room to spare the commit makes the file itself.

The server finds copies behind the acknowledgement, so a send never waits for an index of ids.
"""
