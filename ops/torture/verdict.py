"""The end of a run: everything is drained, and what the server says is compared with the record from outside."""

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
    """Receive and ack until all that must arrive has arrived, nothing is pending, and nothing more comes.

    What has not come after so many empty pulls in a row (of `PULL_WAIT_S` each) is lost, or stuck until the next restart.
    Pulls are counted, not seconds: on a machine that stands still for a while nothing is lost by that.
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
    """Nothing is pending, and nothing waits for the consumer in any subject that it has pulled from."""
    return not status["pending"] and not lag


def judge(record: Record, client: Client, *, retired: bool = False, sample: int | None = None) -> dict[str, Any]:
    """Compare lookups and the status with the record, noting violations; returns the server's status.

    `retired`: windows may be gone already. `sample`: look up that many messages only.
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
    """What lookup may say at the end. A message that was asked for twice may have the receipt of the suppressed copy."""
    copy = (Outcome.DEDUPLICATED,) if sent.asked_again else ()
    if sent.fate == Fate.ENDED:
        return (Outcome.CANCELLED, *copy)
    if sent.arrivals:
        return (Outcome.DELIVERED, *copy)
    # The broker may have stored it in time; it expired before the consumer pulled it.
    return (Outcome.EXPIRED, Outcome.DELIVERED, *copy) if sent.expires_ms else ()


def _judge_status(record: Record, status: dict[str, Any]) -> None:
    """The balance of the server against the one from outside.

    What makes a number a range: requests that nobody answered and that cannot be asked again (no id: `asked`; a cancel
    whose answer is lost: `ending`; a copy: `copies_unknown`), each of which happened or not.
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
    # Accepted, not arrived, not cancelled: one that may expire has done so, before its delivery or behind it; any other is
    # lost (`drain` says which).
    _in_range(record, status, "expired", 0, expiring)
    ended_by_time = {"delivered or expired": status["delivered"] + status["expired"]}
    _in_range(record, ended_by_time, "delivered or expired", arrived + expired, arrived + expiring)
    _in_range(record, status, "pending", 0, 0)
    _in_range(record, status, "early", 0, 0)
    _in_range(record, status, "dead_lettered", 0, 0)
    least = arrived + ended + record.copies + expired
    _in_range(record, status, "accepted", least, least + record.copies_unknown + expiring - expired + asked + ending)
    outcomes = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "pending")
    if status["accepted"] != sum(status[name] for name in outcomes):
        record.violate(f"the balance does not hold: {[(name, status[name]) for name in ('accepted', *outcomes)]}")
    for damage in status["corruption"] + status["broker"]["damages"]:
        record.violate(f"the server reports corruption: {damage}")


def _in_range(record: Record, status: dict[str, Any], name: str, least: int, most: int) -> None:
    if not least <= status[name] <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        record.violate(f"status says {name} {status[name]}, seen from outside {expected}")
