"""`redispatch`: a range is delivered again, from a stopped directory and by a running server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from delayserver.client import Client
from store.records.record import HEADER_BYTES, decode_header
from tests.delayserver.recover.damaging import flip, records
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, copy, in_process, recover

WHOLE = {"unreadable": 0, "damages": []}
EVERYTHING = ("--from", "2020-01-01T00:00Z", "--to", "2100-01-01T00:00Z")


def pull_all(client: Client, subject: str, group: str, count: int) -> list[str]:
    """Message ids, until so many came, and what comes within a moment more."""
    ids: list[str] = []
    while len(ids) < count:
        pulled = client.pull(subject, group, 1000, 60)
        assert pulled, f"{len(ids)} of {count} came"
        ids += [delivery.message_id for delivery in pulled]
    return ids + [delivery.message_id for delivery in client.pull(subject, group, 1000, 0.2)]


def test_a_dry_run_counts_and_writes_nothing(made: Made) -> None:
    before = {path: path.read_bytes() for path in made.path.rglob("*.log")}
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--dry-run", "--json")
    assert done.rows == [{"messages": 300, "dry_run": True, "waiting": 0, **WHOLE}]
    assert {path: path.read_bytes() for path in made.path.rglob("*.log")} == before
    expired = in_process("redispatch", str(made.path), *EVERYTHING, "--dry-run", "--json", "--outcome", "expired")
    assert expired.rows == [{"messages": 1, "dry_run": True, "waiting": 0, **WHOLE}]


def test_the_next_start_delivers_messages_that_redispatch_wrote_into_a_stopped_directory(made: Made) -> None:
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--subject", "orders", "--yes", "--json")
    assert done.rows == [{"messages": 300, "dry_run": False, "waiting": 0, **WHOLE}]
    assert in_process("check", str(made.path)).code == 0
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        ids = pull_all(client, "orders", "fresh", 600)
        assert client.status()["accepted"] == made.accepted
        server.stop()
    assert (len(ids), len(set(ids))) == (600, 300)
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["accepted"], done.last["delivered"]) == (0, made.accepted, 300)
    assert done.last["internal"] == 301


def test_a_broker_that_lost_its_data_gets_everything_again(made: Made) -> None:
    for path in sorted((made.path / "broker").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        assert client.pull("orders", "fresh", 10, 0.2) == []
        done = recover("redispatch", "--server", server.address, *EVERYTHING, "--yes", "--json")
        assert (done.code, done.rows) == (0, [{"messages": 300, "dry_run": False, **WHOLE}])
        ids = pull_all(client, "orders", "fresh", 300)
        assert (len(ids), len(set(ids))) == (300, 300)
        server.stop()
    assert in_process("check", str(made.path)).code == 0


def test_a_running_server_with_a_secret_redispatches_for_an_operator_with_its_configuration(
    stopped: Made, tmp_path: Path
) -> None:
    made, config = copy(stopped, tmp_path / "data"), tmp_path / "delayserver.toml"
    config.write_text('[listen]\nserver_secret = "at least sixteen characters"\n')
    other = tmp_path / "other.toml"
    other.write_text('[listen]\nserver_secret = "sixteen other characters"\n')
    with ServerProcess(made.path, "--config", str(config), *SMALL) as server:
        asked = ("redispatch", "--server", server.address, *EVERYTHING, "--dry-run", "--json")
        for wrong in ((), ("--config", str(other))):
            done = recover(*asked, *wrong)
            assert done.code and "server_not_proven" in done.err and "server_secret" in done.err
        done = recover(*asked, "--config", str(config))
        assert (done.code, done.rows[0]["messages"]) == (0, 300)
        server.stop()
    assert in_process("redispatch", str(made.path), *EVERYTHING, "--config", str(config), "--dry-run").code == 2


@pytest.fixture(scope="module")
def three_records(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Three records of forty delivered messages in one schedule file, and two more in a window of their own."""
    path = tmp_path_factory.mktemp("three") / "data"
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        made = Made(path, server.server_id)
        due_ms = client.ping() // 1000 // 60_000 * 60_000 - 120_000
        for number in range(3):
            sent = client.send_columns("orders", due_ms, [b"body %d" % number] * 40)
            client.lookup(sent.receipts()[0])  # answered after its replay: the next ones are another record
        client.send_columns("others", due_ms + 60_000, [b"untouched"] * 2)
        deadline = time.monotonic() + 60
        while client.status()["delivered"] < 122:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.stop()
    return made


