"""Writes a small data directory with the program of some commit, and records how that program answers its client.

The tests beside this file open what it wrote: `<commit>-stopped.zip` and `<commit>-killed.zip`. To write both again:

    git worktree add /tmp/past eaafbfa
    PYTHONPATH=/tmp/past python tests/delayserver/upgrade/write_directory.py eaafbfa tests/delayserver/upgrade

So this file uses only what the fakes of every such commit have, and asks a program only for what it knows. Time, disk and
chance are simulated: nothing depends on the day. An archive holds `data/...` as the program left it, and `story.json`:

- `clock_us`: wall time at the end; `balance`: the counts of `status` then; `receipts`, `outcomes`, `bodies` by name;
- `exchanges`: the program of that commit started again, and its client asked it these frames, in this order.
"""

from __future__ import annotations

import base64
import json
import sys
import zipfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import trio
import trio.testing

from tests.fakes.host import Client, Host, fake_group, small_settings

DATA = "/data"
BALANCE = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "pending")
ENDS = ("stopped", "killed")
# These programs know no tags, order keys, publishes, transactions, filters, policies and dead letters of groups.
WITHOUT_TAGS = ("d4a2130", "c143d54")
MINUTE_MS = 60_000
DAY_MS = 86_400_000
# The same for all archives, so that the same bytes give the same archive.
ARCHIVED_AT = (2026, 3, 1, 12, 0, 0)


def settings() -> Any:
    """Small files, the embedded broker for all subjects, and a group that refuses: what begins with `dead` is given up."""
    small = small_settings(
        storage={"message_log_segment_bytes": 1 << 18},
        broker={"segment_bytes": 1 << 17},
        dispatch={"dead_letter_attempts": 2},
    )
    (everything,) = small.routes
    routes = (replace(everything, pattern="dead*", groups=("fake",)), everything)
    return replace(small, groups=(*small.groups, fake_group("fake")), routes=routes)


class Story:
    """What was asked, and what became of it."""

    def __init__(self) -> None:
        self.receipts: dict[str, str] = {}
        self.outcomes: dict[str, str] = {}
        self.bodies: dict[str, str] = {}

    async def put(
        self, client: Client, name: str, due_ms: int, outcome: str, subject: str = "orders", **rest: Any
    ) -> str:
        """Send a message whose body is its name; `outcome` is what the last lookup must say of it."""
        result = await client.put(name, due_ms, subject, **rest)
        receipt: str = result["receipt"]
        self.receipts[name], self.outcomes[name], self.bodies[name] = receipt, outcome, name
        return receipt


PICKY = {"subject": "tagged", "group": "picky"}


def column(values: list[int]) -> bytes:
    """A column of i64."""
    return np.array(values, dtype="<i8").tobytes()


