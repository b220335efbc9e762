"""The server of before (eaafbfa) on a directory that today's server wrote, with today's client; and today's server after it.

The processes are real, one after the other on one directory.
`tests/delayserver/upgrade/keep_program.py` kept the old program.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from tests.crash.command_line import CommandLineServer
from tests.delayserver.recover.directories import in_process
from tests.delayserver.upgrade.directories import HERE

PROGRAM = HERE / "eaafbfa-program.tar.xz"
BALANCE = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "rolled_back", "pending")
DAY = timedelta(days=1)
WAIT_S = 60.0


@dataclass(slots=True)
class Known:
    """What clients know: outcomes by receipt, and the bodies that groups have not acked, by subject and group."""

    outcomes: dict[str, str] = field(default_factory=dict)
    waiting: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def put(self, receipt: str | None, outcome: str) -> str:
        assert receipt is not None
        self.outcomes[receipt] = outcome
        return receipt

    def ended(self) -> dict[str, int]:
        """What clients know of the balance. It counts a committed message as cancelled: another one took its place."""
        outcomes = list(self.outcomes.values())
        return {
            "cancelled": outcomes.count("cancelled") + outcomes.count("committed"),
            "rolled_back": outcomes.count("rolled_back"),
        }


@dataclass(slots=True)
class Story:
    """One directory, and the programs that take turns on it."""

    today: CommandLineServer
    before: CommandLineServer
    known: Known = field(default_factory=Known)
    balance: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def life(self, program: CommandLineServer, *, killed: bool) -> Iterator[Client]:
        """One process, from its start to its end. Its start must find what the process before left."""
        assert program.start(), program.said()
        with Client(program.address) as client:
            self._finds(client)
            self.balance = {}
            yield client
            self.balance = self._finds(client)
        if killed:
            program.kill()
        else:
            assert program.stop() == 0, program.said()
        assert "corrupt" not in program.said()

    def _finds(self, client: Client) -> dict[str, int]:
        """The outcomes are those that are known, and the balance is that of the process before; today's then.

        After a kill the server asks its broker what it has, so outcomes come a moment after the start.
        The balance counts an outcome when dispatch_log has it on disk, so a moment after a client knows it."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = client.lookup_many(list(self.known.outcomes))
            outcomes = [row.outcome.label for row in found if not isinstance(row, DelayServerError)]
            status = client.status()
            balance = {name: int(status[name]) for name in BALANCE}
            ended = {name: balance[name] for name in self.known.ended()}
            as_known = outcomes == list(self.known.outcomes.values()) and ended == self.known.ended()
            if as_known or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert outcomes == list(self.known.outcomes.values())
        assert ended == self.known.ended()
        assert balance["accepted"] == sum(balance.values()) - balance["accepted"]
        grown = balance.keys() - {"delivered", "pending"}  # what was due while no server ran
        assert not self.balance or [balance[name] for name in grown] == [self.balance[name] for name in grown]
        return balance


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    root = tmp_path / "program"
    with tarfile.open(PROGRAM) as archive:
        archive.extractall(root, filter="data")
    (root / "ops").mkdir()  # Otherwise the program takes the `ops` of today for that of somebody else.
    made = Story(CommandLineServer(tmp_path, ""), CommandLineServer(tmp_path, "", root=root, options=()))
    yield made
    made.today.clean_up()
    made.before.clean_up()


def do_everything(client: Client, known: Known, name: str) -> None:
    """A little of everything that both programs know. `name` distinguishes the lives."""
    for body in ("acked", "nacked", "leased"):
        known.put(client.send("orders", f"{body} {name}", delay_ms=1, properties={"by": name}).receipt, "delivered")
    far = {"delay": DAY, "tag": "paid", "order_key": "o-7"}
    known.put(client.send("orders", f"far {name}", message_id=f"far {name}", **far).receipt, "pending")  # type: ignore[arg-type]
    cancelled = known.put(client.send("orders", f"cancelled {name}", delay=DAY).receipt, "cancelled")
    client.cancel(cancelled)
    moved = known.put(client.send("orders", f"moved {name}", delay=DAY).receipt, "cancelled")
    known.put(client.reschedule(moved, delay=2 * DAY).new_receipt, "pending")
    client.publish("published", f"published {name}", tag="now", order_key="o-8")
    rolled = known.put(client.prepare("orders", f"rolled back {name}", group="producer").receipt, "rolled_back")
    client.rollback(rolled)
    known.put(client.prepare("orders", f"prepared {name}", group="producer", check_after=DAY).receipt, "prepared")
    committed = known.put(client.prepare("orders", f"visible {name}", group="producer").receipt, "committed")
    known.put(client.commit(committed).new_receipt, "delivered")
    pulled = pull(client, "orders", "billing", 4)
    assert sorted(pulled) == sorted(f"{body} {name}" for body in ("acked", "nacked", "leased", "visible"))
    client.ack("orders", "billing", [pulled[f"{body} {name}"] for body in ("acked", "visible")])
    client.nack("orders", "billing", [pulled[f"nacked {name}"]], delay=timedelta(hours=1))
    known.waiting.setdefault(("orders", "billing"), []).append(f"leased {name}")
    known.waiting.setdefault(("published", "readers"), []).append(f"published {name}")


def pull(client: Client, subject: str, group: str, count: int) -> dict[str, Any]:
    """This many deliveries, by their bodies."""
    found: dict[str, Any] = {}
    while len(found) < count:
        came = client.pull(subject, group, count - len(found), WAIT_S, ack_timeout_s=3600)
        assert came, f"only {list(found)}"
        found |= {delivery.body.decode(): delivery for delivery in came}
    return found


def consume_the_rest(client: Client, known: Known) -> None:
    """What the process before left unacked comes again, and nothing else."""
    for (subject, group), bodies in known.waiting.items():
        found = pull(client, subject, group, len(bodies))
        assert sorted(found) == sorted(bodies)
        client.ack(subject, group, list(found.values()))
        assert client.pull(subject, group, 10) == []
    known.waiting.clear()


def test_the_server_of_before_and_that_of_today_take_turns_on_a_directory(story: Story) -> None:
    with story.life(story.today, killed=False) as client:
        do_everything(client, story.known, "today")
        overdue = client.send("overdue", "due while no server runs", delay_ms=1500).receipt
    with story.life(story.before, killed=True) as client:
        assert list(pull(client, "overdue", "late", 1)) == ["due while no server runs"]
        story.known.put(overdue, "delivered")
        consume_the_rest(client, story.known)
        do_everything(client, story.known, "before")
    with story.life(story.today, killed=True) as client:
        consume_the_rest(client, story.known)
        do_everything(client, story.known, "again")
    with story.life(story.before, killed=False) as client:
        consume_the_rest(client, story.known)
    done = in_process("check", str(story.today.data_dir), "--json")
    assert (done.code, done.last["findings"]) == (0, [])
