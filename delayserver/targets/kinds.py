"""`TargetKind`: what the server knows of a kind of target before, and without, an instance of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from delayserver.net.transport import Connect
from delayserver.runtime.runtime import Runtime
from delayserver.targets.node_options import NodeOptions
from delayserver.targets.target import Target


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a node can do. The server asks these, and never for the kind."""

    consumable: bool = False
    """Consumers can pull messages from the node, at its address."""
    here: bool = False
    """The node is the broker of this process: `publish` stores into it."""
    keeps_keys: bool = False
    """Messages of an order key stay in the order in which they were handed over."""
    idempotent: bool = False
    """The node recognises a message that it was handed before. So a repeated delivery to it is no second copy."""
    windows_complete: bool = False
    """The node keeps keys of messages by schedule window, and wants to hear when it may forget them."""
    probes: bool = False
    """`Target.probe` shows whether the node is back. Without it only a message does, after the pause of the node."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The sender: its server id (12 hex digits), the instance of this process (16) and the secret that servers share."""

    server_id: str
    instance: str
    secret: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a target may use of its server. `local`: the broker of this process. `names`: gives the name of a code in a
    batch. `frame_bytes_max`: of a frame from another server. `deliver_timeout_ms`: after it a delivery is cancelled.
    `may_send`: whether a member of a cluster holds its lease. It is asked in the step that sends. None: a single server."""

    local: Target
    identity: ServerIdentity
    names: Callable[[int], str]
    connect: Connect
    frame_bytes_max: int
    deliver_timeout_ms: int
    runtime: Runtime
    may_send: Callable[[], bool] | None = None


def _any_address(address: str) -> str:
    return address


@dataclass(frozen=True, slots=True)
class TargetKind:
    """`scheme`: its addresses are `SCHEME://…`. `capabilities`, `make`: called with the address and the options of a node.

    `read_address` returns the address under which the node is known; raises ValueError, which says what to write.
    `options`: a subclass of `NodeOptions`."""

    scheme: str
    capabilities: Callable[[str, Any], Capabilities]
    make: Callable[[str, Any, Surroundings], Target]
    read_address: Callable[[str], str] = _any_address
    options: type[NodeOptions] = NodeOptions
