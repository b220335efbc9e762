"""Due rows go to the nodes of broker groups, with retries, breakers and failover.

A row is in flight from the step in which it left the queue, so a cancel always finds it. Retries never give up by
themselves.

Rows leave the wheel 4 ms ahead, so that a worker has read their bodies in time. When thousands are due together,
bodies are read up to 300 ms early, at most 64 MiB for all groups; the rows stay in the wheel and can be cancelled.

A batch goes to the node with the fewest batches in flight by its weight, so workers do not all come to wait for one
slow node. It ends with the node that failed: its untried parts are free for another node, a fallback group or a
cancel. Attempts in parallel that fail count as one failure, and one attempt alone, the probe, shows whether the node
is back.

Rows that a node refuses, and not their neighbours, wait aside: one subject without room delays no other. Rows that
cannot be read at hand-off are read again later, around the damage: after a minute, or after a second if the disk
refused.

A node that hangs gets no further messages: after a request without an answer it must answer a `ping` first. A
connection counts only after its `hello` was answered. So a node that wakes up repeats fewer deliveries of another
node.

Messages that two nodes may both have are counted. An index row knows the node and the number of hand-overs without an
answer. A delivery to another node carries them as a higher `attempt`. After a crash the node is not known: every
uncertain row counts, unless all routes of the group lead to one node.

Rows of many files go in one shipment, certain and uncertain ones apart: a crash during a backlog makes all the rest
of it uncertain. The node looks for uncertain rows window by window, and reads nothing for a window of which it stores
no message.
"""
