"""Opens a data directory after a stop or a crash.

A file of a window is read only where the checkpoint does not cover it, so a start does not depend on the number of
pending messages. A missing table, broker store or progress log refuses the start by name where the rest is there.

After an unclean stop sequences go on behind the durable reservation. Rows that may have been attempted are uncertain:
the node looks for them first, and a cancel of them is `too_late`. The clock cannot say which rows these are, since it
may have been set back. So nothing is attempted that is due later than 30 s after the newest checkpoint, and a
checkpoint is written when less than 15 s are left, also after a suspend. `sequences` reserves the times that
checkpoints may state, ten minutes ahead. A start without a checkpoint goes by that; a member of a cluster does not, since
the log of its shard says up to when its primaries attempted.

A start that meets bytes that the disk cannot read closes the directory and opens it again after a second, twice. The
last time it goes around them. A full disk stops no start: a part that meets it reports to its `RoomWait` and tries
again. The files that a start writes first keep room for their next version.

If the replay waits for room (`Stage.DELIVERING`), messages that are placed already are delivered. Cancels ahead in
message_log hold their messages until the end of the replay. No row goes straight to the wheel: each round evicts its
windows, and a load, which looks at outcomes and attempts, brings them. No new checkpoint is written, only the old one
with a later time. No window is retired, and no node hears that one is complete. The group commit takes no messages,
so message_log does not grow. Without a checkpoint, or with lost outcomes not searched for yet, the start waits
instead.

If lost outcomes were only cancels, message_log has them, and their window is not held back. Only a row proves a
delivery.
"""
