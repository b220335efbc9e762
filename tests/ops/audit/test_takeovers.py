"""What the takeovers of a shard cost, from the directory of a member: the time without a primary, and what waited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.ops.audit.needs_spark import require_pyspark

require_pyspark()

from delayserver.protocol.outcomes import Outcome  # noqa: E402 - behind the check that Spark is there
from ops.audit.command import report  # noqa: E402
from ops.audit.takeovers import Epoch, Takeover, takeovers_of, together  # noqa: E402
from store.shared.envelope import LogWriter  # noqa: E402
from store.shared.followed import FollowedTo  # noqa: E402
from tests.delayserver.web.chromium import chromium  # noqa: E402
from tests.ops.audit.hand_made import START_MS, HandMade  # noqa: E402

A, B = LogWriter(1, 11), LogWriter(2, 22)
LAST_MS, CLAIMED_MS, FIRST_MS = 3_000, 4_600, 4_700
# Lateness in ms by due time in ms after the start: what the next primary delivered, and what either delivered on time.
WAITED = {2_500: 2_300, 3_500: 1_300, 4_000: 800, 4_590: 200}
ON_TIME = {500: 1, 1_900: 2_800, 2_950: 2, 4_601: 150, 5_000: 1}
RETRY, UNANSWERED = 3_600, 4_000


def at_us(ms: int) -> int:
    return (START_MS + ms) * 1000


def places(wall: bool = True, handed_over: bool = False) -> list[FollowedTo]:
    """As a member writes them: behind what came, and before and behind each claim. After a hand-over without open attempts
    there is no horizon, until the first beat of the next primary."""
    rows = [
        (1, 0, A, 0), (2, 0, A, 100), (7, 5, A, 900), (17, 15, A, LAST_MS),
        (18, 0, B, CLAIMED_MS), (20, 2, B, FIRST_MS), (21, 3, B, 5_100),
    ]  # fmt: skip
    return [
        FollowedTo(
            position, 1 if writer == A else 2, index, writer, _horizon_ms(position, handed_over), 0, at_us(ms) * wall
        )
        for position, index, writer, ms in rows
    ]


def _horizon_ms(position: int, handed_over: bool) -> int:
    return 0 if position < 2 or (handed_over and position in (17, 18)) else START_MS + 6_000


def written(path: Path, wall: bool = True, handed_over: bool = False) -> str:
    late = {**WAITED, **ON_TIME, RETRY: 1_200}
    sequences = sorted(late)
    outcomes = [(sequence, Outcome.DELIVERED, late[sequence] * 1000) for sequence in sequences]
    return HandMade(
        path, messages=sequences, scheduled=sequences, outcomes=outcomes, unanswered={UNANSWERED: 1}, retries=[RETRY],
        member=True, places=places(wall, handed_over),
    ).write()  # fmt: skip


def latency(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(report, ["latency", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_takeover_shows_with_what_waited_for_it(tmp_path: Path) -> None:
    path = written(tmp_path / "data")
    [found] = latency(path)["takeovers"]
    late = found.pop("lateness_ms")
    assert found == {
        "server_id": f"{7:012x}",
        "epoch": 2,
        "from": "2026-01-01T00:00:03.000Z",
        "claimed": "2026-01-01T00:00:04.600Z",
        "planned": None,
        "without_primary_ms": CLAIMED_MS - LAST_MS,
        "first_record_ms": FIRST_MS - LAST_MS,
        "delayed": len(WAITED),
        "maybe_twice": 1,
    }
    assert late["max"] == max(WAITED.values())
    assert 800 <= late["p50"] <= 800 * 1.01
    told = CliRunner().invoke(report, ["latency", path]).output
    assert (
        "takeover" in told
        and "not known how, without a primary for 1.6 s, 4 delayed, at most 2.3 s, 1 maybe twice" in told
    )
    assert latency(path, "--from", "2026-01-01T00:00:10Z")["takeovers"] == []
    assert len(latency(path, "--from", "2026-01-01T00:00:04Z")["takeovers"]) == 1


def test_a_hand_over_shows_as_one(tmp_path: Path) -> None:
    path = written(tmp_path / "data", handed_over=True)
    assert [each["planned"] for each in latency(path)["takeovers"]] == [True]
    assert "by a hand-over, without a primary for 1.6 s" in CliRunner().invoke(report, ["latency", path]).output


@pytest.mark.parametrize(("ends", "planned"), [(True, True), (False, False), (None, None)])
def test_only_who_sees_all_records_knows_that_there_was_no_hand_over(ends: bool | None, planned: bool | None) -> None:
    kinds = None if ends is None else False
    former = Epoch().with_record(0, 10, brings=False, ends=kinds).with_record(1, 20, brings=True, ends=ends)
    later = {(7, 2): Epoch().with_record(0, 90, brings=False, ends=kinds)}
    (found,) = takeovers_of(together({(7, 1): former}, {(7, 1): Epoch(), **later}))
    assert found.planned is planned


def test_a_directory_without_times_shows_no_takeover(tmp_path: Path) -> None:
    assert latency(written(tmp_path / "old", wall=False))["takeovers"] == []
    alone = HandMade(tmp_path / "alone", messages=[1], scheduled=[1], outcomes=[(1, Outcome.DELIVERED, 5)]).write()
    assert latency(alone)["takeovers"] == []


def test_the_page_has_a_table_of_takeovers(tmp_path: Path) -> None:
    path, page = written(tmp_path / "data"), tmp_path / "report.html"
    done = CliRunner().invoke(report, ["latency", path, "--out", str(page)])
    assert done.exit_code == 0, done.output
    with chromium() as browser:
        shown = browser.new_page()
        shown.goto(page.as_uri())
        rows = shown.locator("h2:text-is('Takeovers') + .rows tbody tr").all_inner_texts()
        findings = shown.locator("ul.findings li.note").all_inner_texts()
    assert [row.split("\t")[:8] for row in rows] == [
        [f"{7:012x}", "2", "not known how", "2026-01-01T00:00:03.000Z", "1.6 s", "1.7 s", "4", "1"]
    ]
    assert "Takeovers: 1, at most 1.6 s without a primary; 4 messages waited for the next one." in findings


@pytest.mark.parametrize("swapped", [False, True])
def test_parts_of_an_epoch_come_together_in_any_order(swapped: bool) -> None:
    first = {(7, 1): Epoch().with_record(0, 10, brings=False).with_record(3, 20, brings=True)}
    second = {
        (7, 1): Epoch().with_record(9, 70, brings=False).with_record(5, 40, brings=True),
        (7, 2): Epoch().with_record(0, 90, brings=False),
        (8, 5): Epoch().with_record(0, 50, brings=False),
    }
    found = takeovers_of(together(second, first) if swapped else together(first, second))
    assert found == (Takeover(7, 2, 70, 90, 0),), "what came before epoch 5 of shard 8 is not known"
    assert together(first, second)[7, 1].first == (3, 20)
