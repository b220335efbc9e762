"""One life of a server with everything in it that an audit must see, as the clients see it.

Cancels, transactions, copies, expiries, nacks, a broker node that is down, dead letters, a far day, kill -9 right after an
ack, and a restart. What is kept here comes from replies and deliveries alone; no file is read.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from delayserver.client import Client, Delivery, Ended, Message, Outcome, SendResult
from tests.ops.audit.server_process import ServerProcess
from tests.ports import free_port

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
WAIT_S = 60.0
CONFIG = """
[dispatch]
backoff_ms_min = 50
backoff_ms_max = 200
# A disk that stalls is no node that is down.
deliver_timeout_ms = 30000

[broker]
segment_bytes = 32768

[[groups]]
name = "near"
[[groups.nodes]]
address = "embedded"

[[groups]]
name = "remote"
[[groups.nodes]]
address = "127.0.0.1:{remote_port}"

[[groups]]
name = "dead"
[[groups.nodes]]
address = "127.0.0.1:{dead_port}"

[[routes]]
pattern = "remote.*"
groups = ["remote"]
[[routes]]
pattern = "dead.*"
groups = ["dead"]
[[routes]]
pattern = "*"
groups = ["near"]
"""


@dataclass
class Seen:
    """What the clients saw. `ends` counts messages by (subject, hour of due time, outcome); `accepted` the same."""

    accepted: Counter[tuple[str, int]] = field(default_factory=Counter)
    ends: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    deliveries: list[Delivery] = field(default_factory=list)
    redeliveries: list[Delivery] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    timers: int = 0
    """Timers of transactions, which are due after the story."""
    acked: int = 0
    unacked: int = 0
    down_s: tuple[float, float] = (0.0, 0.0)
    second_life_ms: int = 0
    """Due at or after this means delivered by the second process."""
    status: dict[str, Any] = field(default_factory=dict)
    server_id: str = ""
    directories: tuple[str, str] = ("", "")

    def lateness_us(self, deliveries: list[Delivery]) -> list[int]:
        return sorted([d.dispatched_us - max(d.due_ms * 1000, d.accepted_us) for d in deliveries])

    def total(self, outcome: str) -> int:
        return sum([count for (_, _, end), count in self.ends.items() if end == outcome])

    def pending(self) -> int:
        return self.accepted.total() - self.ends.total()


def hour(due_ms: int) -> int:
    return due_ms - due_ms % HOUR_MS


class Story:
    """Runs the two processes and returns what happened."""

    def __init__(self, folder: Path) -> None:
        self.seen = Seen()
        remote_port = free_port()
        config = folder / "server.toml"
        config.write_text(CONFIG.format(remote_port=remote_port, dead_port=free_port()))
        self.server = ServerProcess("serve", folder / "server", free_port(), config)
        self.node = ServerProcess("broker", folder / "node", remote_port)
        self.seen.directories = (str(self.server.directory), str(self.node.directory))

    def run(self) -> Seen:
        try:
            self.node.start()
            self.server.start()
            self._first_life()
            self._crash()
            self.server.start("dispatch.dead_letter_attempts=3")
            self._second_life()
        finally:
            self.server.stop()
            self.node.stop()
        return self.seen

    # -- told in order

    def _first_life(self) -> None:
        with self.server.client() as client:
            self.seen.server_id = client.connect().server_id
            now_ms = client.ping() // 1000
            self._send(client, "orders", 400, now_ms + 500, 4, ids="o")
            copies = self._send(client, "orders", 25, now_ms + 500, 4, ids="o")
            self._end("orders", copies, "deduplicated")
            late = self._send(client, "short", 20, now_ms + 800, 0, ids="s", expires=True)
            self._end("short", late, "expired")
            self._cancel(client, "far", self._send(client, "far", 100, now_ms + DAY_MS, 500, ids="f")[:30])
            coarse = self._send(client, "far", 60, now_ms + 60 * DAY_MS, 80, ids="c")
            self._cancel(client, "far", coarse[10:25])
            self._cancel(client, "orders", self._send(client, "orders", 40, now_ms + 30_000, 1, ids="x"))
            self._deal(client, "deals", now_ms + 900)
            self.node.kill()
            down_s = time.time()
            remote = self._send(client, "remote.a", 150, now_ms + 1000, 3, ids="r")
            self._pull(client, "orders", 400, nack=7)
            time.sleep(1.5)  # the outage has to last for a while to be one
            # Taken before it starts: what waits for it is handed over while its first line is still on its way to us.
            self.seen.down_s = (down_s, time.time())
            self.node.start()
            with self.node.client() as node:
                self._pull(node, "remote.a", 150)
            self._settled(client)
            self._look_up([receipt for receipt, _ in remote], client)

    def _crash(self) -> None:
        """kill -9 as soon as messages are accepted: they lie in the message_log, and maybe nowhere else."""
        with self.server.client() as client:
            due_ms = client.ping() // 1000 + 3000  # a process that stalls on its way to the kill delivers none of them
            self._send(client, "crash", 120, due_ms, 1, ids="k")
            self.server.kill()
        self.seen.second_life_ms = due_ms

    def _second_life(self) -> None:
        with self.server.client() as client:
            now_ms = client.ping() // 1000
            self.seen.second_life_ms = min(now_ms, self.seen.second_life_ms)
            self._pull(client, "crash", 120)
            self._send(client, "orders", 300, now_ms + 300, 2, ids="p")
            dead = self._send(client, "dead.b", 12, now_ms + 300, 0, ids="d")
            self._end("dead.b", dead, "dead_lettered")
            self._send(client, "quiet", 15, now_ms + 300, 0, ids="q")  # delivered, and no consumer pulls it
            self._pull(client, "orders", 300)
            self._pull(client, "quiet", 15, ack=False)
            self._settled(client)
            self.seen.status = client.status()

    # -- what clients do

    def _send(
        self, client: Client, subject: str, count: int, first_ms: int, step_ms: int, *, ids: str, expires: bool = False
    ) -> list[tuple[str, int]]:
        """Send messages due `step_ms` apart, and note what was accepted: (receipt, due_ms) of each."""
        due_ms = [first_ms + index * step_ms for index in range(count)]
        sent = client.send_columns(
            subject,
            due_ms,
            [f"{ids}{index}".encode() for index in range(count)],
            message_ids=[f"{ids}-{index}" for index in range(count)],
            expires_ms=[due - 1 for due in due_ms] if expires else None,
        )
        assert sent.accepted == count
        self.seen.accepted.update([(subject, hour(due)) for due in due_ms])
        return list(zip(sent.receipts(), due_ms, strict=True))

    def _end(self, subject: str, messages: list[tuple[str, int]], outcome: str) -> None:
        self.seen.ends.update([(subject, hour(due), outcome) for _, due in messages])

    def _cancel(self, client: Client, subject: str, messages: list[tuple[str, int]]) -> None:
        results = client.cancel_many([receipt for receipt, _ in messages])
        assert all(getattr(result, "outcome", None) == Outcome.CANCELLED for result in results)
        self._end(subject, messages, "cancelled")

    def _deal(self, client: Client, subject: str, first_ms: int) -> None:
        """Transactions: 15 are committed and pulled, 12 are rolled back, 8 stay prepared."""
        due_ms = [first_ms + index for index in range(35)]
        messages = [Message(subject, b"t%d" % due, due_ms=due, message_id=f"t-{due}") for due in due_ms]
        prepared = client.prepare_many(messages, group="dealer", check_after=timedelta(hours=1))
        receipts = [row.receipt for row in prepared if isinstance(row, SendResult)]
        assert len(receipts) == len(due_ms)
        self.seen.timers += len(receipts)
        self.seen.accepted.update([(subject, hour(due)) for due in due_ms])
        named = list(zip(receipts, due_ms, strict=True))
        committed = [row for row in client.commit_many(receipts[:15]) if isinstance(row, Ended)]
        visible = [(row.new_receipt or "", row.due_ms or 0) for row in committed]
        assert len(visible) == 15
        self.seen.accepted.update([(subject, hour(due)) for _, due in visible])
        self._end(subject, named[:15], "cancelled")
        assert all(isinstance(row, Ended) for row in client.rollback_many(receipts[15:27]))
        self._end(subject, named[15:27], "rolled_back")
        self._pull(client, subject, 15)

    def _pull(self, client: Client, subject: str, count: int, *, nack: int = 0, ack: bool = True) -> None:
        """Pull until `count` messages came; the first `nack` of them are handed back once."""
        first: dict[str, Delivery] = {}
        again: list[Delivery] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(first) < count or len(again) < nack:
            assert time.monotonic() < deadline_s, f"{subject}: {len(first)} of {count}, {len(again)} of {nack} again"
            for delivery in client.pull(subject, "audit", 1000, 1.0):
                if delivery.message_id in first:
                    again.append(delivery)
                    self._ack(client, subject, delivery)
                    continue
                first[delivery.message_id] = delivery
                if len(first) <= nack:
                    client.nack(subject, "audit", [delivery], timedelta(milliseconds=200))
                elif ack:
                    self._ack(client, subject, delivery)
        if not ack:
            self.seen.unacked += count
        self.seen.deliveries += first.values()
        self.seen.redeliveries += again
        self.seen.ends.update([(subject, hour(delivery.due_ms), "delivered") for delivery in first.values()])

    def _look_up(self, receipts: list[str], client: Client) -> None:
        self.seen.attempts.update([getattr(found, "attempts", 0) for found in client.lookup_many(receipts)])

    def _ack(self, client: Client, subject: str, delivery: Delivery) -> None:
        self.seen.acked += client.ack(subject, "audit", [delivery]).acked

    def _settled(self, client: Client) -> None:
        """Wait until the server has recorded what the clients know."""
        deadline_s = time.monotonic() + WAIT_S
        known = self.seen.pending()
        while client.status()["pending"] != known:
            assert time.monotonic() < deadline_s, f"pending: {client.status()['pending']}, not {known}"
            time.sleep(0.05)
