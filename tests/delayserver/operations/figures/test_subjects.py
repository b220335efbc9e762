"""The operation `subjects` lists the subjects that a node has met, by pages, of a pattern and a prefix."""

from __future__ import annotations

import time
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from delayserver.operations.access.access import EVERYTHING
from delayserver.operations.figures import subjects
from delayserver.protocol.schema.subjects import ListSubjects
from delayserver.runtime.fair_shares import Account
from delayserver.runtime.fair_turns import Work
from tests.fakes.host import Boot, Client, Host, small_settings

NAMES = ["orders", "orders.eu", "Orders.us", "bills", "orders.eu.dead", "o"]


async def started(boot: Boot, names: list[str]) -> tuple[Host, Client]:
    host, client = await boot.connected(small_settings())
    for name in names:
        await client.send({"subject": name, "body": "", "delay_ms": 60_000})
    return host, client


async def ask(client: Client, **arguments: Any) -> dict[str, Any]:
    return await client.request("subjects", arguments)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, NAMES),
        ({"pattern": "*"}, NAMES),
        ({"pattern": "orders"}, ["orders"]),
        ({"pattern": "orders*"}, ["orders", "orders.eu", "orders.eu.dead"]),
        ({"pattern": "orders.??"}, ["orders.eu"]),
        ({"pattern": "[ob]*s"}, ["orders", "bills"]),
        ({"prefix": "orders."}, ["orders.eu", "orders.eu.dead"]),
        ({"prefix": "orders.", "pattern": "*dead"}, ["orders.eu.dead"]),
        ({"prefix": "*"}, []),
        ({"pattern": "nothing*"}, []),
    ],
)
async def test_a_pattern_and_a_prefix_choose(boot: Boot, arguments: dict[str, Any], found: list[str]) -> None:
    _, client = await started(boot, NAMES)
    reply = await ask(client, **arguments)
    assert (reply["subjects"], reply["more"]) == (found, False)


@pytest.mark.parametrize("pattern", ["o[r", "o]", "*[", "[", "[]", "[[]r]*", "[!]]*", "[o][r]d[", "[[o]*["])
async def test_a_bracket_that_is_not_closed_is_that_character(boot: Boot, pattern: str) -> None:
    names = ["o[r", "o]", "order", "[", "ord[", "o[", "[r]x", "[]"]
    _, client = await started(boot, names)
    assert (await ask(client, pattern=pattern))["subjects"] == [name for name in names if fnmatchcase(name, pattern)]


async def test_brackets_that_are_not_closed_cost_no_more_than_their_number(boot: Boot) -> None:
    """The standard library looks for the end of each of them: seconds for so many."""
    host, _ = await started(boot, [])
    listed = subjects.Subjects(host.server.parts.files.names)
    began = time.process_time()
    asked = ListSubjects(pattern="[" * 50_000, max=1)
    page = await listed.page(asked, Work(host.server.fair_turns, Account()), EVERYTHING)
    assert page.subjects == [] and time.process_time() - began < 2.0


async def test_pages_hold_every_subject_once_and_lead_to_new_ones_later(boot: Boot) -> None:
    _, client = await started(boot, NAMES)
    found, after = [], 0
    for _ in range(len(NAMES)):
        reply = await ask(client, max=1, after=after)
        found += reply["subjects"]
        after = reply["next"]
        assert len(reply["subjects"]) == 1
    assert found == NAMES
    assert await ask(client, after=after) == {"subjects": [], "next": after, "more": False}
    # A consumer group and a subject without a message are not listed.
    await client.request("pull", {"subject": "orders", "group": "orders.group"})
    await client.request("pull", {"subject": "never", "group": "g"})
    await client.send({"subject": "orders.late", "body": "", "delay_ms": 0})
    reply = await ask(client, after=after, pattern="orders*")
    assert (reply["subjects"], reply["more"]) == (["orders.late"], False)
    assert reply["next"] > after


async def test_a_page_without_a_match_says_that_there_is_more(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "SCANNED_MAX", 3)
    _, client = await started(boot, NAMES)
    found, after, pages = [], 0, 0
    more = True
    while more:
        reply = await ask(client, pattern="o", after=after)
        found += reply["subjects"]
        after, more, pages = reply["next"], reply["more"], pages + 1
    assert found == ["o"] and pages > 1


async def test_an_after_of_another_directory_begins_anew(boot: Boot) -> None:
    _, client = await started(boot, ["a", "b"])
    assert (await ask(client, after=1 << 20))["subjects"] == ["a", "b"]


async def test_subjects_are_listed_after_a_restart(boot: Boot) -> None:
    host, _ = await started(boot, NAMES)
    await host.restart()
    assert (await ask(await host.client()))["subjects"] == NAMES


async def test_ten_thousand_names_are_looked_at_in_slices(boot: Boot) -> None:
    host = boot(small_settings())
    host, client = await boot.connected(
        replace(host.settings, message=replace(host.settings.message, subjects_max=20_000))
    )
    names = [f"s{number}" for number in range(10_000)]
    for first in range(0, 10_000, 1000):
        await client.send(*[{"subject": name, "body": "", "delay_ms": 60_000} for name in names[first : first + 1000]])
    taken = host.server.fair_turns.taken
    reply = await ask(client, pattern="s*9")
    assert reply["subjects"] == [name for name in names if name.endswith("9")]
    assert host.server.fair_turns.taken - taken >= 10_000 // 128 // 2
