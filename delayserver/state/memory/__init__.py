"""The rows of messages that are in memory: wheels, queues, attempts, and where each row is.

Each of these calls only those before it. `Residency` knows where each row is. `Overflow` keeps memory within its bound.
`Fallbacks` chooses a group for the rows of one that fails. `Queueing` moves rows between wheel, queues and attempts.
`ReadBack` takes the rows that left memory out of a queue.

One wheel for each broker group, and a second one for its backlog: in one wheel a due row would wait for a million
before it. Slices and batches are taken from fresh rows and backlog in turn, and of several workers one takes no batch
of the backlog.

Wheels and queues belong to a group, not to a route. With cursors of its own each route would read the files of every
window once more, and a batch would hold one route only. So rows move between groups at a failover, and rows that left
a full queue are noted by route.

Rows that a full queue dropped come back by `Refill`, not by an ordinary load. An eviction goes behind a key and takes
the rows of all groups with it, so one slow group would empty the memory of the others.

Where several groups share memory and it is short, half of it is for the queues, and each keeps an equal part. So a
slow group does not stop the loading of others.

The queue of a healthy group may be nearly as long as the wheel: moving rows needs no memory, and a hot second is not
read twice. A group whose circuit is open keeps 65,536 rows.

There are two tables of what is looked at again: windows that a load met damaged, and spilled windows. `again_us` is
their one rule.

While a group is down, its queue may be full of rows that only it can take. Rows of other routes still go to their
fallback groups.
"""
