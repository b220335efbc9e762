"""What the harness makes of errors that a server answers, and of a drain that does not end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    InternalError,
    InvalidArgument,
    MalformedFrame,
    MessageDamaged,
    NotReady,
    QueueFull,
    ShuttingDown,
    StorageFailed,
    TooOld,
    UnknownError,
)
from ops.torture.consuming import GROUP, Consumer
from ops.torture.harness import CONFIG, Load, Plan
from ops.torture.producing import SUBJECT, Producer
from ops.torture.record import Record
from ops.torture.server import TorturedServer
from ops.torture.verdict import drain
from tests.delayserver.client.listening.listeners import until

NOW_US = 1_800_000_000_000_000


@pytest.fixture
def record() -> Record:
    return Record(lambda: NOW_US)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TorturedServer]:
    config = tmp_path / "delayserver.toml"
    config.write_text(CONFIG)
    made = TorturedServer(str(tmp_path), str(config), str(tmp_path / "data"))
    try:
        made.start()
        yield made
        made.kill()
    finally:
        made.clean_up()


@pytest.mark.parametrize("error", [InternalError, MessageDamaged, MalformedFrame, UnknownError, InvalidArgument])
def test_an_error_that_speaks_of_a_fault_is_a_violation_even_of_a_server_that_stops(
    record: Record, error: type[DelayServerError]
) -> None:
    record.stopping()
    record.failed(error("at all"))
    assert len(record.violations) == 1


def test_after_a_loss_of_power_the_disk_may_hide_messages_until_the_next_start(record: Record) -> None:
    record.power_fails()
    record.failed(MessageDamaged("its disk is gone"))
    assert record.violations == []
    record.crashed()
    record.stopping()
    record.failed(MessageDamaged("behind the power cut"))
    assert len(record.violations) == 1


@pytest.mark.parametrize("error", [QueueFull, NotReady, ConnectionLost, TooOld])
def test_errors_of_a_full_a_starting_and_a_gone_server_are_no_violation(
    record: Record, error: type[DelayServerError]
) -> None:
    record.failed(error("for now"))
    assert record.violations == []


@pytest.mark.parametrize("error", [ShuttingDown, StorageFailed])
def test_only_a_stopping_server_may_say_that_it_stops(record: Record, error: type[DelayServerError]) -> None:
    record.stopping()
    record.failed(error("it stops"))
    assert record.violations == []
    record.crashed()  # the next process got no signal
    record.failed(error("it stops"))
    assert len(record.violations) == 1


def test_the_load_reports_the_errors_of_its_requests(record: Record) -> None:
    load = Load(Plan(1, 1, ""), record, "127.0.0.1:1", 1)
    errors = iter([InternalError("a bug"), QueueFull("later"), ConnectionLost("killed")])

    def step() -> None:
        raise next(errors)

    load._loop(Client("127.0.0.1:1"), step)
    assert ["internal_error" in text for text in record.violations] == [True]


def test_the_load_reports_a_refused_item(server: TorturedServer) -> None:
    record = Record(lambda: NOW_US)
    producer = Producer(record, server.address, random.Random(1))
    producer.submit([record.new("", NOW_US // 1000)])
    producer.client.close()
    assert ["subject_invalid" in text for text in record.violations] == [True]


def test_a_drain_that_leaves_a_backlog_is_a_violation(server: TorturedServer) -> None:
    record = Record(lambda: NOW_US)
    with Client(server.address) as another:
        another.send(SUBJECT, b"1", delay_ms=0)
        assert len(another.pull(SUBJECT, GROUP, 1, 20.0)) == 1  # leased by another, so it does not come
        # The balance counts an outcome when it is durable, so a moment after a consumer has the message.
        until(lambda: not another.status()["pending"])
        consumer = Consumer(record, server.address, random.Random(1))
        drain(record, consumer, 2)
        consumer.client.close()
    assert record.violations == ["nothing more came, with 0 pending and a lag of 1"]


def test_a_load_that_finishes_leaves_nothing_leased_and_the_drain_ends(server: TorturedServer) -> None:
    record = Record(lambda: time.time_ns() // 1000)
    load = Load(Plan(1, 1, "", consumers=8), record, server.address, 7)  # one of them holds some, most likely
    load.start()
    while record.arrived_total < 300 and not record.violations:
        time.sleep(0.02)
    load.finish()
    consumer = Consumer(record, server.address, random.Random(1))
    drain(record, consumer, 200)
    consumer.client.close()
    assert record.violations == load.problems == []
