"""Periodic work: checkpoints, retention, free space, clock steps.

The counts of subjects in a checkpoint are taken while no outcome is written. The ledger is rewritten now and then
with many windows in a record, because a start reads it whole. A window stays while a message for it is on its way,
because its files show which messages are copies. Windows and broker segments age by the believable clock, message_log
by uptime behind the checkpoint.

On a full disk the last checkpoint is written again with a later time, over room kept for it, so deliveries go on.
"""
