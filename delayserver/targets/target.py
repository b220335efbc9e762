"""`Target`: where due messages are delivered. Each kind of target is a subclass in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from delayserver.targets.answer import Answer
from store.records.batches import StoredBatch


class DeliveryError(Exception):
    """A target took nothing of a request. `known`: it certainly has none of it. Otherwise it may have all."""

    def __init__(self, reason: str, *, known: bool) -> None:
        super().__init__(reason)
        self.known = known


LEASE_ENDED = "the lease of this member ended before it was sent"
"""Why a member sent nothing: another one may lead by now."""


class Target(ABC):
    """One node of broker groups. There is one instance for each address, whichever groups share it.

    `address`: as the configuration names it."""

    address: str

    @property
    def problem(self) -> str:
        """The name of the error that an operator must mend before this target takes messages well; "" for none."""
        return ""

    async def run(self) -> None:  # noqa: B027 - most kinds have no task
        """The target's own task, such as one that keeps a connection. It is cancelled when no group has the node any more.
        A target without such work returns at once. An exception ends the server."""

    @abstractmethod
    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        """Hand over messages, and return when the target keeps them through a crash. Several workers may call it at once; it
        is cancelled after `dispatch.deliver_timeout_ms`, and then the result of all messages is unknown.

        `uncertain`: an earlier attempt may have delivered some of these. Raises DeliveryError for the whole batch."""

    async def probe(self) -> None:
        """Return if the target would take messages now, as far as that shows without any. Raises DeliveryError. Only a
        target with the capability `probes` is asked."""
        raise DeliveryError("it shows only by messages whether it is back", known=True)

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:  # noqa: B027 - see `Capabilities`
        """Nothing of these windows is to be delivered any more: the target may forget the keys of their messages.

        Call `windows_ms` in the step that sends them, because a late message opens a window again. Only a target with the
        capability `windows_complete` hears of windows. Raises DeliveryError."""
