"""The operation `policy`: shown, set, kept over restarts, refused by name, and applied to what is being retried."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import DelayServerError
from tests.fakes.host import Boot, Client, Host, small_settings

NAMES = {"subject": "orders", "group": "shop"}
UNSET = {
    "attempts": None,
    "first_ms": None,
    "factor": None,
    "cap_ms": None,
    "first_level": None,
    "tags": None,
    "where": None,
    "failed_key": None,
}


async def started(boot: Boot, **settings: Any) -> tuple[Host, Client]:
    host = await boot.started(small_settings(**settings))
    return host, await host.client()


async def test_a_group_without_a_policy_has_the_defaults_of_the_node(boot: Boot) -> None:
    _, client = await started(boot, broker={"redelivery_first_ms": 7, "redelivery_cap_ms": 70})
    reply = await client.request("policy", NAMES)
    assert reply == NAMES | {
        "policy": UNSET,
        "applies": {"attempts": 0, "first_ms": 7, "factor": 2.0, "cap_ms": 70, "levels_ms": []},
    }
    assert (await client.request("groups"))["groups"] == [], "a look makes no group"


async def test_fields_are_changed_one_by_one_and_reset_together(boot: Boot) -> None:
    _, client = await started(boot)
    await client.request("policy", NAMES | {"set": {"attempts": 5, "cap_ms": 60_000}})
    reply = await client.request("policy", NAMES | {"set": {"factor": 3, "cap_ms": None}})
    assert reply["policy"] == UNSET | {"attempts": 5, "factor": 3.0}
    reply = await client.request("policy", NAMES | {"reset": True, "set": {"first_level": 2}})
    assert reply["policy"] == UNSET | {"first_level": 2}
    assert reply["applies"]["levels_ms"][:3] == [5_000, 10_000, 30_000] and "first_ms" not in reply["applies"]
    reply = await client.request("policy", NAMES | {"reset": True})
    assert reply["policy"] == UNSET


async def test_a_policy_is_there_after_a_restart_and_a_crash(boot: Boot) -> None:
    host, client = await started(boot)
    await client.request("policy", NAMES | {"set": {"attempts": 5}})
    await host.restart()
    client = await host.client()
    assert (await client.request("policy", NAMES))["policy"] == UNSET | {"attempts": 5}
    await client.request("policy", NAMES | {"set": {"attempts": 6}})
    await host.restart_killed()
    client = await host.client()
    assert (await client.request("policy", NAMES))["policy"] == UNSET | {"attempts": 6}


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown field": ({"set": {"attemtps": 3}}, "policy_invalid", "has no field 'attemtps'"),
    "a text": ({"set": {"attempts": "3"}}, "policy_invalid", "attempts must be an integer"),
    "crossed": ({"set": {"first_ms": 2, "cap_ms": 1}}, "policy_invalid", "above cap_ms"),
    "no map": ({"set": [1]}, "invalid_argument", "set must be a map"),
    "reset": ({"reset": 1}, "invalid_argument", "reset must be true or false"),
    "subject": ({"subject": ""}, "subject_invalid", "subject"),
    "group": ({"group": 7}, "subject_invalid", "group"),
    "group of a set": ({"group": "\n", "set": {"attempts": 1}}, "subject_invalid", "printable"),
    "long": ({"group": "g" * 250, "set": {"attempts": 1}}, "policy_invalid", "dead-letter subject cannot be made"),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_senseless_policy_is_refused_by_name_and_changes_nothing(boot: Boot, what: str) -> None:
    _, client = await started(boot)
    await client.request("policy", NAMES | {"set": {"attempts": 5}})
    arguments, name, text = BAD[what]
    with pytest.raises(DelayServerError) as caught:
        await client.request("policy", NAMES | arguments)
    assert caught.value.name == name and text in caught.value.message
    assert (await client.request("policy", NAMES))["policy"] == UNSET | {"attempts": 5}


async def test_two_groups_cannot_have_one_dead_letter_subject(boot: Boot) -> None:
    _, client = await started(boot)
    one, other = {"subject": "a", "group": "b.dead.c"}, {"subject": "a.dead.b", "group": "c"}
    await client.request("policy", one | {"set": {"attempts": 5}})
    with pytest.raises(DelayServerError, match=r"policy_invalid.*'a\.dead\.b\.dead\.c' is that of group 'b\.dead\.c'"):
        await client.request("policy", other | {"set": {"attempts": 5}})
    await client.request("policy", other | {"set": {"first_ms": 5}})
    await client.request("policy", one | {"set": {"attempts": 6}})


async def test_the_table_of_policies_is_bounded(boot: Boot) -> None:
    _, client = await started(boot, broker={"groups_max": 2})
    for group in ("one", "two"):
        await client.request("policy", {"subject": "s", "group": group, "set": {"first_ms": 1}})
    with pytest.raises(DelayServerError, match="groups_full"):
        await client.request("policy", {"subject": "s", "group": "three", "set": {"first_ms": 1}})
    await client.request("policy", {"subject": "s", "group": "two", "reset": True})
    await client.request("policy", {"subject": "s", "group": "one", "set": {"first_ms": 2}})


async def test_on_a_full_disk_a_policy_is_refused_and_the_old_one_applies(boot: Boot) -> None:
    host, client = await started(boot)
    await client.request("policy", NAMES | {"set": {"attempts": 5}})
    host.disk.capacity_bytes = host.disk.used_bytes
    with pytest.raises(DelayServerError, match="disk_full"):
        await client.request("policy", NAMES | {"set": {"attempts": 6}})
    host.disk.capacity_bytes = None
    assert (await client.request("policy", NAMES))["policy"] == UNSET | {"attempts": 5}


async def test_a_new_policy_sets_the_pauses_of_messages_that_are_being_retried_too(boot: Boot) -> None:
    host, client = await started(boot)
    await client.send({"subject": "orders", "body": "m", "due_ms": host.now_ms})
    await client.request("policy", NAMES | {"set": {"first_ms": 20_000, "factor": 1}})

    async def pull() -> dict[str, Any]:
        messages = (await client.request("pull", NAMES | {"wait_ms": 60_000}))["messages"]
        (message,) = messages
        return dict(message)

    async def nack(message: dict[str, Any]) -> int:
        await client.request("nack", NAMES | {"count": 1, "deliveries": message["delivery"]})
        return host.now_ms

    nacked_ms = await nack(await pull())
    message = await pull()
    assert message["attempt"] == 2 and 20_000 <= host.now_ms - nacked_ms < 21_000
    await client.request("policy", NAMES | {"reset": True, "set": {"first_level": 3}})
    nacked_ms = await nack(message)
    message = await pull()
    assert message["attempt"] == 3 and 30_000 <= host.now_ms - nacked_ms < 31_000, "level 4 for the second redelivery"