def place_of(made: Made, part: str) -> tuple[Path, int, int, int]:
    """(file, start of the record, byte to flip, messages that it hides) of the second record or the first outcomes."""
    [schedule, _] = sorted(made.path.glob("schedule_log/*/*.direct.log"))
    if part == "outcomes":
        path = made.path / "dispatch_log" / schedule.parent.name / schedule.name.replace(".direct", "")
        start, _, _ = records(path)[0]
        return path, start, start + HEADER_BYTES + 24, decode_header(path.read_bytes()[64:128], 64).count
    start, blob, _ = records(schedule)[1]
    return schedule, start, {"header": start + 20, "columns": start + HEADER_BYTES + 24, "body": blob + 5}[part], 40


@pytest.mark.parametrize("part", ["header", "columns", "body", "outcomes", "file header"])
@pytest.mark.parametrize("online", [False, True])
def test_damage_is_named_and_counted_and_the_rest_is_delivered_again(
    three_records: Made, tmp_path: Path, part: str, online: bool
) -> None:
    made = copy(three_records, tmp_path / "data")
    path, start, offset, hidden = place_of(made, "header" if part == "file header" else part)
    if part == "file header":
        start, offset, hidden = 0, 20, 0  # its records are read all the same
    if part in ("header", "columns") and not online:
        hidden = 0  # message_log has them too
    flip(path, offset)
    asked = (*EVERYTHING, "--json", "--outcome", "delivered")
    counted = 122 if part == "body" else 122 - hidden  # a dry run does not read the bytes of messages
    if online:
        with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
            dry = recover("redispatch", "--server", server.address, *asked, "--dry-run")
            done = recover("redispatch", "--server", server.address, *asked, "--yes")
            assert not client.status()["errors"].get("internal_error")
            ids = pull_all(client, "orders", "fresh", 120 + 120 - hidden)
    else:
        dry, done = (in_process("redispatch", str(made.path), *asked, option) for option in ("--dry-run", "--yes"))
        with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
            ids = pull_all(client, "orders", "fresh", 120 + 120 - hidden)
    assert (dry.last["messages"], dry.last["unreadable"]) == (counted, 122 - counted)
    assert (done.last["messages"], done.last["unreadable"]) == (122 - hidden, hidden)
    assert done.code == (1 if hidden else 0)
    named = [(damage["file"], damage["offset"]) for damage in done.last["damages"]]
    assert named == ([(str(path), start)] if hidden or not online else [])
    # The broker still has the first delivery of each; what damage hides came that once.
    assert (len(ids), len(set(ids))) == (240 - hidden, 120)


def test_redispatch_names_the_file_and_the_offset_of_damage(three_records: Made, tmp_path: Path) -> None:
    made = copy(three_records, tmp_path / "data")
    path, start, offset, _ = place_of(made, "body")
    flip(path, offset)
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--yes")
    assert done.code == 1
    assert done.out.splitlines()[:2] == [
        "82 messages will be delivered again at the next start of the server",
        "40 more could not be read:",
    ]
    assert f"{path}: corrupt at offset {start}: " in done.out
    elsewhere = in_process("redispatch", str(made.path), "--from", "2020-01-01T00:00Z", "--to", "2020-01-02T00:00Z")
    assert (elsewhere.code, elsewhere.out) == (
        0,
        "0 messages will be delivered again at the next start of the server\n",
    )


def test_redispatch_refuses_wrong_arguments(stopped: Made) -> None:
    path = str(stopped.path)
    for wrong in (
        (path,),
        (path, "--from", "2020-01-01T00:00Z"),
        (path, *EVERYTHING, "--server", "127.0.0.1:1"),
        EVERYTHING,
        (path, *EVERYTHING, "--outcome", "cancelled"),
        (path, *EVERYTHING, "--subject", "nobody"),
        (path, "--from", "2100-01-01T00:00Z", "--to", "2020-01-01T00:00Z"),
    ):
        assert in_process("redispatch", *wrong, "--yes").code == 2, wrong
