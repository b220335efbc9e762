"""How a listener consumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delayserver.client.consuming.extending import OUTLIVE_S
from delayserver.protocol.errors import InvalidArgument

OUTLIVE_S_MAX: Final = 60
"""A server remembers the leases of a connection that has ended no longer."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """How a listener consumes.

    ``concurrency``: handlers of one subscription at once. ``prefetch_messages``, ``prefetch_bytes``: what may wait for
    them here. ``ack_timeout_s``: the lease that it asks for, and for which it extends it. ``ack_interval_s``: acks are
    gathered for so long. ``stop_s``: at the end running handlers get so much time. ``messages_max``: the subscription
    stops by itself when so many handlers have begun. ``extend_max_s``: while a handler runs, its lease is extended, until so
    long after its begin; 0: never. So a handler that hangs keeps its message for that time and one lease more.
    ``outlive_s``: leases end so long after the connection, so the messages of a listener that dies come again soon. After a
    lost connection the listener takes them over to the next one. None: they last for ``ack_timeout_s`` in any case.
    """

    concurrency: int = 10
    prefetch_messages: int = 4096
    prefetch_bytes: int = 16 * 1024 * 1024
    ack_timeout_s: float = 60.0
    ack_interval_s: float = 0.005
    stop_s: float = 30.0
    messages_max: int | None = None
    extend_max_s: float = 3600.0
    outlive_s: float | None = OUTLIVE_S

    def __post_init__(self) -> None:
        for name in ("concurrency", "prefetch_messages", "prefetch_bytes"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is an integer of at least 1, not {getattr(self, name)!r}")
        if not 0.001 <= self.ack_timeout_s <= 86_400:
            raise InvalidArgument(f"ack_timeout_s lies within 0.001 and 86400 (a day), not {self.ack_timeout_s!r}")
        if self.messages_max is not None and (type(self.messages_max) is not int or self.messages_max < 1):
            raise InvalidArgument(f"messages_max is an integer of at least 1, not {self.messages_max!r}")
        if self.ack_interval_s < 0 or self.stop_s < 0 or not self.extend_max_s >= 0:
            raise InvalidArgument("ack_interval_s, stop_s and extend_max_s are 0 or more")
        if self.outlive_s is not None and not 0 <= self.outlive_s <= OUTLIVE_S_MAX:
            raise InvalidArgument(f"outlive_s lies within 0 and {OUTLIVE_S_MAX}, or is None, not {self.outlive_s!r}")
