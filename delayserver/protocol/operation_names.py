"""The names of the operations and the version of the protocol. PROTOCOL.md describes each operation."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
SUPPORTED_VERSIONS: Final = (PROTOCOL_VERSION,)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 20801

HELLO: Final = "hello"
SEND: Final = "send"
PUBLISH: Final = "publish"
CANCEL: Final = "cancel"
RESCHEDULE: Final = "reschedule"
LOOKUP: Final = "lookup"
STATUS: Final = "status"
ROUTE: Final = "route"
PULL: Final = "pull"
ACK: Final = "ack"
NACK: Final = "nack"
EXTEND: Final = "extend"
DELIVER: Final = "deliver"
WINDOW_COMPLETE: Final = "window_complete"
CANCEL_WAIT: Final = "cancel_wait"
GROUPS: Final = "groups"
FIND: Final = "find"
SUBJECTS: Final = "subjects"
GROUP: Final = "group"
SEEK: Final = "seek"
REMOVE_GROUP: Final = "remove_group"
READ: Final = "read"
PING: Final = "ping"
POLICY: Final = "policy"
DEAD_LETTERS: Final = "dead_letters"
WAITING_KEYS: Final = "waiting_keys"
REDISPATCH: Final = "redispatch"
RELOAD: Final = "reload"
PENDING: Final = "pending"
METRICS: Final = "metrics"
PROVE: Final = "prove"
PREPARE: Final = "prepare"
COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
TRANSACTIONS: Final = "transactions"
TOKEN: Final = "token"
SNAPSHOT: Final = "snapshot"
CLUSTER: Final = "cluster"
MAP: Final = "map"
SCHEDULE: Final = "schedule"

# Operations that a request may ask to have no reply, with the argument `one_way`.
ONE_WAY: Final = frozenset({SEND, PUBLISH})

OPERATIONS: Final = frozenset(
    {
        HELLO, PING, STATUS, ROUTE, SEND, CANCEL, RESCHEDULE, LOOKUP, PULL, CANCEL_WAIT, ACK, NACK, GROUPS,
        DELIVER, WINDOW_COMPLETE, REDISPATCH, PROVE, SUBJECTS, POLICY, GROUP, SEEK, REMOVE_GROUP, READ, PREPARE,
        COMMIT, ROLLBACK, TRANSACTIONS, FIND, DEAD_LETTERS, PUBLISH, RELOAD, PENDING, METRICS, TOKEN, EXTEND,
        WAITING_KEYS, SNAPSHOT, CLUSTER, MAP, SCHEDULE,
    }
)  # fmt: skip
