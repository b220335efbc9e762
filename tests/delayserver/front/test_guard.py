"""Every operation with a token that does not allow it. An operation without a line in the table fails a test here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgpack import packb

from delayserver.front.guard import FREE, OF_SERVERS, RULES
from delayserver.protocol.columns import I64, U8, pack_column
from delayserver.protocol.errors import DelayServerError, Unauthenticated
from delayserver.protocol.operation_names import OPERATIONS
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipt
from tests.fakes.host import Boot, Client, Host

HELLO = {"versions": [1]}
ROLES = ("send", "consume", "look", "admin")
MINE, THEIRS = "mine.orders", "theirs.orders"
NAMES = {"subject": THEIRS, "group": "g"}
NUMBERS = pack_column(np.array([1], np.int64), I64)


@dataclass
class Case:
    """A request for the other tenant's subject, and what a token without it gets: an error of the whole request (`whole`),
    or outcome of each row (`rows`), or a reply without it (`told` gives the subjects of the reply)."""

    arguments: dict[str, Any] = field(default_factory=dict)
    whole: str = ""
    rows: str = ""
    told: Callable[[dict[str, Any]], list[str]] | None = None


def message(subject: str) -> dict[str, Any]:
    return {"subject": subject, "body": "m", "delay_ms": 3_600_000}


def one_delivery() -> dict[str, Any]:
    return NAMES | {"count": 1, "deliveries": NUMBERS}


# `RECEIPT` stands for the receipt of a message of the other tenant.
RECEIPT = "the receipt"
CASES: dict[str, Case] = {
    "hello": Case(HELLO, told=lambda _: []),
    "ping": Case(told=lambda _: []),
    "prove": Case(told=lambda _: []),
    "send": Case({"messages": [message(THEIRS)]}, rows="forbidden"),
    "publish": Case({"messages": [{"subject": THEIRS, "body": "m"}]}, rows="forbidden"),
    "prepare": Case({"messages": [message(THEIRS)], "group": "mine"}, rows="forbidden"),
    "commit": Case({"receipts": [RECEIPT]}, rows="transaction_unknown"),
    "rollback": Case({"receipts": [RECEIPT]}, rows="transaction_unknown"),
    "transactions": Case(told=lambda reply: [each["subject"] for each in reply["transactions"]]),
    "schedule": Case(
        {"action": "list"}, told=lambda reply: [each["definition"]["subject"] for each in reply["schedules"]]
    ),
    "cancel": Case({"receipts": [RECEIPT]}, rows="unknown"),
    "reschedule": Case({"items": [{"receipt": RECEIPT, "delay_ms": 7_200_000}]}, rows="unknown"),
    "lookup": Case({"receipts": [RECEIPT], "body": True}, rows="unknown"),
    "route": Case({"subject": THEIRS}, whole="forbidden"),
    "map": Case(told=lambda _: []),
    "subjects": Case(told=lambda reply: reply["subjects"]),
    "pull": Case(NAMES, whole="forbidden"),
    "cancel_wait": Case({"id": 1}, told=lambda _: []),
    "ack": Case(one_delivery(), whole="forbidden"),
    "nack": Case(one_delivery(), whole="forbidden"),
    "extend": Case(one_delivery(), whole="forbidden"),
    "read": Case({"subject": THEIRS, "position": 0}, whole="forbidden"),
    "group": Case(NAMES, whole="forbidden"),
    "groups": Case(told=lambda reply: [each["subject"] for each in reply["groups"]]),
    "find": Case({"message_id": "the-id"}, told=lambda reply: [each["subject"] for each in reply["messages"]]),
    # Counts of the whole server name no subject.
    "status": Case(told=lambda _: []),
    "metrics": Case(told=lambda reply: [each["subject"] for each in reply["consumer_groups"]]),
    "pending": Case({"by": "hour"}, whole="forbidden"),
    "policy": Case(NAMES, whole="forbidden"),
    "dead_letters": Case(NAMES | {"action": "list"}, whole="forbidden"),
    "waiting_keys": Case(NAMES | {"action": "list"}, whole="forbidden"),
    "seek": Case(NAMES | {"to": "earliest"}, whole="forbidden"),
    "remove_group": Case(NAMES, whole="forbidden"),
    "redispatch": Case({"from_ms": 0, "to_ms": 1}, whole="forbidden"),
    "reload": Case(whole="forbidden"),
    "token": Case({"action": "list"}, whole="forbidden"),
    "snapshot": Case({"action": "take"}, whole="forbidden"),
    "cluster": Case({"action": "show"}, whole="invalid_argument"),
    "deliver": Case(whole="server_not_proven"),
    "window_complete": Case(whole="server_not_proven"),
}


async def tokens(host: Host, *wanted: dict[str, Any]) -> list[Client]:
    """Makes tokens, the first as a server without any, and connects with each."""
    operator, clients = await host.client(), []
    admin = await operator.request("token", {"action": "create", "roles": ["admin"]})
    await operator.request("hello", HELLO | {"token": admin["token"]})
    for each in wanted:
        made = await operator.request("token", {"action": "create"} | each)
        clients.append(await host.client())
        await clients[-1].request("hello", HELLO | {"token": made["token"]})
    return [operator, *clients]


async def prepared(host: Host) -> tuple[Client, Client, str]:
    """An operator, a client with all roles for its own subjects alone, and the receipt of a message of others, which has
    consumers, a group and a delivery."""
    operator, mine = await tokens(host, {"roles": list(ROLES), "subjects": ["mine*"]})
    (sent,) = await operator.send(message(THEIRS))
    due = {"subject": THEIRS, "body": "m", "delay_ms": 0, "message_id": "the-id"}
    await operator.send(due, due | {"subject": MINE})
    for subject in (THEIRS, MINE):
        assert await operator.pull(subject, "g", wait_ms=5_000)
    return operator, mine, sent["receipt"]


def with_receipt(value: Any, receipt: str) -> Any:
    if isinstance(value, dict):
        return {name: with_receipt(inner, receipt) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_receipt(inner, receipt) for inner in value]
    return receipt if value == RECEIPT else value


def test_every_operation_has_its_rule_and_its_case() -> None:
    assert {*RULES, *FREE, *OF_SERVERS} == OPERATIONS
    assert CASES.keys() == OPERATIONS


async def test_every_operation_keeps_the_subjects_of_others_closed(boot: Boot) -> None:
    host = await boot.started()
    operator, mine, receipt = await prepared(host)
    before = await operator.find(receipt)
    for operation, case in CASES.items():
        arguments = with_receipt(case.arguments, receipt)
        if case.whole:
            assert await mine.refused(operation, arguments) == case.whole, operation
            continue
        reply = await mine.request(operation, arguments)
        if case.rows:
            assert [each.get("error", each.get("outcome")) for each in reply["results"]] == [case.rows], (
                operation,
                reply,
            )
        if case.told is not None:
            told = case.told(reply)
            assert all(subject.startswith("mine") for subject in told), (operation, told)
    assert await operator.find(receipt) == before
    assert before["outcome"] == "pending"


async def test_lists_show_only_subjects_that_are_open_to_the_token(boot: Boot) -> None:
    host = await boot.started()
    _, mine, _ = await prepared(host)
    assert (await mine.request("subjects"))["subjects"] == [MINE]
    assert [each["subject"] for each in (await mine.request("groups"))["groups"]] == [MINE]
    assert [each["subject"] for each in (await mine.request("find", {"message_id": "the-id"}))["messages"]] == [MINE]


async def test_without_a_token_only_hello_ping_and_prove_are_served(boot: Boot) -> None:
    host = await boot.started()
    _, _, receipt = await prepared(host)
    stranger = await host.client()
    for operation, case in CASES.items():
        if operation in FREE:
            await stranger.request(operation, case.arguments)
            continue
        # An operator without a token is told to give one, and not to prove that it is a server.
        expected = "server_not_proven" if operation in OF_SERVERS else "unauthenticated"
        assert await stranger.refused(operation, with_receipt(case.arguments, receipt)) == expected, operation


@pytest.mark.parametrize("role", ["send", "consume", "look"])
async def test_a_role_opens_its_operations_and_no_others(boot: Boot, role: str) -> None:
    host = await boot.started()
    _, client = await tokens(host, {"roles": [role]})
    for operation, rule in RULES.items():
        try:
            await client.request(operation, with_receipt(CASES[operation].arguments, format_receipt("0" * 12, 1, 1)))
            answer = ""
        except DelayServerError as error:
            answer = error.name
        assert (answer == "forbidden") == (role not in rule.roles), (operation, answer)


async def test_a_token_changes_schedules_of_its_subjects_and_reads_no_bodies_by_sending(boot: Boot) -> None:
    host = await boot.started()
    rights = ("send", MINE), ("send", THEIRS), ("look", MINE)
    _, sender, other, looker = await tokens(
        host, *[{"roles": [role], "subjects": [subject]} for role, subject in rights]
    )
    put = {"action": "put", "name": "n", "subject": MINE, "body": "secret", "every_ms": 3_600_000}
    await sender.request("schedule", put)
    assert await other.refused("schedule", put) == "forbidden"
    assert await other.refused("schedule", put | {"subject": THEIRS}) == "forbidden"
    for action in ("pause", "resume", "run", "delete", "next"):
        assert await other.refused("schedule", {"action": action, "name": "n"}) == "forbidden"
    for action in ("put", "pause", "resume", "run", "delete"):
        assert await looker.refused("schedule", put | {"action": action}) == "forbidden"
    assert (await other.request("schedule", {"action": "list"}))["schedules"] == []
    assert await sender.refused("schedule", {"action": "show", "name": "n"}) == "forbidden"
    assert (await looker.request("schedule", {"action": "show", "name": "n"}))["definition"]["body"] == "secret"


@pytest.mark.parametrize("operation", ["policy", "dead_letters", "waiting_keys"])
async def test_only_an_administrator_changes_policies_drops_dead_letters_and_skips(boot: Boot, operation: str) -> None:
    host = await boot.started()
    _, client = await tokens(host, {"roles": ["send", "consume", "look"]})
    changes: dict[str, dict[str, Any]] = {
        "policy": {"set": {"attempts": 3}},
        "dead_letters": {"action": "drop"},
        "waiting_keys": {"action": "skip"},
    }
    assert await client.refused(operation, NAMES | changes[operation]) == "forbidden"


async def columns_of(client: Client, receipt: str, operation: str) -> dict[str, Any]:
    sequence = np.array([int(receipt.rpartition("-")[2], 16)], np.int64)
    due_ms = pack_column(np.array([int(receipt.split("-")[1], 16)], np.int64), I64)
    arguments: dict[str, Any] = {"count": 1, "sequence": pack_column(sequence, I64)}
    if operation == "reschedule":
        later = pack_column(np.array([7_200_000], np.int64), I64)
        arguments |= {"message_due_ms": due_ms, "delay_ms": later}
    else:
        arguments["due_ms"] = due_ms
    return await client.request(operation, arguments)


def beside(receipt: str) -> str:
    """A receipt that no message has, with the same due time."""
    head, _, sequence = receipt.rpartition("-")
    return f"{head}-{int(sequence, 16) + 1_000:0{len(sequence)}x}"


@pytest.mark.parametrize("operation", ["commit", "rollback", "cancel", "reschedule", "lookup"])
async def test_a_guess_of_a_receipt_does_not_tell_whether_others_have_such_a_message(
    boot: Boot, operation: str
) -> None:
    host = await boot.started()
    _, mine, receipt = await prepared(host)
    texts, columns = [], []
    for each in (receipt, beside(receipt)):
        reply = await mine.request(operation, with_receipt(CASES[operation].arguments, each))
        texts.append(repr(reply).replace(each, RECEIPT))
        if operation in ("cancel", "reschedule", "lookup"):
            columns.append(repr(await columns_of(mine, each, operation)))
    assert texts[0] == texts[1] and THEIRS not in texts[0]
    assert columns[:1] == columns[1:]


@pytest.mark.parametrize("operation", ["cancel", "reschedule", "lookup"])
async def test_messages_of_others_are_closed_in_columns_and_by_name_as_well(boot: Boot, operation: str) -> None:
    host = await boot.started()
    operator, mine, _ = await prepared(host)
    named = message(THEIRS) | {"message_id": "named"}
    (sent,) = await operator.send(named)
    known = await columns_of(mine, sent["receipt"], operation)
    assert known["outcome"] == pack_column(np.array([int(Outcome.UNKNOWN)], np.uint8), U8)
    due = "message_due_ms" if operation == "reschedule" else "due_ms"
    name = {"subject": THEIRS, "message_id": "named", due: sent["due_ms"], "delay_ms": 60_000}
    if operation != "reschedule":
        del name["delay_ms"]
    form = "items" if operation == "reschedule" else "messages"
    (row,) = (await mine.request(operation, {form: [name]}))["results"]
    assert row.get("error") == "forbidden"
    # The id that the server makes holds the sequence, whatever subject is put beside it.
    name |= {"subject": MINE, "message_id": sent["receipt"].replace(sent["receipt"].split("-")[1] + "-", "", 1)}
    (row,) = (await mine.request(operation, {form: [name]}))["results"]
    assert row.get("outcome") == "unknown" or row.get("error"), row
    assert await operator.lookup(sent["receipt"]) == ["pending"]


async def test_a_forbidden_message_does_not_harm_its_neighbours(boot: Boot) -> None:
    host = await boot.started()
    _, mine = await tokens(host, {"roles": ["send"], "subjects": ["mine*"]})
    results = await mine.send(message(MINE), message(THEIRS), message(MINE))
    assert [each.get("error") for each in results] == [None, "forbidden", None]
    columns = {
        "count": 3,
        "subjects": [MINE, THEIRS],
        "subject_index": pack_column(np.array([0, 1, 0], np.uint32), np.dtype("<u4")),
        "delay_ms": pack_column(np.full(3, 3_600_000, np.int64), I64),
        "bodies": b"abc",
        "body_length": pack_column(np.ones(3, np.uint32), np.dtype("<u4")),
    }
    reply = await mine.request("send", columns)
    assert (reply["accepted"], [row[:2] for row in reply["rejected"]]) == (2, [[1, "forbidden"]])
    assert await mine.refused("send", {**columns, "subjects": None, "subject": THEIRS}) == "forbidden"


async def test_the_check_subject_of_others_is_closed_to_a_transaction(boot: Boot) -> None:
    host = await boot.started()
    _, mine = await tokens(host, {"roles": ["send"], "subjects": ["mine*"]})
    assert await mine.refused("prepare", {"messages": [message(MINE)], "group": "theirs"}) == "forbidden"


async def wrong(host: Host, text: object) -> str:
    return await (await host.client()).refused("hello", HELLO | {"token": text})


async def test_a_wrong_token_is_refused_at_hello_and_leaves_no_rights(boot: Boot) -> None:
    host = await boot.started()
    operator, *_ = await tokens(host)
    made = await operator.request("token", {"action": "create", "roles": ["send"]})
    good = made["token"]
    for text in ("", 7, "dst_", good[:-1] + ("A" if good[-1] != "A" else "B"), good[:-1], "x" * 60, good + " "):
        assert await wrong(host, text) == "unauthenticated"
    assert "token" not in (await operator.request("token", {"action": "list"}))["tokens"][0]


async def test_a_revoked_token_ends_its_connections_at_once_and_a_pull_that_waits(boot: Boot) -> None:
    host = await boot.started()
    operator, consumer, other = await tokens(host, {"roles": ["consume"]}, {"roles": ["consume"]})
    await operator.send({"subject": "s", "body": "m", "delay_ms": 0})
    assert await consumer.pull(wait_ms=5_000)
    waiting = await consumer.ask("pull", {"subject": "s", "group": "g", "wait_ms": 20_000})
    await host.sleep_ms(100)
    listed = (await operator.request("token", {"action": "list"}))["tokens"]
    await operator.request("token", {"action": "revoke", "id": listed[1]["id"]})
    with pytest.raises(ConnectionResetError):
        await consumer.reply(waiting)
    assert consumer.replies[0].error is not None and consumer.replies[0].error.name == Unauthenticated.error
    assert await other.pull(wait_ms=0) == []


async def test_an_expired_token_ends_its_connections(boot: Boot) -> None:
    host = await boot.started()
    (operator, *_) = await tokens(host)
    made = await operator.request(
        "token", {"action": "create", "roles": ["consume"], "expires_ms": host.now_ms + 10_000}
    )
    client = await host.client()
    await client.request("hello", HELLO | {"token": made["token"]})
    waiting = await client.ask("pull", {"subject": "s", "group": "g", "wait_ms": 20_000})
    with pytest.raises(ConnectionResetError):
        await client.reply(waiting)
    assert await wrong(host, made["token"]) == "unauthenticated"


async def test_a_rotated_token_ends_connections_of_the_old_secret_after_the_overlap(boot: Boot) -> None:
    host = await boot.started()
    (operator, *_) = await tokens(host)
    made = await operator.request("token", {"action": "create", "roles": ["consume"]})
    client = await host.client()
    await client.request("hello", HELLO | {"token": made["token"]})
    rotated = await operator.request("token", {"action": "rotate", "id": made["id"], "overlap_ms": 5_000})
    assert rotated["token"] != made["token"]
    assert await client.pull() == []
    with pytest.raises(ConnectionResetError):
        await client.reply(await client.ask("pull", {"subject": "s", "group": "g", "wait_ms": 20_000}))
    assert await wrong(host, made["token"]) == "unauthenticated"
    await (await host.client()).request("hello", HELLO | {"token": rotated["token"]})


async def test_tokens_survive_a_crash_and_the_last_one_that_is_revoked_opens_nothing(boot: Boot) -> None:
    host, operator = await boot.connected()
    made = await operator.request("token", {"action": "create", "roles": ["admin"]})
    await host.restart_unpowered()
    stranger = await host.client()
    assert await stranger.refused("status", {}) == "unauthenticated"
    operator = await host.client()
    await operator.request("hello", HELLO | {"token": made["token"]})
    await operator.request("token", {"action": "revoke", "id": made["id"]})
    assert await stranger.refused("status", {}) == "unauthenticated"
    await host.restart_killed()
    assert await (await host.client()).refused("status", {}) == "unauthenticated"


@pytest.mark.parametrize("subjects", [["mine*"], ["*"]])
async def test_a_token_may_have_so_many_messages_waiting(boot: Boot, subjects: list[str]) -> None:
    host = await boot.started()
    operator, client, free = await tokens(
        host, {"roles": ["send"], "subjects": subjects, "pending_max": 3}, {"roles": ["send"]}
    )
    first = await client.send(message(MINE), message(MINE))
    assert "receipt" in (await client.send(message(MINE)))[0]
    assert await client.refused("send", {"messages": [message(MINE)]}) == "rate_limited"
    await host.settled()
    await host.sleep_ms(200)
    assert await client.refused("send", {"messages": [message(MINE)]}) == "rate_limited"
    if subjects != ["*"]:
        assert len(await free.send(message(THEIRS), message(THEIRS))) == 2
    assert await operator.cancel(*[each["receipt"] for each in first]) == ["cancelled", "cancelled"]
    await host.settled()
    await host.sleep_ms(200)
    assert "receipt" in (await client.send(message(MINE)))[0]


async def test_figures_show_the_subjects_of_the_token(boot: Boot) -> None:
    host = await boot.started()
    operator, mine, _ = await prepared(host)
    await operator.send(message(MINE))
    await host.settled()
    assert [each["subject"] for each in (await mine.request("pending", {"by": "subject"}))["subjects"]] == [MINE]
    assert {each["subject"] for each in (await mine.request("metrics"))["subjects"]} <= {MINE}
    assert len((await operator.request("pending", {"by": "subject"}))["subjects"]) == 2
    mine_alone = await mine.request("pending", {"by": "message", "bodies": True, "count": True})
    assert ([each["subject"] for each in mine_alone["messages"]], mine_alone["matching"]) == ([MINE], 1)
    assert len((await operator.request("pending", {"by": "message", "subject": "*"}))["messages"]) == 2


async def test_the_log_has_administrative_acts_with_their_actor_and_without_secrets(
    boot: Boot, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delayserver.audit")
    host = await boot.started()
    operator, mine = await tokens(host, {"roles": ["consume"], "subjects": ["mine*"], "name": "shop"})
    assert await mine.refused("seek", {"subject": MINE, "group": "g", "to": "earliest"}) == "forbidden"
    assert await operator.refused("seek", {"subject": MINE, "group": "g", "to": "earliest"}) == "group_unknown"
    await operator.request("token", {"action": "list"})
    await operator.request("status")
    admin, shop = (row["id"] for row in (await operator.request("token", {"action": "list"}))["tokens"])
    told = [record.getMessage() for record in caplog.records if record.name == "delayserver.audit"]
    assert [line.partition(" at ")[0] for line in told] == [
        "no token",
        f"token {admin}",
        f"token {shop}",
        f"token {admin}",
    ]
    assert "create" in told[0] and "done" in told[0] and "shop" in told[1] and shop in told[1]
    assert told[2].endswith("seek subject='mine.orders' group='g': forbidden")
    assert told[3].endswith("group_unknown")
    assert "dst_" not in "".join(told)


async def test_an_act_is_audited_although_its_client_goes_away_before_the_answer(
    boot: Boot, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delayserver.audit")
    host = await boot.started()
    operator, *_ = await tokens(host)
    caplog.clear()
    await operator.ask("token", {"action": "create", "roles": ["admin"], "name": "hidden"})
    operator.transport.close()
    await host.until(lambda: any("name='hidden'" in record.getMessage() for record in caplog.records))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "delayserver.audit"]
    assert told.endswith((": unknown", ": done"))


async def test_the_first_token_closes_connections_that_are_open_already(boot: Boot) -> None:
    host, before = await boot.connected()
    await before.request("status")
    await tokens(host)
    assert await before.refused("status", {}) == "unauthenticated"
    assert await before.refused("send", {"messages": [message(MINE)]}) == "unauthenticated"


async def test_limits_refuse_with_a_pause_and_slow_no_other_client(boot: Boot) -> None:
    host = await boot.started()
    _, limited, bytewise, free = await tokens(
        host,
        {"roles": ["send"], "rate": 10},
        {"roles": ["send"], "bytes_rate": 1_000},
        {"roles": ["send"]},
    )
    assert all("receipt" in each for each in await limited.send(*[message("s")] * 10))
    with pytest.raises(DelayServerError) as refused:
        await limited.send(message("s"))
    assert refused.value.name == "rate_limited" and 0 < (refused.value.retry_after_ms or 0) <= 101
    await bytewise.send(message("s") | {"body": "x" * 5_000})  # more than a second's worth, at the first go
    assert await bytewise.refused("send", {"messages": [message("s")]}) == "rate_limited"
    assert all("receipt" in each for each in await free.send(*[message("s")] * 100))
    await host.sleep_ms(refused.value.retry_after_ms or 0)
    assert "receipt" in (await limited.send(message("s")))[0]
    await host.sleep_ms(4_500)
    assert "receipt" in (await bytewise.send(message("s")))[0]
    await host.sleep_ms(1_000)
    await bytewise.send(message("s") | {"body": "\N{BELL}" * 900})  # 3,600 bytes, which take another 2.6 s
    await host.sleep_ms(1_000)
    assert await bytewise.refused("send", {"messages": [message("s")]}) == "rate_limited"


async def test_messages_that_are_moved_count_against_the_rates_and_not_against_the_number_that_waits(
    boot: Boot,
) -> None:
    host = await boot.started()
    limits: list[dict[str, Any]] = [{"rate": 2}, {"bytes_rate": 1_000}, {"pending_max": 1, "subjects": ["own"]}]
    _, rated, bytewise, one = await tokens(host, *[{"roles": ["send"]} | each for each in limits])
    for client, allowed in ((rated, 1), (bytewise, 1), (one, 3)):
        receipt = (await client.send(message("own" if client is one else "s")))[0]["receipt"]
        body = "x" * 2_000 if client is bytewise else "x"
        for _ in range(allowed):
            item = {"receipt": receipt, "delay_ms": 7_200_000, "body": body}
            if client is bytewise:
                await host.sleep_ms(1_000)
            moved = (await client.request("reschedule", {"items": [item]}))["results"][0]
            receipt = moved["new_receipt"]
        item = {"receipt": receipt, "delay_ms": 7_200_000}
        if client is not one:
            assert await client.refused("reschedule", {"items": [item]}) == "rate_limited"
    assert await one.refused("send", {"messages": [message("own")]}) == "rate_limited"


async def test_a_limit_of_bytes_counts_all_that_a_message_stores(boot: Boot) -> None:
    host = await boot.started()
    long = "x" * 200
    properties = packb({"name": long})
    rows: list[dict[str, Any]] = [
        {"message_id": long},
        {"order_key": long},
        {"properties": {long: ""}},
        {"properties": {"name": long}},
    ]
    requests: list[dict[str, Any]] = [{"messages": [message("s") | each]} for each in rows]
    columns: dict[str, Any] = {"count": 1, "subject": "s", "delay_ms": 3_600_000, "bodies": b"", "body_length": 0}
    requests += [
        columns | {"message_ids": long.encode(), "message_id_length": 200},
        columns | {"order_keys": long.encode(), "order_key_length": 200},
        columns | {"properties": properties, "properties_length": len(properties)},
    ]
    _, *clients = await tokens(host, *[{"roles": ["send"], "bytes_rate": 100}] * len(requests))
    for client, request in zip(clients, requests, strict=True):
        reply = await client.request("send", request)
        assert reply.get("accepted") == 1 or "receipt" in reply["results"][0], reply
        assert await client.refused("send", {"messages": [message("s")]}) == "rate_limited", request
