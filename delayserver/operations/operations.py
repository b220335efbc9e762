"""All operations of a server, for any front: values in, values out. None of them knows a connection or a frame."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.operations.cancel import Cancel
from delayserver.operations.consuming import Consuming
from delayserver.operations.delivering import Delivering
from delayserver.operations.identity import Identity
from delayserver.operations.lookup import Lookup
from delayserver.operations.redispatch import Redispatch
from delayserver.operations.reschedule import Reschedule
from delayserver.operations.routing import Routing
from delayserver.operations.send import Send
from delayserver.operations.servers import Servers
from delayserver.operations.status import Status


@dataclass(frozen=True, slots=True)
class DelayOperations:
    """What only a server with a delay pipeline for clients has."""

    send: Send
    cancel: Cancel
    reschedule: Reschedule
    lookup: Lookup
    redispatch: Redispatch


@dataclass(frozen=True, slots=True)
class Operations:
    """What a server and a lone broker have; `delay` is None for a lone broker."""

    identity: Identity
    status: Status
    routing: Routing
    servers: Servers
    consuming: Consuming
    delivering: Delivering
    delay: DelayOperations | None
