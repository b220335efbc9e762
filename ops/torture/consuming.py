"""The receiving side of the load: pulls, acks and nacks, and sometimes keeps deliveries for later."""

from __future__ import annotations

import random
from datetime import timedelta

from delayserver.client import Delivery
from delayserver.protocol.errors import DelayServerError
from ops.torture.producing import LOST, SUBJECT, TIMEOUT_S, Straight
from ops.torture.record import Instance, Record

GROUP = "torture"
NACK_DELAY_MS = 150


class Consumer:
    """One consumer of one group. A crash makes it forget the kept deliveries, which come again."""

    def __init__(self, record: Record, address: str, chance: random.Random) -> None:
        self._record = record
        self._chance = chance
        self.client = Straight(address, timeout_s=TIMEOUT_S, retries=0)
        self._held: list[tuple[Delivery, Instance]] = []

    def step(self, wait_s: float = 0.0, subject: str = SUBJECT, *, drain: bool = False) -> int:
        """Pulls once and settles some deliveries; `drain` acks all of them. Returns the number of deliveries."""
        deliveries = self.client.pull(subject, GROUP, 300, wait_s)
        known = [(delivery, one) for delivery in deliveries if (one := self._record.arrived(delivery)) is not None]
        if drain:
            self._ack(known, subject)
            return len(known)
        self._settle(known)
        if self._chance.random() < 0.3:
            self.ack_held()
        return len(known)

    def ack_held(self) -> None:
        """Acks the deliveries kept for later."""
        held, self._held = self._held, []
        self._ack(held, SUBJECT)

    def _settle(self, known: list[tuple[Delivery, Instance]]) -> None:
        what = self._chance.random()
        if not known:
            return
        if what < 0.15:
            self._hand_back(known[:5])
            self._ack(known[5:], SUBJECT)
        elif what < 0.3:
            self._held += known
        else:
            self._ack(known, SUBJECT)

    def _ack(self, known: list[tuple[Delivery, Instance]], subject: str) -> None:
        if not known:
            return
        instances = [instance for _, instance in known]
        self._record.acking(instances)
        result = self.client.ack(subject, GROUP, [delivery for delivery, _ in known])
        if result.unknown:
            self._record.violate(f"{result.unknown} of {len(known)} fresh deliveries could not be acked")
        self._record.acked(instances)

    def _hand_back(self, known: list[tuple[Delivery, Instance]]) -> None:
        instances = [instance for _, instance in known]
        retries = self._record.handing_back(instances, NACK_DELAY_MS)
        deliveries = [delivery for delivery, _ in known]
        try:
            result = self.client.nack(SUBJECT, GROUP, deliveries, timedelta(milliseconds=NACK_DELAY_MS))
        except LOST:
            raise
        except DelayServerError as error:
            self._record.failed(error)
            return  # the result is unknown: the deliveries stay leased, and the next crash shows it
        if result.unknown:
            self._record.violate(f"{result.unknown} of {len(known)} fresh deliveries could not be handed back")
        self._record.handed_back(instances, retries)