def deliveries(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The arguments that name hand-overs."""
    return {"count": len(messages), "deliveries": column([message["delivery"] for message in messages])}


async def first_life(host: Host, story: Story, *, tags: bool) -> None:
    """At noon: everything that can happen to a message but to expire. `tags`: the program knows what came with tags."""
    client, noon_ms = await host.client(), host.now_ms
    put = story.put
    for name in ("acked", "nacked", "leased"):
        await put(client, name, noon_ms + 500, "delivered", properties={"name": name}, message_id=f"id-{name}")
    await client.send(
        *[
            {"subject": "backlog", "body": f"backlog {row}", "due_ms": noon_ms + 500, "message_id": f"b{row}"}
            for row in range(40)
        ]
    )
    await put(client, "first of two", noon_ms + 600, "delivered", message_id="twice")
    await put(client, "second of two", noon_ms + 600, "deduplicated", message_id="twice")
    await put(client, "dead", noon_ms + 700, "dead_lettered", "dead letters")
    await put(client, "expired", noon_ms + 700, "expired", expires_ms=noon_ms + 600)
    # Due while no server runs.
    await put(client, "overdue", noon_ms + 4 * MINUTE_MS, "delivered")
    await put(client, "expired while down", noon_ms + 4 * MINUTE_MS, "expired", expires_ms=noon_ms + 5 * MINUTE_MS)
    # In minutes.
    await put(client, "soon", noon_ms + 15 * MINUTE_MS, "pending", properties={"name": "soon"}, message_id="id-soon")
    await put(client, "soon expires", noon_ms + 15 * MINUTE_MS, "pending", expires_ms=noon_ms + DAY_MS)
    await client.cancel(await put(client, "cancelled", noon_ms + 15 * MINUTE_MS, "cancelled"))
    moved = await put(client, "moved", noon_ms + 15 * MINUTE_MS, "cancelled", message_id="id-moved")
    away = await put(client, "moved away", noon_ms + 16 * MINUTE_MS, "cancelled")
    # In the file of a day.
    await put(client, "far", noon_ms + 3 * DAY_MS, "pending", message_id="id-far")
    await put(client, "far too", noon_ms + 3 * DAY_MS + 5, "pending", "a subject of its own")
    await client.cancel(await put(client, "far cancelled", noon_ms + 3 * DAY_MS, "cancelled"))
    items = [{"receipt": moved, "due_ms": noon_ms + 17 * MINUTE_MS, "body": b"moved on"}]
    items.append({"receipt": away, "due_ms": noon_ms + 3 * DAY_MS})
    new = (await client.request("reschedule", {"items": items}))["results"]
    for name, body, row in (("moved on", "moved on", new[0]), ("moved to a day", "moved away", new[1])):
        story.receipts[name], story.outcomes[name], story.bodies[name] = row["new_receipt"], "pending", body
    if tags:
        await tag(client, story, noon_ms)
    await host.sleep_ms(3_000)
    await consume(client)
    if tags:
        await give_up(client)
    await host.sleep_ms(2_000)


async def tag(client: Client, story: Story, noon_ms: int) -> None:
    """Tags, order keys, a filter, a publish, and transactions with all their ends."""
    await client.request("policy", PICKY | {"set": {"tags": "paid", "attempts": 1, "first_ms": 60_000}})
    paid = {"tag": "paid", "order_key": "o-7", "message_id": "id-paid"}
    await story.put(client, "paid", noon_ms + 500, "delivered", "tagged", **paid)
    await story.put(client, "unpaid", noon_ms + 500, "delivered", "tagged", tag="new")
    await story.put(client, "paid later", noon_ms + 15 * MINUTE_MS, "pending", "tagged", tag="paid", order_key="o-7")
    row = {"subject": "published", "body": "published", "tag": "now", "order_key": "o-8", "message_id": "id-published"}
    await client.request("publish", {"messages": [row]})
    terms = {"group": "producer", "check_after_ms": DAY_MS, "checks_max": 0, "policy": "rollback"}
    names = ("committed", "rolled back", "prepared")
    messages = [
        {"subject": "tagged", "body": name, "due_ms": noon_ms + 16 * MINUTE_MS, "tag": "paid"} for name in names
    ]
    rows = (await client.request("prepare", terms | {"messages": messages}))["results"]
    for name, outcome, row in zip(names, ("committed", "rolled_back", "prepared"), rows, strict=True):
        story.receipts[name], story.outcomes[name], story.bodies[name] = row["receipt"], outcome, name
    (visible,) = (await client.request("commit", {"receipts": [story.receipts["committed"]]}))["results"]
    story.receipts["visible"], story.outcomes["visible"] = visible["new_receipt"], "pending"
    story.bodies["visible"] = "committed"
    await client.request("rollback", {"receipts": [story.receipts["rolled back"]]})


async def give_up(client: Client) -> None:
    """The group with a filter sees what its filter lets through, and gives it up."""
    (message,) = await client.pull("tagged", "picky")
    assert message["body"] == b"paid", message
    await client.request("nack", PICKY | {"reason": "not ours"} | deliveries([message]))


async def consume(client: Client) -> None:
    """Two consumer groups: one had all, of the other half is still to come."""
    pulled = {message["body"].decode(): message for message in await client.pull("orders", "billing")}
    assert {"acked", "nacked", "leased", "first of two"} == set(pulled), pulled
    done = [pulled["acked"], pulled["first of two"]]
    await client.request("ack", {"subject": "orders", "group": "billing", **deliveries(done)})
    nack = {"subject": "orders", "group": "billing", "delay_ms": 18 * MINUTE_MS, **deliveries([pulled["nacked"]])}
    await client.request("nack", nack)
    backlog = await client.pull("backlog", "slow", max_messages=20, ack_timeout_ms=DAY_MS)
    assert len(backlog) == 20, backlog
    await client.request("ack", {"subject": "backlog", "group": "slow", **deliveries([*backlog[:10], *backlog[15:17]])})


async def second_life(host: Host, story: Story) -> None:
    """Eight minutes later: what was due meanwhile goes out or expires, and consumers go on."""
    client = await host.client()
    await host.sleep_ms(3_000)
    await client.pull("backlog", "slow", max_messages=5, ack_timeout_ms=DAY_MS)
    await client.cancel(await story.put(client, "cancelled at last", host.now_ms + DAY_MS // 4, "cancelled"))
    await story.put(client, "late evening", host.now_ms + DAY_MS // 4, "pending")
    await host.sleep_ms(2_000)
    found = dict(zip(story.receipts, await client.lookup(*story.receipts.values()), strict=True))
    if found["expired while down"] == "delivered":
        # After a kill a server hands over what was due before its start, expired or not: its node may have it already.
        story.outcomes["expired while down"] = "delivered"
    assert found == story.outcomes, {name: found[name] for name in found if found[name] != story.outcomes[name]}


async def last_moment(host: Host, story: Story) -> dict[str, int]:
    """A message that is acknowledged right before the end; the balance then."""
    await host.settled()
    client = await host.client()
    status = await client.status()
    balance = {name: int(status[name]) for name in BALANCE}
    await story.put(client, "at the last moment", host.now_ms + 20 * MINUTE_MS, "pending")
    balance["accepted"] += 1
    balance["pending"] += 1
    return balance


class Recorder:
    """A client whose frames are kept. One request at a time."""

    def __init__(self, host: Host, client: Client) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._host = host
        self._begun_ms = host.now_ms
        self._client = client
        self._asked = self._answered = b""
        send, receive = client.transport.send_now, client.transport.receive

        def send_now(data: Any) -> int:
            taken: int = send(data)
            self._asked += bytes(data[:taken])
            return taken

        async def received() -> bytes:
            data: bytes = await receive()
            self._answered += data
            return data

        client.transport.send_now = send_now  # type: ignore[method-assign]
        client.transport.receive = received  # type: ignore[method-assign]

    async def request(self, operation: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result, with the frames kept."""
        self._asked = self._answered = b""
        at_ms = self._host.now_ms - self._begun_ms
        result: dict[str, Any] = await self._client.request(operation, arguments)
        frames = {"request": self._asked, "reply": self._answered}
        texts = {name: base64.b64encode(data).decode() for name, data in frames.items()}
        self.exchanges.append({"operation": operation, "at_ms": at_ms, **texts})
        return result


async def converse(host: Host, story: Story, *, tags: bool) -> list[dict[str, Any]]:
    """A client of the program asks for all that it knows; the frames of both."""
    old = Recorder(host, await host.client())
    ask, begun_ms = old.request, host.now_ms
    await ask("hello", {"versions": [1], "client": "of before"})
    await ask("ping")
    await ask("status")
    await ask("route", {"subject": "orders"})
    await ask("route", {"group": "default"})
    await ask("lookup", {"receipts": list(story.receipts.values())})
    await ask("lookup", {"messages": [{"subject": "orders", "message_id": "id-soon", "due_ms": due_of(story, "soon")}]})
    row = {"subject": "orders", "body": "row", "delay_ms": 2_000, "message_id": "id-row", "properties": {"a": "b"}}
    refused = {"subject": "orders", "body": "refused", "delay_ms": 1 << 50}
    sent = await ask("send", {"messages": [row, refused, row | {"subject": "a new one", "delay_ms": 2_500}]})
    lengths = np.array([3, 3, 5], dtype="<u4").tobytes()
    columns = {"count": 3, "subject": "columns", "due_ms": column([begun_ms + 2_000] * 3)}
    columns |= {"bodies": b"onetwothree", "body_length": lengths}
    await ask("send", columns)
    receipts = story.receipts
    cancels = ["soon expires", "cancelled", "acked", "far too", "expired", "moved", "dead"]
    await ask("cancel", {"receipts": [*[receipts[name] for name in cancels], "no receipt"]})
    named = {"subject": "orders", "message_id": "id-far", "due_ms": due_of(story, "far")}
    await ask("cancel", {"messages": [named, named | {"message_id": "unheard of"}]})
    items = [{"receipt": receipts["moved on"], "delay_ms": 3_000}, {"receipt": receipts["cancelled"], "delay_ms": 1}]
    await ask("reschedule", {"items": items})
    await host.sleep_ms(6_000)
    await ask("pull", {"subject": "columns", "group": "new", "max_messages": 10, "columns": True})
    pulled = await ask("pull", {"subject": "orders", "group": "billing", "max_messages": 100, "ack_timeout_ms": DAY_MS})
    bodies = {message["body"].decode(): message for message in pulled["messages"]}
    billing = {"subject": "orders", "group": "billing"}
    await ask("ack", billing | deliveries([bodies["leased"], bodies["overdue"]]))
    await ask("nack", billing | {"delay_ms": 1_000} | deliveries([bodies["row"], bodies["moved on"]]))
    await ask("pull", {"subject": "backlog", "group": "slow", "max_messages": 8})
    await ask("pull", {"subject": "backlog", "group": "slow", "max_messages": 100, "max_bytes": 1 << 20})
    await ask("ack", {"subject": "nowhere", "group": "nobody", "count": 1, "deliveries": column([1])})
    everything = {"from_ms": begun_ms - DAY_MS, "to_ms": begun_ms, "subject": "backlog"}
    await ask("redispatch", everything | {"dry_run": True})
    await host.sleep_ms(4_000)
    again = await ask("pull", {"subject": "orders", "group": "billing", "max_messages": 100, "wait_ms": 1_000})
    assert again["messages"], "nothing came again after the nack"
    if tags:
        await converse_with_tags(host, story, ask)
    await ask("lookup", {"receipts": [*receipts.values(), sent["results"][0]["receipt"]]})
    await ask("status")
    return old.exchanges


async def converse_with_tags(host: Host, story: Story, ask: Callable[..., Awaitable[dict[str, Any]]]) -> None:
    """What a client asks that knows tags."""
    await ask("policy", PICKY)
    await ask("groups", {"subject": "tagged"})
    await ask("group", PICKY)
    await ask("dead_letters", PICKY | {"action": "list", "max": 10})
    await ask("subjects", {"pattern": "*"})
    await ask("find", {"message_id": "id-paid", "subject": "tagged", "max": 10})
    await ask("read", {"subject": "published", "position": 1})
    await ask("publish", {"messages": [{"subject": "published", "body": "more", "tag": "now", "order_key": "o-8"}]})
    await ask(
        "send", {"messages": [{"subject": "tagged", "body": "tag", "delay_ms": 500, "tag": "paid", "order_key": "o-7"}]}
    )
    await ask("commit", {"receipts": [story.receipts["committed"], story.receipts["rolled back"]]})
    await ask("rollback", {"receipts": [story.receipts["committed"], story.receipts["soon"]]})
    await host.sleep_ms(2_000)
    pulled = await ask("pull", PICKY | {"max_messages": 10})
    assert [message["body"] for message in pulled["messages"]] == [b"tag"], pulled
    await ask("pull", {"subject": "tagged", "group": "others", "max_messages": 10, "where": "1 = 1"})
    await ask("pull", {"subject": "published", "group": "others", "max_messages": 10, "columns": True})
    await ask("ack", PICKY | deliveries(pulled["messages"]))
    await ask("seek", {"subject": "published", "group": "others", "to": "earliest"})
    await ask("dead_letters", PICKY | {"action": "resend", "max": 10})


def due_of(story: Story, name: str) -> int:
    """The due time in a receipt: its second part."""
    return int(story.receipts[name].split("-")[1], 16)


async def write(commit: str, end: str, archive: Path) -> None:
    """One archive."""
    story, tags = Story(), commit not in WITHOUT_TAGS
    async with trio.open_nursery() as nursery:
        host = Host(nursery, settings())
        host.fake().up = False
        end_life: Callable[[], Awaitable[None]] = host.stop if end == "stopped" else host.kill
        await host.start()
        await first_life(host, story, tags=tags)
        await end_life()
        host.clock.step(8 * MINUTE_MS)
        await host.start()
        await second_life(host, story)
        balance = await last_moment(host, story)
        await end_life()
        files = {path: host.disk.content(path) for path in host.disk.files(DATA)}
        clock_us = host.clock.now_us()
        host.clock.step(30_000)
        await host.start()
        await host.sleep_ms(1_000)
        exchanges = await converse(host, story, tags=tags)
        await host.kill()
        nursery.cancel_scope.cancel()
    told = {
        "commit": commit,
        "end": end,
        "clock_us": clock_us,
        "balance": balance,
        "receipts": story.receipts,
        "outcomes": story.outcomes,
        "bodies": story.bodies,
        "exchanges": exchanges,
    }
    entries = {f"data{path.removeprefix(DATA)}": content for path, content in files.items()}
    entries["story.json"] = json.dumps(told, indent=1).encode()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, content in sorted(entries.items()):
            file.writestr(zipfile.ZipInfo(name, ARCHIVED_AT), content, zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Write both archives of a commit."""
    commit, folder = sys.argv[1:]
    for end in ENDS:
        archive = Path(folder, f"{commit}-{end}.zip")
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(write, commit, end, archive, clock=clock)
        print(f"{archive}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
