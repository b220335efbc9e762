"""The kinds of targets by the schemes of their addresses. A new kind is one more line here."""

from __future__ import annotations

from typing import Final

from delayserver.targets.embedded_kind import EMBEDDED
from delayserver.targets.kafka_kind import KAFKA
from delayserver.targets.kinds import Capabilities, TargetKind
from delayserver.targets.node_options import NodeOptions
from delayserver.targets.remote_node import TCP

KINDS: Final[dict[str, TargetKind]] = {
    kind.scheme: kind
    for kind in (
        EMBEDDED,
        TCP,
        KAFKA,
    )
}


def kind_of(address: str) -> TargetKind:
    """The kind of an address. One without a scheme is the name of a kind, or HOST:PORT. Raises ValueError."""
    scheme, separator, _ = address.partition("://")
    if not separator:
        return KINDS.get(address, TCP)
    if scheme not in KINDS:
        others = "".join([f", {known}://…" for known in KINDS if known not in (EMBEDDED.scheme, TCP.scheme)])
        raise ValueError(f"{address[:64]!r} has an unknown scheme: write HOST:PORT{others}")
    return KINDS[scheme]


def read_address(text: str) -> str:
    """The address under which a node is known. Raises ValueError, which says what to write."""
    return kind_of(text).read_address(text)


def capabilities_of(address: str, options: NodeOptions) -> Capabilities:
    """What a node can do. Raises ValueError for an unknown scheme."""
    return kind_of(address).capabilities(address, options)
