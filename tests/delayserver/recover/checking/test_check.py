"""`recover check`: what a healthy directory looks like, and that each wrong in it is named."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from delayserver.client import Client
from tests.delayserver.recover.directories import Made, ServerProcess, fill, recover

COUNTS = {
    "accepted": 397,
    "delivered": 300,
    "cancelled": 3,
    "expired": 1,
    "deduplicated": 1,
    "rolled_back": 0,
    "dead_lettered": 0,
    "pending": 92,
    "internal": 1,
}


def test_every_message_of_a_clean_stop_is_accounted_for(stopped: Made) -> None:
    done = recover("check", str(stopped.path), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.last["clean"] is True
    assert done.last["findings"] == []
    assert {name: done.last[name] for name in COUNTS} == COUNTS
    assert stopped.accepted == COUNTS["accepted"]


def test_the_lines_before_the_last_add_up_to_it(stopped: Made) -> None:
    *places, last = recover("check", str(stopped.path), "--json").rows
    for name in COUNTS:
        assert sum(place[name] for place in places) == last[name]
    for place in places:
        ended = ("delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "rolled_back", "pending")
        assert place["accepted"] == sum(place[name] for name in ended)
    assert {place["tier"] for place in places} == {"minute", "day"}
    assert {place["subject"] for place in places} == {"orders", "mails", "far", "single"}


def test_a_killed_server_leaves_a_directory_without_fault(killed: Made) -> None:
    done = recover("check", str(killed.path), "--json")
    assert done.code == 0
    assert {name: done.last[name] for name in COUNTS} == COUNTS


def test_a_range_counts_the_windows_that_it_touches_and_nothing_else(stopped: Made) -> None:
    *places, _ = recover("check", str(stopped.path), "--json").rows
    for place in places:
        if place["tier"] != "minute":
            continue
        start = f"{place['start_ms'] / 1000:.0f}"
        instant = _iso(place["start_ms"] + 1)
        done = recover("check", str(stopped.path), "--json", "--from", instant, "--to", _iso(place["start_ms"] + 2))
        assert done.code == 0
        assert {row["start_ms"] for row in done.rows[:-1]} == {int(start) * 1000}
        assert done.last["accepted"] == sum(p["accepted"] for p in places if p["start_ms"] == place["start_ms"])


def test_a_check_beside_a_running_server_finds_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, Client(server.address) as client:
        made = Made(tmp_path / "data", server.server_id)
        fill(client, made)
        done = recover("check", str(made.path), "--json")
        assert (done.code, done.last["findings"]) == (0, [])
        assert done.last["accepted"] == made.accepted
        for part in range(10):
            client.send_columns("load", client.ping() // 1000 + part, [b"body"] * 1000)
            done = recover("check", str(made.path), "--json")
            assert (done.code, done.last["findings"]) == (0, [])
            assert done.last["accepted"] == made.accepted + 1000 * (part + 1)


def test_a_check_of_no_data_directory_is_wrong_usage(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        done = recover("check", str(path))
        assert done.code == 2
        assert len(done.err.splitlines()[-1]) > 10


def test_nothing_is_changed_by_a_check(made: Made) -> None:
    before = _content(made.path)
    recover("check", str(made.path))
    assert _content(made.path) == before


def _content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def _iso(instant_ms: int) -> str:

    return datetime.fromtimestamp(instant_ms / 1000, UTC).isoformat()
