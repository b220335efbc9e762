"""Bad input is answered with the same error and the same text from release to release: bad_input.json has them.

After a wanted change of a text take the answers from the message of the failed test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from delayserver.protocol.errors import DelayServerError
from tests.fakes.host import Boot, Host, small_settings

RECORDED: Final = Path(__file__).with_name("bad_input.json")
NAMES: Final = {"subject": "orders", "group": "shop"}
VALUES: Final = [None, True, -2, 0, 1 << 63, 1.5, "x", "", "y" * 1025, [], [True], [-1], [1, 2], {"a": 1}]
# Each request that is right with the fields of which each gets all the values in turn.
REQUESTS: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "waiting_keys": ("waiting_keys", NAMES, "action"),
    "list waiting keys": ("waiting_keys", NAMES | {"action": "list"}, "subject group after max"),
    "skip waiting keys": ("waiting_keys", NAMES | {"action": "skip"}, "subject group positions max reason"),
    "retry waiting keys": ("waiting_keys", NAMES | {"action": "retry"}, "subject group positions max"),
    "dead_letters": ("dead_letters", NAMES, "action"),
    "list dead letters": ("dead_letters", NAMES | {"action": "list"}, "subject group bodies after max"),
    "resend dead letters": ("dead_letters", NAMES | {"action": "resend"}, "subject group positions max rate first_ms"),
    "drop dead letters": ("dead_letters", NAMES | {"action": "drop"}, "subject group positions max"),
    "pending": ("pending", {}, "by"),
    "pending by hour": ("pending", {"by": "hour"}, "from_ms to_ms max after"),
    "pending by subject": ("pending", {"by": "subject"}, "from_ms to_ms max after"),
    "pending by message": (
        "pending",
        {"by": "message"},
        "subject from_ms to_ms tag where latest_first bodies count places after max",
    ),
    "transactions": ("transactions", {}, "after max"),
    "groups": ("groups", {}, "subject after max"),
    "group": ("group", NAMES, "subject group"),
    "seek": ("seek", NAMES, "to time_ms position"),
    "seek to": ("seek", NAMES | {"to": "latest"}, "subject group position time_ms"),
    "remove_group": ("remove_group", NAMES, "subject group"),
    "policy": ("policy", NAMES, "subject group set reset"),
    "subjects": ("subjects", {}, "pattern prefix after max"),
    "find": ("find", {"key": "k"}, "key message_id subject from_ms to_ms after max"),
    "route": ("route", {}, "subject group order_key"),
    "route of a subject": ("route", {"subject": "orders"}, "group order_key"),
    "redispatch": ("redispatch", {"from_ms": 0, "to_ms": 5}, "from_ms to_ms subject outcomes dry_run after"),
    "token": ("token", {}, "action"),
    "list tokens": ("token", {"action": "list"}, "id"),
    "revoke": ("token", {"action": "revoke"}, "id"),
    "rotate": ("token", {"action": "rotate", "id": "0" * 12}, "id overlap_ms"),
    "create": ("token", {"action": "create"}, "roles"),
    "commit": ("commit", {}, "receipts items"),
    "commit of items": ("commit", {"items": []}, "receipts"),
    "rollback": ("rollback", {}, "receipts items"),
    "prepare": ("prepare", {"messages": [], "group": "shop"}, "group check_after_ms checks_max policy"),
    "prove": ("prove", {}, "proof"),
    "read": (
        "read",
        {"subject": "orders", "position": 0},
        "subject position max_messages max_bytes wait_ms columns",
    ),
    "hello": ("hello", {"versions": [1]}, "versions notices token instance server_id"),
}


async def answers(host: Host) -> dict[str, dict[str, str]]:
    """By request and field, by value: the error and its text. Values that are taken are left out."""
    client = await host.client()
    await client.request("policy", NAMES | {"set": {"attempts": 3}})
    found: dict[str, dict[str, str]] = {}
    for name, (operation, arguments, fields) in REQUESTS.items():
        for field in fields.split():
            texts = {}
            for value in VALUES:
                await client.request("pull", NAMES)
                try:
                    await client.request(operation, arguments | {field: value})
                except DelayServerError as error:
                    texts[json.dumps(value)[:20]] = f"{error.name}: {error.message}"
            found[f"{name}: {field}"] = texts
    return found


async def test_bad_input_gets_the_recorded_answers(boot: Boot) -> None:
    host = await boot.started(small_settings())
    found = await answers(host)
    assert found == json.loads(RECORDED.read_text())
