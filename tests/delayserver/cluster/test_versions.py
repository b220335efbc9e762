"""A member never passes over what only a newer program can read: it stops by name, and does not claim."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from delayserver import __version__
from store.errors import UpgradeNeededError
from store.records.batches import I64, OutcomeBatch
from store.records.column_batch import ColumnBatch
from store.shared.payload import BarrierNote
from tests.delayserver.cluster.clusters import Cluster
from tests.fakes.host import Boot, Host


@dataclass(frozen=True, slots=True)
class NewerBatch(ColumnBatch, kind=200, version=1):
    """A kind of record that no program has yet."""

    value: I64
    other: I64


@dataclass(frozen=True, slots=True)
class ChangedBatch(ColumnBatch, kind=OutcomeBatch.schema.kind, version=3, fields_before=(0, 0)):
    """The next version of a kind that this program has."""

    value: I64
    other: I64


assert ChangedBatch.schema.version == OutcomeBatch.schema.version + 1


def append(host: Host, record: BarrierNote | ColumnBatch) -> None:
    """As a newer program does that leads in the place of this one."""
    assert host.server.parts.cluster is not None
    proposals = host.server.parts.cluster.proposals
    if isinstance(record, BarrierNote):
        proposals.note(record, lambda _: None, lambda _: None)
    else:
        proposals.propose([record], lambda _: None, lambda _: None)


def upgrade_needed(host: Host) -> UpgradeNeededError:
    error: BaseException | None = host.died_of
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UpgradeNeededError)
    return error


@pytest.mark.parametrize("record", [BarrierNote("99.0.0"), NewerBatch.filled(1), ChangedBatch.filled(1, value=1)])
async def test_a_standby_stops_where_only_a_newer_program_can_go_on(
    boot: Boot, record: BarrierNote | ColumnBatch
) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    await client.put("known", first.now_ms + 60_000)
    await first.sleep_ms(500)
    append(first, record)
    for _ in range(2):
        await second.wait_down()
        assert "upgrade this member" in str(upgrade_needed(second))
        assert second.server.parts.state.balance.accepted == 1
        second.disk.kill()
        second.begin()
    await first.kill()
    await second.wait_down()
    assert second.server.parts.cluster is not None
    assert not second.server.parts.cluster.standing.leads


async def test_a_barrier_lets_the_programs_go_on_that_it_names(boot: Boot) -> None:
    cluster = Cluster(boot, "ab")
    first, second = cluster.hosts["a"], cluster.hosts["b"]
    client = await cluster.start()
    append(first, BarrierNote(__version__))
    await client.put("one", first.now_ms + 60_000)
    await first.sleep_ms(500)
    await first.kill()
    await second.wait_up()
    assert (await second.balanced(pending=1))["accepted"] == 1


@pytest.mark.parametrize(
    ("program", "admitted"),
    [("0.9.1", False), ("0.10.0", True), ("0.10.0.dev3", True), ("0.11", True), ("1.0.0", True)],
)
def test_versions_are_compared_by_their_numbers(program: str, admitted: bool) -> None:
    assert BarrierNote("0.10.0").admits(program) is admitted
