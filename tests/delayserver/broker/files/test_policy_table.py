"""The table of policies: durable, and named where it is damaged, while the defaults serve."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgpack
import pytest

from delayserver.broker.files.policies_file import (
    DAMAGED_FILE,
    POLICIES_FILE,
    PolicyRow,
    decode_policies,
    encode_policies,
)
from delayserver.broker.policy import DEFAULT_POLICY, ConsumerPolicy
from delayserver.broker.service.broker import Broker
from ops.fuzz.records import crc_bytes
from store.errors import DiskFullError
from tests.delayserver.broker.brokers import GROUP, SERVER, SUBJECT, open_broker
from tests.fakes.disk import FakeDisk

PATH = f"/data/broker/{POLICIES_FILE}"
POLICY = ConsumerPolicy(attempts=3, first_ms=100)


def set_policy(broker: Broker, policy: ConsumerPolicy = POLICY, group: int = GROUP, dead_subject: int = 5) -> None:
    plan = broker.state.policies.write((SUBJECT, group), policy, dead_subject)
    plan.run()
    broker.state.policies.apply(plan)


def test_a_policy_is_there_after_a_crash(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    set_policy(broker)
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert broker.state.policies.of((SUBJECT, GROUP)) == POLICY
    assert broker.state.policies.dead_subject((SUBJECT, GROUP)) == 5
    assert broker.state.policies.owner_of_dead(5) == (SUBJECT, GROUP)
    assert broker.state.damages.texts == []
    assert broker.state.policies.of((SUBJECT, GROUP + 1)) == DEFAULT_POLICY


def test_a_row_without_content_leaves_the_table(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    set_policy(broker, dead_subject=0)
    set_policy(broker, DEFAULT_POLICY, dead_subject=0)
    assert decode_policies(disk.content(PATH), SERVER) == {}


def _put(disk: FakeDisk, data: bytes) -> None:
    file = disk.open(PATH)
    file.truncate(0)
    file.pwrite(0, [data])
    file.datasync()
    file.close()


def _version(data: bytes, **changes: object) -> bytes:
    body: bytes = msgpack.packb(msgpack.unpackb(data[12:]) | changes)
    return data[:8] + crc_bytes(body) + body


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "checksum": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "checksum of": lambda data: data[:10],
    "checksum of the table": lambda data: b"",
    "format version 2": lambda data: _version(data, version=2),
    "another server": lambda data: _version(data, server_id=SERVER + 1),
    "no field 'atempts'": lambda data: _version(data, groups=[(1, 2, 0, {"atempts": 3})]),
    "where a code belongs": lambda data: _version(data, groups=[(-1, 2, 0, {})]),
    "where a policy belongs": lambda data: _version(data, groups=[(1, 2, 0, [])]),
    "makes no sense": lambda data: _version(data, groups=[(1, 2)]),
}


@pytest.mark.parametrize("named", DAMAGED)
def test_a_damaged_table_is_named_and_the_defaults_serve(named: str, disk: FakeDisk) -> None:
    set_policy(open_broker(disk))
    disk.kill()
    _put(disk, DAMAGED[named](disk.content(PATH)))
    damaged = disk.content(PATH)
    broker = open_broker(disk)
    (text,) = broker.state.damages.texts
    assert PATH in text and named in text and "defaults" in text
    assert broker.state.policies.of((SUBJECT, GROUP)) == DEFAULT_POLICY
    assert disk.content(PATH) == damaged, "nothing is written before a policy is set"
    set_policy(broker, group=GROUP + 1)
    assert disk.content(f"/data/broker/{DAMAGED_FILE}") == damaged
    disk.kill()
    broker = open_broker(disk)
    assert broker.state.damages.texts == [] and broker.state.policies.of((SUBJECT, GROUP + 1)) == POLICY


def test_on_a_full_disk_the_table_stays_as_it_was(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    set_policy(broker)
    disk.capacity_bytes = disk.used_bytes
    plan = broker.state.policies.write((SUBJECT, GROUP), ConsumerPolicy(attempts=9), 5)
    with pytest.raises(DiskFullError):
        plan.run()
    assert broker.state.policies.of((SUBJECT, GROUP)) == POLICY
    assert decode_policies(disk.content(PATH), SERVER) == {(SUBJECT, GROUP): PolicyRow(POLICY, 5)}


def test_a_table_of_policies_is_read_as_it_was_written() -> None:
    rows = {(1, 2): PolicyRow(POLICY, 9), (1, 3): PolicyRow(ConsumerPolicy(first_level=4))}
    assert decode_policies(encode_policies(rows, SERVER), SERVER) == rows
