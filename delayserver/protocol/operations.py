"""The names of the operations and the version of the protocol; what each one carries is in PROTOCOL.md."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1
SUPPORTED_VERSIONS: Final = (PROTOCOL_VERSION,)

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 20801

HELLO: Final = "hello"
SEND: Final = "send"
CANCEL: Final = "cancel"
RESCHEDULE: Final = "reschedule"
LOOKUP: Final = "lookup"
STATUS: Final = "status"
ROUTE: Final = "route"
PULL: Final = "pull"
ACK: Final = "ack"
NACK: Final = "nack"
DELIVER: Final = "deliver"
WINDOW_COMPLETE: Final = "window_complete"
PING: Final = "ping"
REDISPATCH: Final = "redispatch"

OPERATIONS: Final = frozenset(
    {
        HELLO, SEND, CANCEL, RESCHEDULE, LOOKUP, STATUS, ROUTE, PULL, ACK, NACK, DELIVER, WINDOW_COMPLETE, PING, REDISPATCH,
    }
)  # fmt: skip
