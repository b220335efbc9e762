"""A member's message_log beside the shared log: equal, or different at a place that is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delayserver.recover.checking import against_log
from delayserver.recover.checking.against_log import AgainstLog, LogCompared
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import CONTRADICTORY, MISSING, ORPHANED, Findings
from delayserver.runtime.shared_log import LogDescription
from store.shared.envelope import EnvelopeKind, unwrap, wrap
from tests.delayserver.cluster.clusters import Cluster
from tests.delayserver.follow.members import IDENTITY, ListLog, Records
from tests.fakes.host import DATA_DIR, Boot, Host


class WholeLog(ListLog):
    """A log that says where it begins and ends."""

    def __init__(self, records: Records, first: int = 0) -> None:
        super().__init__(records)
        self._all = records
        self._first = first

    async def describe(self) -> LogDescription:
        return LogDescription(3, 2, 1 << 20, self._first, len(self._all.data), 3)


async def filled(boot: Boot) -> tuple[Cluster, Host, int]:
    """A shard with some messages, a member that is down, and the position up to which it has followed."""
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await first.start_connected()
    second.begin()
    for number in range(6):
        receipt = (await client.put(f"{number}", first.now_ms + 500, subject=f"s{number}"))["receipt"]
        await client.cancel(receipt)
        await first.sleep_ms(400)
    await first.sleep_ms(1_000)
    assert second.server.parts.cluster is not None
    stop = second.server.parts.cluster.follower.place.position
    await first.kill()
    await second.kill()
    return cluster, second, stop


async def compared(host: Host, stop: int, log: ListLog) -> tuple[LogCompared, Findings]:
    findings = Findings()
    taken = capture(host.disk, DATA_DIR, findings)
    try:
        return await AgainstLog(taken, IDENTITY, findings).run(log, stop), findings
    finally:
        taken.close()


def position_of_records(cluster: Cluster, number: int) -> int:
    """Where the log has records for the n-th time."""
    kinds = [unwrap(data, IDENTITY, place).envelope.kind for place, data in enumerate(cluster.engine.records.data)]
    return [place for place, kind in enumerate(kinds) if kind is EnvelopeKind.RECORDS][number]


async def test_a_member_has_what_the_log_has(boot: Boot) -> None:
    cluster, member, stop = await filled(boot)
    found, findings = await compared(member, stop, WholeLog(cluster.engine.records))
    assert findings.clean
    assert (found.start, found.stop) == (0, stop)
    assert found.records >= 18, "names, messages, cancels"


async def test_a_log_that_was_trimmed_is_compared_from_a_place_that_both_have(boot: Boot) -> None:
    cluster, member, stop = await filled(boot)
    first = position_of_records(cluster, 4)
    found, findings = await compared(member, stop, WholeLog(cluster.engine.records, first))
    assert findings.clean
    assert first <= found.start < stop
    assert found.records >= 8


async def test_a_log_that_was_trimmed_behind_the_member_has_nothing_in_common(boot: Boot) -> None:
    cluster, member, stop = await filled(boot)
    found, findings = await compared(member, stop, WholeLog(cluster.engine.records, stop + 1))
    assert findings.clean
    assert (found.start, found.stop, found.records) == (stop, stop, 0)


def another_record(records: list[bytes], place: int) -> None:
    """The same envelope with the records of an earlier one."""
    earlier = [data for data in records[:place] if unwrap(data, IDENTITY, 0).envelope.kind is EnvelopeKind.RECORDS]
    envelope = unwrap(records[place], IDENTITY, place).envelope
    records[place] = wrap(envelope, [unwrap(earlier[-1], IDENTITY, 0).payload])


def another_index(records: list[bytes], place: int) -> None:
    """A record is lost."""
    del records[place]


def of_nobody(records: list[bytes], place: int) -> None:
    """The record counts for nobody: its bytes are damaged."""
    records[place] = b"x" + records[place][1:]


def more_records(records: list[bytes], place: int) -> None:
    """One record more."""
    found = unwrap(records[place], IDENTITY, place)
    records[place] = wrap(found.envelope, [found.payload, found.payload])


def without_records(records: list[bytes], place: int) -> None:
    """A beat stands in its place."""
    beat = next(data for data in records if unwrap(data, IDENTITY, 0).envelope.kind is EnvelopeKind.BEAT)
    found = unwrap(records[place], IDENTITY, place).envelope
    payload = unwrap(beat, IDENTITY, 0).payload
    records[place] = wrap(
        type(found)(EnvelopeKind.BEAT, IDENTITY, found.epoch, found.index, found.writer, 0), [payload]
    )


@pytest.mark.parametrize(
    ("change", "number", "kind", "detail"),
    [
        (another_record, 5, CONTRADICTORY, "another record than at position"),
        (another_index, 5, MISSING, "the shared log has lost records before position"),
        (of_nobody, 5, MISSING, "the shared log has lost records before position"),
        (more_records, 5, MISSING, "is not in message_log"),
        (without_records, 5, CONTRADICTORY, "another record than at position"),
        (without_records, -1, ORPHANED, "a record that the shared log does not have"),
    ],
)
async def test_a_difference_is_named(
    boot: Boot, change: Callable[[list[bytes], int], None], number: int, kind: str, detail: str
) -> None:
    cluster, member, stop = await filled(boot)
    change(cluster.engine.records.data, position_of_records(cluster, number))
    found, findings = await compared(member, stop, WholeLog(cluster.engine.records))
    finding = next(each for each in findings.listed if detail in each.detail)
    assert finding.kind == kind
    assert finding.file.startswith(f"{DATA_DIR}/message_log/")
    assert found.stop <= stop


async def test_each_difference_is_a_finding_and_what_stands_between_is_compared(boot: Boot) -> None:
    cluster, member, stop = await filled(boot)
    places = [position_of_records(cluster, number) for number in (3, 7)]
    for place in reversed(places):
        another_record(cluster.engine.records.data, place)
    found, findings = await compared(member, stop, WholeLog(cluster.engine.records))
    assert [finding.kind for finding in findings.listed] == [CONTRADICTORY] * 2
    assert [f"position {place} " in finding.detail for finding, place in zip(findings.listed, places, strict=True)] == [
        True
    ] * 2
    assert found.stop == stop and found.records >= 12


async def test_differences_are_listed_up_to_a_bound(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against_log, "DIFFERENCES_MAX", 3)
    cluster, member, stop = await filled(boot)
    another_index(cluster.engine.records.data, position_of_records(cluster, 0))
    _, findings = await compared(member, stop - 1, WholeLog(cluster.engine.records))
    assert len(findings.listed) == 3


async def test_a_log_that_ends_before_the_member_is_named(boot: Boot) -> None:
    cluster, member, stop = await filled(boot)
    del cluster.engine.records.data[stop - 3 :]
    _, findings = await compared(member, stop, WholeLog(cluster.engine.records))
    assert findings.listed[0].kind == MISSING
    assert f"the shared log ends at {stop - 3}" in findings.listed[0].detail


async def test_what_a_running_member_has_written_since_is_no_difference(boot: Boot) -> None:
    cluster, member, _ = await filled(boot)
    before = position_of_records(cluster, 6)
    found, findings = await compared(member, before, WholeLog(cluster.engine.records))
    assert findings.clean
    assert found.stop == before
