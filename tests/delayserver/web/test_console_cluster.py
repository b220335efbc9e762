"""The part of the console that shows the member of a cluster: on a primary, on a standby, and not without a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.delayserver.client.fake_cluster import fake_cluster
from tests.delayserver.client.fake_server import FakeServer
from tests.delayserver.metrics.replies import reply
from tests.delayserver.web.chromium import WAIT_MS, chromium
from tests.delayserver.web.test_console import Desk, violations
from tests.delayserver.web.web_server import Web, gateway_alone

expect.set_options(timeout=WAIT_MS)

MEMBER = {
    "shard": 0, "member": "b", "role": "standby", "epoch": 7, "lag_records": 12, "lag_ms": 1_500, "lease_left_ms": 0,
    "beat_age_ms": None, "proposals": 0, "proposals_bytes": 0, "log_answers": True, "log_unanswered": 0, "log_copies": 3,
    "log_in_sync": 3, "log_in_sync_min": 2, "log_kept": 123_456, "log_faults": [],
}  # fmt: skip
LEADS = {"role": "primary", "lag_records": 0, "lag_ms": 0, "lease_left_ms": 1_100, "beat_age_ms": 90, "proposals": 2}


def metrics(**member: Any) -> dict[str, Any]:
    """A reply of a member, ready if it is the primary."""
    found = reply() | {"ready": member.get("role") == "primary", "cluster": [MEMBER | member]}
    found["waits_for"] = "" if found["ready"] else "another member leads"
    found["storage"]["last_backup_ms"] = found["clock"]["server_us"] // 1000 - 7_200_000
    return found


def status(server: FakeServer, *members: dict[str, Any]) -> dict[str, Any]:
    """A reply of a member to `status`."""
    return {"server_id": server.server_id, "ready": True, "pending": 1_234, "cluster": [*members]}


@pytest.fixture(scope="module")
def gateway() -> Iterator[tuple[FakeServer, Web]]:
    with fake_cluster(shards=1) as cluster, gateway_alone(cluster.addresses) as web:
        cluster.members[0].wrong_replies["status"] = status(cluster.members[0], MEMBER)
        yield cluster.members[0], web


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@contextmanager
def person(window: Browser, web: Web) -> Iterator[Desk]:
    desk = Desk(window, web)
    try:
        yield desk
    finally:
        desk.close()
    assert desk.complaints == []


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_a_standby_shows_how_far_it_is_and_that_nothing_is_wrong(
    window: Browser, gateway: tuple[FakeServer, Web], width: int, dark: bool
) -> None:
    server, web = gateway
    server.wrong_replies["metrics"] = metrics()
    with person(window, web) as desk:
        page = desk.open(width=width, dark=dark, at=f"http://{web.host}:{web.port}/#cluster")
        part = page.locator("#cluster")
        expect(part).to_be_visible()
        expect(part).to_be_in_viewport()
        expect(page.locator("#cluster-lead")).to_have_text("This server is member b of shard 0.")
        expect(page.locator("#cluster-role")).to_have_text("standby")
        for text in ("7 epoch", "12 records behind", "12 records (1.5 s) behind"):
            expect(part).to_contain_text(text)
        for text in ("3 copies", "3 in sync", "2 needed", "123,456 positions kept", "2 h ago last backup"):
            expect(part).to_contain_text(text)
        expect(page.locator("#cases")).not_to_contain_text("not ready")
        expect(page.locator(".ways a[aria-current]")).to_have_text("Cluster")
        assert page.url.endswith("/#cluster"), "a link to it stays one"
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_primary_shows_its_lease_and_what_is_wrong_with_its_log(
    window: Browser, gateway: tuple[FakeServer, Web]
) -> None:
    server, web = gateway
    server.wrong_replies["metrics"] = metrics(
        **LEADS, log_answers=False, log_in_sync=2, log_faults=["retention.ms of topic t is 1, and must be -1"]
    )
    with person(window, web) as desk:
        page = desk.open()
        expect(page.locator("#cluster-role")).to_have_text("primary")
        expect(page.locator("#cluster-facts")).to_contain_text("lease left")
        assert page.locator("#cluster-faults li").all_inner_texts() == [
            "A broker is gone, or lags.",
            "It did not answer the last look.",
            "retention.ms of topic t is 1, and must be -1",
        ]


def test_a_server_without_a_cluster_has_no_such_part(window: Browser, gateway: tuple[FakeServer, Web]) -> None:
    server, web = gateway
    server.wrong_replies["metrics"] = reply() | {"cluster": []}
    with person(window, web) as desk:
        page = desk.open()
        expect(page.locator("#about")).to_contain_text("delayserver")
        expect(page.locator("#cluster")).to_be_hidden()
        expect(page.locator("#cluster-way")).to_be_hidden()
        expect(page.locator("#one-shard")).to_be_hidden()


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_the_console_shows_all_shards_and_what_happens_if_a_member_dies(
    window: Browser, width: int, dark: bool
) -> None:
    with (
        fake_cluster(shards=3) as cluster,
        FakeServer(server_id=cluster.members[0].server_id) as standby,
        FakeServer(server_id=cluster.members[1].server_id) as harmed,
    ):
        cluster.show(0, standbys=[standby.address])
        cluster.show(2, standbys=["127.0.0.1:1"])
        a, c, d = cluster.members
        a.wrong_replies["metrics"] = metrics(**LEADS, member="a")
        a.wrong_replies["status"] = status(a, MEMBER | LEADS | {"member": "a"})
        standby.wrong_replies["status"] = status(standby, MEMBER)
        cluster.show(1, standbys=[harmed.address])
        harmed.wrong_replies["status"] = status(harmed, MEMBER | {"shard": 1, "member": "h", "damaged": True})
        faults = ["retention.ms of topic t is 1, and must be -1"]
        c.wrong_replies["status"] = status(c, MEMBER | LEADS | {"shard": 1, "member": "c", "log_faults": faults})
        d.close()
        with gateway_alone(a.address) as web, person(window, web) as desk:
            page = desk.open(width=width, dark=dark, at=f"http://{web.host}:{web.port}/#cluster")
            shards = page.locator("#cluster-shards article")
            expect(shards).to_have_count(3)
            for text in ("Shard 0", "open", "1,234 pending", "3 copies in Kafka", "123,456 positions kept"):
                expect(shards.nth(0)).to_contain_text(text)
            expect(shards.nth(0)).to_contain_text("if it dies now: b goes on, some two seconds later")
            expect(shards.nth(0)).to_contain_text(
                "12 records (1.5 s) behind · if it dies now: nothing stops, but the primary has no standby then"
            )
            expect(shards.nth(1)).to_contain_text("NOTHING IS SERVED until it, or another member, is back")
            expect(shards.nth(1)).to_contain_text(faults[0])
            expect(shards.nth(1)).to_contain_text("look after its log")
            expect(shards.nth(1)).to_contain_text("standby, damaged")
            expect(shards.nth(1)).to_contain_text("damaged: it does not lead again")
            expect(shards.nth(2)).to_contain_text("no answer")
            expect(shards.nth(2)).to_contain_text("primary by the map")
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (400, True)])
def test_a_gateway_of_several_shards_says_of_which_one_the_figures_are(window: Browser, width: int, dark: bool) -> None:
    with fake_cluster(shards=3) as cluster:
        for shard, member in enumerate(cluster.members):
            name = "abc"[shard]
            member.wrong_replies["metrics"] = metrics(**LEADS, shard=shard, member=name)
            member.wrong_replies["status"] = status(member, MEMBER | LEADS | {"shard": shard, "member": name})
        with gateway_alone(cluster.addresses) as web, person(window, web) as desk:
            page = desk.open(width=width, dark=dark)
            note = page.locator("#one-shard")
            expect(note).to_be_visible()
            expect(note).to_contain_text("those of shard 0, at its member a. The cluster has 3 shards.")
            if picture := os.environ.get("CONSOLE_PICTURE"):
                page.screenshot(path=f"{picture}-{width}.png")
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
