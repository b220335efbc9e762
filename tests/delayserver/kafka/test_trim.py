"""A partition of Kafka loses what two checked backups and all members have, and no more."""

from __future__ import annotations

import pytest

from delayserver.backup.coverage import Coverage, find_coverage
from delayserver.runtime.shared_log import LogTrimmed, SharedLog
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.backup.test_coverage import SERVER, with_backups
from tests.delayserver.kafka.following import following, new_engine
from tests.delayserver.kafka.test_kafka_log import asked, numbers

pytestmark = pytest.mark.kafka


async def covered(log: SharedLog, positions: dict[str, int | None]) -> Coverage:
    end = await asked(log)
    return find_coverage(with_backups(positions), SERVER, 0, end, {"a": end, "b": 15})


async def test_a_partition_is_trimmed_to_what_backups_and_members_have(one_node: KafkaNodes) -> None:
    engine = await new_engine(one_node)
    log = engine.open(0)
    async with following(log) as member:
        for record in numbers(30):
            log.append(record)
        await member.reached(30)
        assert (await covered(log, {"1": 20, "2": None})).trims_to == 0
        coverage = await covered(log, {"1": 20, "2": 25})
        assert (coverage.covered, coverage.trims_to) == (20, 15)
        await log.trim(coverage.trims_to)
        described = await log.describe()
        assert (described.first, described.end) == (15, 30)
        log.append(b"more")
        await member.reached(31)
    async with following(engine.open(0), 20) as new:
        await new.reached(11)
        assert new.data == [*numbers(30)[20:], b"more"]
    async with following(engine.open(0)) as late:
        await late.ended.wait()
    assert isinstance(late.error, LogTrimmed) and late.error.stop == 15
    assert "a backup that has position 15 or a later one" in str(late.error)
