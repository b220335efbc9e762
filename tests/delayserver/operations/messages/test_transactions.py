"""Transactions: no consumer gets a prepared message before its commit, and a transaction ends once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delayserver.operations.messages import check_backs
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.receipts import format_receipt
from delayserver.recover.checking.check import check_directory
from store.records.file_header import FILE_HEADER_BYTES
from store.records.record import HEADER_BYTES
from store.records.transaction_timer import TIMERS_SUBJECT
from tests.delayserver.replay.test_day_tier import DAY_MS, coarse_settings, drain_slowly
from tests.fakes.host import DATA_DIR, Boot, Client, Host, small_settings, texts

HOUR_MS = 3_600_000


async def prepare(client: Client, *bodies: str, due_ms: int, **rest: Any) -> list[dict[str, Any]]:
    """Prepare messages of the subject `s` for the producer group `p`."""
    own = {name: rest.pop(name) for name in ("message_id", "properties", "expires_ms") if name in rest}
    messages = [{"subject": "s", "body": body, "due_ms": due_ms} | own for body in bodies]
    results: list[dict[str, Any]] = (await client.request("prepare", {"messages": messages, "group": "p"} | rest))[
        "results"
    ]
    return results


async def end(client: Client, operation: str, *receipts: str) -> list[dict[str, Any]]:
    """Commit or roll back by receipts."""
    results: list[dict[str, Any]] = (await client.request(operation, {"receipts": list(receipts)}))["results"]
    return results


async def test_a_prepared_message_is_seen_after_its_commit_and_not_before(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    (prepared,) = await prepare(client, "body", due_ms=host.now_ms, properties={"a": "b"}, message_id="id 1")
    await host.sleep_ms(5_000)
    assert await client.pull() == []
    assert await client.lookup(prepared["receipt"]) == ["prepared"]
    host.check_balance(pending=1)
    (committed,) = await end(client, "commit", prepared["receipt"])
    assert committed["receipt"] == prepared["receipt"]
    assert committed["outcome"] == "committed"
    (message,) = await client.pull(wait_ms=1_000)
    assert (message["body"], message["properties"], message["message_id"]) == (b"body", {"a": "b"}, "id 1")
    assert await client.lookup(prepared["receipt"], committed["new_receipt"]) == ["committed", "delivered"]
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["cancelled"], status["delivered"]) == (2, 1, 1)
    assert status["replaced"] == 1, "the committed message counts beside its transaction"


@pytest.mark.parametrize("stop", ["stop", "kill", "without a checkpoint"])
async def test_replaced_messages_are_told_apart_also_after_a_restart(boot: Boot, stop: str) -> None:
    host, client = await boot.connected(small_settings(storage={"checkpoint_interval_ms": 500}))
    prepared = await prepare(client, *"abcde", due_ms=host.now_ms + HOUR_MS)
    await end(client, "commit", *[each["receipt"] for each in prepared])
    far = (await client.put("moved", host.now_ms + HOUR_MS))["receipt"]
    await host.sleep_ms(1_000)
    await client.request("reschedule", {"items": [{"receipt": far, "due_ms": host.now_ms + 2 * HOUR_MS}]})
    await client.cancel((await client.put("gone", host.now_ms + HOUR_MS))["receipt"])
    for _ in range(2):
        await host.settled()
        status = await client.status()
        assert (status["accepted"], status["cancelled"], status["replaced"]) == (13, 7, 6), (
            "seven messages, one cancelled"
        )
        assert status["broker_groups"] == status["groups"]
        await (host.kill() if stop == "kill" else host.stop())
        if stop == "without a checkpoint":
            host.disk.remove(f"{DATA_DIR}/checkpoint")
        client = await host.start_connected()
        await host.sleep_ms(200)


async def test_a_transaction_that_is_rolled_back_is_never_seen(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    prepared = await prepare(client, "a", "b", due_ms=host.now_ms + 1_000)
    receipts = [row["receipt"] for row in prepared]
    assert [row["outcome"] for row in await end(client, "rollback", *receipts)] == ["rolled_back"] * 2
    assert await client.lookup(*receipts) == ["rolled_back"] * 2
    await host.sleep_ms(2_000)
    host.clock.step(2 * HOUR_MS)
    await host.sleep_ms(5_000)
    assert await client.pull() == []
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["rolled_back"]) == (2, 2)


async def test_a_producer_that_says_nothing_is_asked_and_then_the_policy_decides(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    (back,) = await prepare(
        client, "back", due_ms=host.now_ms, check_after_ms=1_000, checks_max=2, properties={"k": "v"}
    )
    (kept,) = await prepare(client, "kept", due_ms=host.now_ms, check_after_ms=1_000, checks_max=1, policy="commit")
    await host.sleep_ms(1_500)
    checks = await client.pull("p.check")
    assert sorted(texts(checks)) == ["back", "kept"]
    asked = {row["body"].decode(): row["properties"] for row in checks}
    assert asked["back"] == {
        "k": "v",
        "transaction": back["receipt"],
        "transaction_subject": "s",
        "transaction_due_ms": str(back["due_ms"]),
        "transaction_check": "1",
        "transaction_checks_max": "2",
    }
    assert await client.pull() == []
    await host.sleep_ms(1_000)
    assert [row["properties"]["transaction_check"] for row in await client.pull("p.check")] == ["2"]
    assert texts(await client.pull()) == ["kept"]
    assert await client.lookup(back["receipt"], kept["receipt"]) == ["prepared", "committed"]
    await host.sleep_ms(1_000)
    assert await client.lookup(back["receipt"], kept["receipt"]) == ["rolled_back", "committed"]
    await host.sleep_ms(30_000)
    assert await client.pull("p.check") == []
    assert await client.pull() == []
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["rolled_back"], status["cancelled"], status["delivered"]) == (3, 1, 1, 1)


def findings_of(host: Host) -> list[str]:
    """What `recover check` finds in the directory of a host."""
    taken, checked = check_directory(host.disk, "/data", from_ms=None, to_ms=None)
    taken.close()
    return [f"{finding.kind} {finding.file} {finding.detail}" for finding in checked.findings]


async def test_a_repeated_end_gets_the_same_answer_and_another_end_is_refused(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    prepared = await prepare(client, "a", "b", "c", due_ms=host.now_ms)
    first, second, third = [row["receipt"] for row in prepared]
    (committed,) = await end(client, "commit", first)
    assert [row["outcome"] for row in await end(client, "rollback", second)] == ["rolled_back"]
    assert await client.cancel(third) == ["cancelled"]
    assert await end(client, "commit", first) == [committed]
    assert [row["outcome"] for row in await end(client, "rollback", second, second)] == ["rolled_back"] * 2
    refused = [*await end(client, "rollback", first, third), *await end(client, "commit", second, third)]
    assert [(row["error"], row["outcome"]) for row in refused] == [
        ("transaction_ended", "committed"),
        ("transaction_ended", "cancelled"),
        ("transaction_ended", "rolled_back"),
        ("transaction_ended", "cancelled"),
    ]
    assert await client.lookup(first, second, third) == ["committed", "rolled_back", "cancelled"]
    assert await client.cancel(first, second) == ["already_cancelled", "rolled_back"]
    await host.balanced()


async def test_an_end_whose_row_is_damaged_is_not_taken_for_a_cancel(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    (prepared,) = await prepare(client, "body", due_ms=host.now_ms)
    receipt = prepared["receipt"]
    assert [row["outcome"] for row in await end(client, "commit", receipt)] == ["committed"]
    await host.settled()
    assert await client.lookup(receipt) == ["committed"]  # its code stays in memory
    (path,) = host.disk.files("/data/dispatch_log")
    host.disk.flip_bit(path, FILE_HEADER_BYTES + HEADER_BYTES + 3)
    for operation in ("commit", "rollback"):
        assert [row["error"] for row in await end(client, operation, receipt)] == ["message_damaged"]
    assert await client.lookup(receipt) == ["message_damaged"]
    assert any(path in text for text in (await client.status())["corruption"])


async def test_a_message_that_was_never_prepared_is_no_transaction(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    ordinary = await client.put("ordinary", host.now_ms + HOUR_MS)
    never = f"{ordinary['receipt'][:-12]}{999:012x}"
    for operation in ("commit", "rollback"):
        rows = await end(client, operation, ordinary["receipt"], never, "nonsense")
        assert [row["error"] for row in rows] == ["transaction_unknown", "transaction_unknown", "receipt_invalid"]
    assert await client.lookup(ordinary["receipt"]) == ["pending"]


async def test_a_transaction_is_not_rescheduled_and_its_commit_takes_a_due_time(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    later_ms = host.now_ms + HOUR_MS
    (prepared,) = await prepare(client, "body", due_ms=host.now_ms, expires_ms=later_ms + 5_000)
    item = {"receipt": prepared["receipt"], "due_ms": later_ms}
    (moved,) = (await client.request("reschedule", {"items": [item]}))["results"]
    assert moved == {"receipt": prepared["receipt"], "outcome": "prepared"}
    bad = await client.request("commit", {"items": [item | {"due_ms": 1}, item | {"delay_ms": 5}, "no map"]})
    assert [row["error"] for row in bad["results"]] == ["too_old", "invalid_argument", "invalid_argument"]
    assert await client.lookup(prepared["receipt"]) == ["prepared"]
    (committed,) = (await client.request("commit", {"items": [item]}))["results"]
    assert committed["due_ms"] == later_ms
    assert (await client.request("reschedule", {"items": [item]}))["results"][0]["outcome"] == "already_cancelled"
    host.clock.step(HOUR_MS - 5_000)
    await host.sleep_ms(4_000)
    assert await client.pull() == []
    await host.sleep_ms(1_500)
    (message,) = await client.pull()
    assert message["expires_ms"] == later_ms + 5_000


async def test_a_prepare_that_is_sent_twice_is_one_transaction(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + 2_000
    rest: dict[str, Any] = {"due_ms": due_ms, "message_id": "once", "check_after_ms": 1_000, "checks_max": 1}
    (first,) = await prepare(client, "body", **rest)
    (again,) = await prepare(client, "body", **rest)
    sent = await client.put("body", due_ms, message_id="once")
    assert await client.lookup(again["receipt"], sent["receipt"]) == ["deduplicated"] * 2
    await host.sleep_ms(1_500)
    assert len(await client.pull("p.check")) == 1, "the copy is not asked about"
    (committed,) = await end(client, "commit", again["receipt"])
    assert (await end(client, "commit", first["receipt"]))[0]["new_receipt"] == committed["new_receipt"]
    assert (await end(client, "commit", again["receipt"]))[0]["new_receipt"] == committed["new_receipt"]
    await host.sleep_ms(5_000)
    assert texts(await client.pull()) == ["body"]
    status = await host.balanced(pending=0)
    assert (status["accepted"], status["deduplicated"], status["cancelled"], status["delivered"]) == (4, 2, 1, 1)


async def test_a_prepare_of_an_id_that_was_sent_has_ended(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + 2_000
    await client.put("sent", due_ms, message_id="once")
    (prepared,) = await prepare(client, "prepared", due_ms=due_ms, message_id="once")
    for operation in ("commit", "rollback"):
        (row,) = await end(client, operation, prepared["receipt"])
        assert (row["error"], row["outcome"]) == ("transaction_ended", "deduplicated")
    await host.sleep_ms(3_000)
    assert texts(await client.pull()) == ["sent"]


async def test_one_of_racing_ends_of_a_transaction_wins_and_the_other_gets_its_outcome(boot: Boot) -> None:
    host = await boot.started(small_settings())
    one, other = await host.client(), await host.client()
    seen = []
    for round_ in range(20):
        (prepared,) = await prepare(one, f"body {round_}", due_ms=host.now_ms)
        receipt = {"receipts": [prepared["receipt"]]}
        ids = [await one.ask("commit", receipt), await other.ask("rollback", receipt)]
        if round_ % 2:
            ids.reverse()
        (committed,) = (await one.reply(ids[round_ % 2]))["results"]
        (back,) = (await other.reply(ids[1 - round_ % 2]))["results"]
        assert ("error" in committed) != ("error" in back)
        assert back.get("outcome" if "error" in committed else "error") in ("rolled_back", "transaction_ended")
        state = (await one.lookup(prepared["receipt"]))[0]
        assert state == ("rolled_back" if "error" in committed else "committed")
        seen += [f"body {round_}"] if "error" not in committed else []
    await host.sleep_ms(1_000)
    assert texts(await one.pull()) == seen
    await host.balanced(pending=0)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_after_a_crash_open_transactions_are_checked_back_and_answered_ones_stay_ended(
    boot: Boot, ends: str
) -> None:
    host, client = await boot.connected(small_settings())
    terms: dict[str, Any] = {"check_after_ms": 20_000, "checks_max": 3}
    prepared = await prepare(client, "open", "ended", due_ms=host.now_ms, **terms)
    (answered,) = await end(client, ends, prepared[1]["receipt"])
    await host.restart_unpowered()
    client = await host.client()
    ended = "committed" if ends == "commit" else "rolled_back"
    assert await client.lookup(*[row["receipt"] for row in prepared]) == ["prepared", ended]
    assert await end(client, ends, prepared[1]["receipt"]) == [answered]
    await host.sleep_ms(1_000)
    assert texts(await client.pull()) == (["ended"] if ends == "commit" else [])
    for check in range(1, 4):
        await host.sleep_ms(20_000)
        (asked,) = await client.pull("p.check")
        assert asked["properties"]["transaction_check"] == str(check)
        await host.restart_unpowered(check)
        client = await host.client()
    await host.sleep_ms(20_000)
    assert await client.lookup(prepared[0]["receipt"]) == ["rolled_back"]
    await host.balanced(pending=0)
    await host.stop()
    assert findings_of(host) == []


async def test_after_a_downtime_of_days_each_transaction_is_asked_once_and_then_after_its_pause(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await prepare(
        client, *[f"body {row}" for row in range(300)], due_ms=host.now_ms, check_after_ms=60_000, checks_max=2
    )
    await host.stop()
    host.clock.step(5 * 24 * HOUR_MS)
    client = await host.start_connected()
    await host.sleep_ms(10_000)
    checks = await client.pull("p.check", ack_timeout_ms=10 * HOUR_MS)
    assert {row["properties"]["transaction_check"] for row in checks} == {"1"}
    assert len(checks) == 300
    assert await client.pull("p.check") == []
    await host.sleep_ms(55_000)
    assert {row["properties"]["transaction_check"] for row in await client.pull("p.check")} == {"2"}
    await host.sleep_ms(70_000)
    assert (await host.balanced(pending=0))["rolled_back"] == 300
    await host.stop()
    assert findings_of(host) == []


async def test_a_check_back_without_a_consumer_expires_when_the_next_one_comes(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await prepare(client, "body", due_ms=host.now_ms, check_after_ms=10_000, checks_max=5)
    await host.sleep_ms(45_000)
    (check,) = await client.pull("p.check")
    assert check["properties"]["transaction_check"] == "4"


async def test_a_transaction_in_a_far_day_is_asked_about_soon(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms + 5 * 24 * HOUR_MS
    (prepared,) = await prepare(client, "far", due_ms=due_ms, check_after_ms=1_000, checks_max=1)
    await host.sleep_ms(1_500)
    (check,) = await client.pull("p.check")
    assert check["properties"]["transaction_due_ms"] == str(due_ms)
    (committed,) = await end(client, "commit", check["properties"]["transaction"])
    assert committed["due_ms"] == due_ms
    await host.stop()
    assert findings_of(host) == []
    host.clock.step(5 * 24 * HOUR_MS)
    client = await host.start_connected()
    await host.sleep_ms(5_000)
    assert texts(await client.pull()) == ["far"]
    assert await client.lookup(prepared["receipt"]) == ["committed"]
    await host.balanced(pending=0)


async def test_a_clock_that_jumps_asks_at_once_and_decides_nothing_early(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    (prepared,) = await prepare(client, "body", due_ms=host.now_ms, check_after_ms=60_000, checks_max=1)
    host.clock.step(24 * HOUR_MS)
    await host.sleep_ms(2_000)
    assert len(await client.pull("p.check")) == 1
    await host.sleep_ms(50_000)
    assert await client.lookup(prepared["receipt"]) == ["prepared"]
    host.clock.step(-23 * HOUR_MS)
    await host.sleep_ms(60_000)
    assert await client.lookup(prepared["receipt"]) == ["prepared"], "its timer is ahead of the clock now"
    (committed,) = await end(client, "commit", prepared["receipt"])
    await host.sleep_ms(1_000)
    assert committed["due_ms"] <= host.now_ms
    assert texts(await client.pull()) == ["body"]


async def test_a_full_disk_ends_nothing_and_forgets_no_transaction(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"free_bytes_min": 1 << 16}))
    (prepared,) = await prepare(client, "body", due_ms=host.now_ms, check_after_ms=1_000, checks_max=1)
    await host.settled()
    host.disk.capacity_bytes = host.disk.used_bytes
    await host.sleep_ms(10_000)
    with pytest.raises(DelayServerError) as caught:
        await prepare(client, "other", due_ms=host.now_ms)
    assert caught.value.name == "disk_full"
    assert await client.lookup(prepared["receipt"]) == ["prepared"]
    host.disk.capacity_bytes = None
    await host.sleep_ms(10_000)
    assert len(await client.pull("p.check", ack_timeout_ms=HOUR_MS)) <= 1
    assert await client.lookup(prepared["receipt"]) == ["rolled_back"]
    await host.balanced(pending=0)


async def test_a_disk_that_fills_up_between_two_records_of_check_backs_asks_no_transaction_twice(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_backs, "READ_BYTES_MAX", 840_000)
    host, client = await boot.connected(small_settings(storage={"message_log_segment_bytes": 8 << 20}))
    names = "abcdefghijklmno"
    bodies = [name * 100_000 for name in names]
    await prepare(client, *bodies, due_ms=host.now_ms, check_after_ms=10_000, checks_max=3)
    await host.settled()
    await host.sleep_ms(3_000)
    host.disk.capacity_bytes = host.disk.used_bytes + 1_630_000
    await host.sleep_ms(8_000)
    assert host.server.parts.messages.check_backs.asked == 8, "there was room for the first record alone"
    host.disk.capacity_bytes = None
    asked = []
    for _ in range(12):
        asked += [
            (row["body"][:1].decode(), row["properties"]["transaction_check"])
            for row in await client.pull("p.check", ack_timeout_ms=HOUR_MS)
        ]
        await host.sleep_ms(5_000)
    assert sorted(asked) == [(name, check) for name in names for check in "123"]
    await host.balanced()
    await host.stop()
    assert findings_of(host) == []


async def test_a_check_back_that_was_too_slow_once_leaves_no_doubt_behind(boot: Boot) -> None:
    host = boot(small_settings(dispatch={"deliver_timeout_ms": 500}))
    slow = True

    async def around(name: str, work: Callable[[], Any]) -> Any:
        if name == "read_first" and slow:
            await host.sleep_ms(1_000)
        return work()

    host.workers.around = around
    client = await host.start_connected()
    await prepare(client, *["m"] * 40, due_ms=host.now_ms, check_after_ms=1_000, checks_max=1)
    await host.sleep_ms(1_700)
    attempted = host.server.parts.opened.attempts.attempted
    assert attempted.any_unknown, "the timers have no answer"
    slow = False
    await host.sleep_ms(5_000)
    assert host.server.parts.messages.check_backs.asked == 40
    attempted = host.server.parts.opened.attempts.attempted
    assert not attempted.any_unknown
    await host.stop()
    assert (await host.start()).parts.opened.sequences.clean


async def test_transactions_in_columns_are_those_of_rows(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    due_ms = host.now_ms
    columns = {"count": 3, "subject": "s", "due_ms": due_ms, "bodies": b"abc", "body_length": 1, "group": "p"}
    reply = await client.request("prepare", columns)
    assert reply["accepted"] == 3
    server_id = host.server.parts.figures.identity.server_id
    receipts = [format_receipt(server_id, due_ms, reply["first_sequence"] + row) for row in range(3)]
    assert await client.lookup(*receipts) == ["prepared"] * 3
    rows = await end(client, "commit", *receipts, receipts[0])
    assert [row["outcome"] for row in rows] == ["committed"] * 4
    assert rows[0] == rows[3]
    await host.sleep_ms(500)
    assert texts(await client.pull()) == ["a", "b", "c"]


async def test_a_subject_named_like_that_of_timers_is_an_ordinary_one(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    await client.put("before", host.now_ms, TIMERS_SUBJECT)
    await prepare(client, "body", due_ms=host.now_ms, check_after_ms=1_000, checks_max=0)
    await client.put("behind", host.now_ms, TIMERS_SUBJECT)
    await host.sleep_ms(2_000)
    assert texts(await client.pull(TIMERS_SUBJECT)) == ["before", "behind"]
    assert (await host.balanced(pending=0))["rolled_back"] == 1


async def test_retention_counts_rolled_back_messages(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(storage={"window_ms": 10_000, "retention_ms": 20_000}))
    receipts = [row["receipt"] for row in await prepare(client, "a", "b", due_ms=host.now_ms, check_after_ms=1_000)]
    await end(client, "rollback", receipts[0])
    await end(client, "commit", receipts[1])
    await client.pull(wait_ms=1_000)
    await host.sleep_ms(120_000)
    assert await client.lookup(*receipts) == ["retired", "retired"]
    for operation in ("commit", "rollback"):
        assert [row["outcome"] for row in await end(client, operation, *receipts)] == ["retired"] * 2
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["rolled_back"], status["cancelled"], status["delivered"]) == (3, 1, 1, 1)
    await host.stop()
    assert findings_of(host) == []
    await host.start()
    assert host.check_balance(pending=0)["rolled_back"] == 1


async def test_the_first_timer_may_come_while_a_hot_second_is_taken_in_slices(boot: Boot) -> None:
    host, client = await boot.connected(small_settings(wheel={"slice_rows": 4}))
    due_ms = host.now_ms + 2_000
    await client.send(*[{"subject": "s", "body": "m", "due_ms": due_ms} for _ in range(5_000)])
    await host.sleep_ms(1_998)
    await prepare(client, "body", due_ms=host.now_ms, check_after_ms=1_000, checks_max=0)
    await host.sleep_ms(5_000)
    assert host.died_of is None
    status = await host.balanced(pending=0)
    assert (status["delivered"], status["rolled_back"]) == (5_000, 1)


async def test_a_transaction_of_a_far_day_stays_committed_while_its_day_moves_to_minutes(boot: Boot) -> None:
    host = boot(coarse_settings())
    drain_slowly(host, 10_000)
    server = await host.start()
    client = await host.client()
    due_ms = (host.now_ms // DAY_MS + 2) * DAY_MS + HOUR_MS
    (prepared,) = await prepare(client, "body", due_ms=due_ms, check_after_ms=10 * DAY_MS)
    (committed,) = await end(client, "commit", prepared["receipt"])
    (moved,) = await client.send({"subject": "s", "body": "m", "due_ms": due_ms})
    item = {"receipt": moved["receipt"], "due_ms": due_ms + 1}
    await client.request("reschedule", {"items": [item]})
    before = [await client.find(receipt) for receipt in (prepared["receipt"], moved["receipt"])]
    assert [row["outcome"] for row in before] == ["committed", "cancelled"]
    host.clock.step(due_ms - HOUR_MS - host.now_ms)
    for draining in (True, False):
        await host.until(lambda: bool(server.parts.files.days.draining()) == draining, within_ms=60_000)  # noqa: B023
        assert await end(client, "commit", prepared["receipt"]) == [committed]
        assert [await client.find(receipt) for receipt in (prepared["receipt"], moved["receipt"])] == before
