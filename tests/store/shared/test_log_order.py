"""All members that read the same log agree which records count, and none goes on where records are missing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.shared.envelope import Envelope, EnvelopeKind, LogWriter, ShardIdentity
from store.shared.log_order import LogOrder, Validity

SHARD = ShardIdentity(1, 2)
A, B = LogWriter(1, 10), LogWriter(2, 20)


def claim(epoch: int, writer: LogWriter) -> Envelope:
    return Envelope(EnvelopeKind.CLAIM, SHARD, epoch, 0, writer, 0)


def record(epoch: int, index: int, writer: LogWriter) -> Envelope:
    return Envelope(EnvelopeKind.RECORDS, SHARD, epoch, index, writer, 0)


def judged(log: Sequence[Envelope], order: LogOrder | None = None) -> list[Validity]:
    order = order or LogOrder()
    return [order.judge(envelope) for envelope in log]


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ([claim(1, A)], Validity.VALID),
        ([claim(2, A)], Validity.LOST),
        ([record(0, 1, A)], Validity.LOST),
        ([record(1, 1, A)], Validity.LOST),
        ([claim(1, A), record(1, 1, A)], Validity.VALID),
        ([claim(1, A), record(1, 2, A)], Validity.LOST),
        ([claim(1, A), record(1, 1, A), record(1, 1, A)], Validity.COPY),
        ([claim(1, A), claim(1, A)], Validity.LATE_CLAIM),
        ([claim(1, A), claim(1, B)], Validity.LATE_CLAIM),
        ([claim(1, A), claim(2, B)], Validity.VALID),
        ([claim(1, A), claim(2, B), claim(1, A)], Validity.LATE_CLAIM),
        ([claim(1, A), claim(2, B), record(1, 1, A)], Validity.OLD_EPOCH),
        ([claim(1, A), record(1, 1, A), claim(2, B), record(2, 1, B)], Validity.VALID),
        ([claim(1, A), record(1, 1, A), claim(2, A), record(2, 2, A)], Validity.LOST),
        ([claim(1, A), claim(3, B)], Validity.LOST),
        ([claim(1, A), record(2, 1, B)], Validity.LOST),
        ([claim(1, A), record(1, 1, B)], Validity.LOST),
        ([claim(1, A), record(1, 1, LogWriter(A.member, 11))], Validity.LOST),
        # A member that lacks records never goes on, also not in the next epoch.
        ([claim(1, A), record(1, 2, A), record(1, 1, A)], Validity.LOST),
        ([claim(1, A), record(1, 2, A), claim(2, B)], Validity.LOST),
    ],
)
def test_the_last_record_of_a_log_is(log: list[Envelope], last: Validity) -> None:
    assert judged(log)[-1] is last


class Member:
    """A process that reads the log at its own pace, and keeps the rule: it writes while it knows of no other primary."""

    def __init__(self, number: int) -> None:
        self.writer = LogWriter(number, number * 100)
        self.order = LogOrder()
        self.read = 0
        self.index = 0
        self.leads = False
        self.sent: list[Envelope] = []
        # Handed over, and not in the log yet.
        self.on_the_way: deque[Envelope] = deque()

    def read_on(self, log: list[Envelope], count: int) -> None:
        for envelope in log[self.read : self.read + count]:
            validity = self.order.judge(envelope)
            assert validity is not Validity.LOST
            if validity is Validity.VALID and envelope.kind is EnvelopeKind.CLAIM:
                self.leads, self.index = envelope.writer == self.writer, 0
        self.read = min(self.read + count, len(log))

    def send(self, envelope: Envelope) -> None:
        self.sent.append(envelope)
        self.on_the_way.append(envelope)

    def write(self) -> None:
        if self.leads:
            self.index += 1
            self.send(record(self.order.epoch, self.index, self.writer))

    def restart(self, left: int) -> None:
        """Some of what was on the way is lost. The rest may still come into the log, whenever it does."""
        self.writer = LogWriter(self.writer.member, self.writer.instance + 1)
        self.leads = False
        while len(self.on_the_way) > left:
            self.on_the_way.pop()


# What a member does next, and how often: mostly it works, and now and then something goes wrong.
ACTS = {"read": 8, "write": 6, "land": 8, "claim": 1, "copy": 1, "restart": 1}


def play(seed: int) -> list[Envelope]:
    """The log that three members write. Records land late, in the order of their writer, and some come again."""
    chance = Random(seed)
    log: list[Envelope] = []
    members = [Member(number) for number in (1, 2, 3)]
    for act in chance.choices([*ACTS], [*ACTS.values()], k=chance.choice([30, 100, 200])):
        member, count = chance.choice(members), chance.randint(1, 8)
        if act == "read":
            member.read_on(log, count)
        elif act == "claim":
            member.send(claim(member.order.epoch + 1, member.writer))
        elif act == "write":
            member.write()
        elif act == "land":
            log += [member.on_the_way.popleft() for _ in range(min(count, len(member.on_the_way)))]
        elif act == "copy":
            # A retry of what was sent before. The first one is in the log already.
            log += [envelope for envelope in member.sent if envelope in log][-count:]
        else:
            member.restart(count)
    return log


LOG = st.integers(0, 1 << 32).map(play)


def valid(log: Sequence[Envelope]) -> list[Envelope]:
    return [envelope for envelope, found in zip(log, judged(log), strict=True) if found is Validity.VALID]


@settings(max_examples=400)
@given(LOG)
def test_the_valid_records_are_one_sequence_without_a_gap(log: list[Envelope]) -> None:
    assert Validity.LOST not in judged(log)
    counted = valid(log)
    claims = [envelope for envelope in counted if envelope.kind is EnvelopeKind.CLAIM]
    assert [envelope.epoch for envelope in claims] == [*range(1, len(claims) + 1)]
    for begun in claims:
        records = [envelope for envelope in counted if envelope.epoch == begun.epoch]
        assert records == [begun, *[record(begun.epoch, index, begun.writer) for index in range(1, len(records))]]
    assert [envelope.epoch for envelope in counted] == sorted(envelope.epoch for envelope in counted)


@given(LOG, st.data())
def test_a_member_that_goes_on_after_a_restart_agrees_with_one_that_read_all(
    log: list[Envelope], more: st.DataObject
) -> None:
    before = LogOrder()
    place = more.draw(st.integers(0, len(log)))
    judged(log[:place], before)
    after = LogOrder(before.epoch, before.index, before.writer)
    assert judged(log[place:], after) == judged(log)[place:]


@given(LOG, st.data())
def test_void_records_never_change_the_valid_ones(log: list[Envelope], more: st.DataObject) -> None:
    counted = valid(log)
    assert valid(counted) == counted
    # Each void record may stand anywhere behind the valid record that makes it void: more of them change nothing.
    place = more.draw(st.integers(0, len(log)))
    again = more.draw(st.lists(st.sampled_from(log[:place]), max_size=5)) if place else []
    assert valid([*log[:place], *again, *log[place:]]) == counted


@settings(max_examples=400)
@given(LOG, st.data())
def test_a_missing_record_is_noticed_before_the_next_one_of_its_epoch_counts(
    log: list[Envelope], more: st.DataObject
) -> None:
    counted = valid(log)
    followed = [one for one, following in pairwise(counted) if one.epoch == following.epoch]
    if not followed:
        return
    missing = more.draw(st.sampled_from(followed))
    # Its copies are missing too: one of them would take its place.
    left = [envelope for envelope in log if envelope != missing]
    following = [envelope for envelope in counted if envelope.epoch == missing.epoch]
    following = following[following.index(missing) + 1 :]
    assert not {*valid(left)} & {*following}
    assert Validity.LOST in judged(left)
