"""The end of a run: drains everything, and compares the server's answers with the outside record."""

from __future__ import annotations

import random
from typing import Any

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.outcomes import Outcome
from ops.torture.consuming import Consumer
from ops.torture.producing import SUBJECT
from ops.torture.record import Fate, Record, Sent

LOOKUPS_AT_ONCE = 200
PULL_WAIT_S = 0.05


def drain(record: Record, consumer: Consumer, empty_pulls_max: int) -> None:
    """Pulls and acks until all messages that must arrive have arrived, none is pending, and no more come.

    Messages missing after so many empty pulls in a row (of `PULL_WAIT_S` each) are lost, or stuck until a restart. It
    counts pulls, not seconds, so that a pause of the machine does not look like a loss.
    """
    empty = 0
    while True:
        came = consumer.step(PULL_WAIT_S, drain=True)
        for subject in sorted({sent.subject for sent in record.open()} - {SUBJECT}):
            came += consumer.step(0.0, subject, drain=True)
        empty = 0 if came else empty + 1
        if came:
            continue
        status, lag = consumer.client.status(), sum([group.lag for group in consumer.client.groups()])
        if not record.missing() and not record.unsettled() and _idle(status, lag):
            return
        if empty >= empty_pulls_max:
            for sent in record.missing():
                record.violate(
                    f"{sent.number} ({sent.receipt or sent.message_id}, due {sent.due_ms}) was accepted and lost"
                )
            for sent in record.unsettled():
                record.violate(f"{sent.number} was not acked and did not come again")
            if not _idle(status, lag):
                left = f"{status['pending']} pending and a lag of {lag}"
                record.violate(f"nothing more came, with {left}")
            return


def _idle(status: dict[str, Any], lag: int) -> bool:
    """True if no message is pending, and none waits for the consumer in the subjects that it has pulled from."""
    return not status["pending"] and not lag


def judge(record: Record, client: Client, *, retired: bool = False, sample: int | None = None) -> dict[str, Any]:
    """Compares lookups and the status with the record and notes violations. Returns the server's status.

    `retired`: windows may be retired already. `sample`: looks up only that many messages.
    """
    _judge_lookups(record, client, retired, sample)
    status = dict(client.status())
    _judge_status(record, status)
    return status


def _judge_lookups(record: Record, client: Client, retired: bool, sample: int | None) -> None:
    known = [sent for sent in record.sent.values() if sent.receipt]
    copies = list(record.copy_receipts.items())
    if sample is not None:
        chance = random.Random(len(known))
        known = chance.sample(known, min(sample, len(known)))
        copies = chance.sample(copies, min(sample, len(copies)))
    for start in range(0, len(known), LOOKUPS_AT_ONCE):
        part = known[start : start + LOOKUPS_AT_ONCE]
        for sent, found in zip(part, client.lookup_many([sent.receipt for sent in part]), strict=True):
            outcome = Outcome.UNKNOWN if isinstance(found, DelayServerError) else found.outcome
            if outcome not in _true_outcomes(sent) and not (retired and outcome == Outcome.RETIRED):
                record.violate(
                    f"{sent.number} ({sent.receipt}) is {sent.fate.name.lower()}, arrived {sent.arrivals} times, "
                    f"and lookup says {outcome.label}"
                )
    for start in range(0, len(copies), LOOKUPS_AT_ONCE):
        chosen = copies[start : start + LOOKUPS_AT_ONCE]
        for (receipt, number), found in zip(
            chosen, client.lookup_many([receipt for receipt, _ in chosen]), strict=True
        ):
            outcome = Outcome.UNKNOWN if isinstance(found, DelayServerError) else found.outcome
            if outcome != Outcome.DEDUPLICATED and not (retired and outcome == Outcome.RETIRED):
                record.violate(f"the copy {receipt} of {number} is {outcome.label} by lookup")


def _true_outcomes(sent: Sent) -> tuple[Outcome, ...]:
    """The outcomes that lookup may answer at the end. A message sent twice may have the receipt of its duplicate."""
    copy = (Outcome.DEDUPLICATED,) if sent.asked_again else ()
    if sent.fate == Fate.ENDED:
        return (Outcome.CANCELLED, *copy)
    if sent.arrivals:
        return (Outcome.DELIVERED, *copy)
    # `delivered` if the broker stored the message in time, but it expired before the consumer pulled it.
    return (Outcome.EXPIRED, Outcome.DELIVERED, *copy) if sent.expires_ms else ()


def _judge_status(record: Record, status: dict[str, Any]) -> None:
    """Compares the balance of the server with the record.

    A count is a range because of unanswered requests that cannot be repeated, each of which happened or not: a message
    without an id (`asked`), a cancel with a lost answer (`ending`), a duplicate (`copies_unknown`).
    """
    arrived = sum(1 for sent in record.sent.values() if sent.arrivals)
    ended = len(record.of(Fate.ENDED))
    ending = len([sent for sent in record.of(Fate.ENDING) if not sent.arrivals])
    asked = len([sent for sent in record.of(Fate.ASKED) if not sent.arrivals])
    expiring = len([sent for sent in record.sent.values() if sent.expires_ms and not sent.arrivals])
    expired = len([sent for sent in record.of(Fate.ACCEPTED) if sent.expires_ms and not sent.arrivals])
    _in_range(record, status, "delivered", arrived, arrived + expiring)
    _in_range(record, status, "cancelled", ended, ended + ending)
    _in_range(record, status, "deduplicated", record.copies, record.copies + record.copies_unknown)
    # A message that was accepted, has not arrived and was not cancelled has expired if it can, before or after its
    # delivery to the broker. Otherwise it is lost, and `drain` notes it.
    _in_range(record, status, "expired", 0, expiring)
    ended_by_time = {"delivered or expired": status["delivered"] + status["expired"]}
    _in_range(record, ended_by_time, "delivered or expired", arrived + expired, arrived + expiring)
    _in_range(record, status, "pending", 0, 0)
    _in_range(record, status, "early", 0, 0)
    _in_range(record, status, "dead_lettered", 0, 0)
    _in_range(record, status, "rolled_back", 0, 0)
    least = arrived + ended + record.copies + expired
    _in_range(record, status, "accepted", least, least + record.copies_unknown + expiring - expired + asked + ending)
    outcomes = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back", "pending")
    if status["accepted"] != sum(status[name] for name in outcomes):
        record.violate(f"the balance does not hold: {[(name, status[name]) for name in ('accepted', *outcomes)]}")
    for damage in status["corruption"] + status["broker"]["damages"]:
        record.violate(f"the server reports corruption: {damage}")


def _in_range(record: Record, status: dict[str, Any], name: str, least: int, most: int) -> None:
    if not least <= status[name] <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        record.violate(f"status says {name} {status[name]}, seen from outside {expected}")
