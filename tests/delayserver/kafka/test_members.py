"""Members as processes: one is killed, stopped, told to stop, or loses its log. Nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import InDoubt, SharedLogUnavailable
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import run, start
from tests.delayserver.kafka.following import UNHURRIED_S
from tests.delayserver.kafka.processes import Cluster, running
from tests.delayserver.kafka.test_kafka_log import delete

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(one_node: KafkaNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two members. Each test leaves both running, and takes whoever leads."""
    with running(one_node, tmp_path_factory.mktemp("cluster"), "ab") as members:
        yield members


def standby_of(cluster: Cluster, primary: str) -> str:
    return next(name for name in cluster.members if name != primary)


def require_all_once(cluster: Cluster, group: str) -> None:
    assert set(cluster.consumed(group).values()) == {1}


def test_a_killed_primary_loses_nothing_and_repeats_nothing(cluster: Cluster) -> None:
    first = cluster.primary()
    with cluster.under_load():
        cluster.members[first].signal(signal.SIGKILL)
        assert cluster.members[first].end()[0] == -signal.SIGKILL
    second = cluster.primary()
    assert second != first
    cluster.members[first].begin()
    said = cluster.members[first].ready()
    assert (said["member"], said["standing"], said["primary"]) == (first, "standby", second)
    require_all_once(cluster, "killed")
    done = run("report", "latency", str(cluster.members[second].folder / second), "--json")
    [takeover] = json.loads(done.out)["takeovers"]
    assert (takeover["epoch"], takeover["first_record_ms"] >= takeover["without_primary_ms"]) == (2, True)
    assert takeover["planned"] is None, "a directory shows hand-overs alone"


def test_a_check_compares_a_directory_with_the_log(cluster: Cluster) -> None:
    standby = cluster.members[standby_of(cluster, cluster.primary())]
    cluster.send(5)
    command = ("recover", "check", str(standby.folder / standby.name), "--against-log", str(standby.file), "--json")
    check = start(*command)
    out, err = check.communicate(timeout=UNHURRIED_S)
    assert check.returncode == 0, (out[-2000:], err)
    log = json.loads(out.splitlines()[-1])["log"]
    assert log["start"] == 0 < log["stop"] <= log["end"]
    assert log["records"] > 0, "of message_log: an envelope of the log may have several"


def test_an_audit_of_any_member_finds_each_message_once(cluster: Cluster) -> None:
    for member in cluster.members.values():
        done = run("report", "completeness", str(member.folder / member.name), "--json")
        assert done.code == 0, (done.out[-2000:], done.err)
        found = json.loads(done.out)
        assert found["balanced"]
        assert found["accepted"] - found["deduplicated"] == len(cluster.sent)
    both = run("report", "completeness", *[str(member.folder / member.name) for member in cluster.members.values()])
    assert "another member of its shard" in both.err


def test_a_primary_that_was_stopped_goes_on_as_a_standby(cluster: Cluster) -> None:
    first = cluster.primary()
    with cluster.under_load():
        cluster.members[first].signal(signal.SIGSTOP)
    second = cluster.primary()
    cluster.members[first].signal(signal.SIGCONT)
    cluster.send(5)
    # The same process takes over again.
    cluster.members[second].signal(signal.SIGKILL)
    cluster.members[second].end()
    assert cluster.primary() == first
    cluster.members[second].begin()
    cluster.members[second].ready()
    require_all_once(cluster, "stopped")


def test_kafka_that_is_away_costs_no_epoch_and_the_primary_goes_on(one_node: KafkaNodes, cluster: Cluster) -> None:
    primary = cluster.primary()
    epochs = {row["member"]: row["epoch"] for row in cluster.run("status", "--json").rows}
    cluster.send(5, delay_ms=2_000)
    one_node.pause(1)
    try:
        assert refused_by_name(cluster.members[primary].address)
    finally:
        one_node.resume(1)
    cluster.send(5)
    assert cluster.primary() == primary
    assert {row["member"]: row["epoch"] for row in cluster.run("status", "--json").rows} == epochs
    require_all_once(cluster, "away")


def refused_by_name(address: str) -> bool:
    """Whether a member refuses messages since the log does not answer. It does so some seconds after the last answer."""
    for number in range(UNHURRIED_S):
        with suppress(InDoubt), Client(address, timeout_s=1, retries=0) as client:
            try:
                client.send("away", "x", delay_ms=0, message_id=f"away{number}")
            except SharedLogUnavailable:
                return True
    return False


def standings(cluster: Cluster) -> dict[str, Any]:
    return {row["member"]: row for row in cluster.run("status", "--json").rows}


def test_status_tells_what_each_member_does(cluster: Cluster) -> None:
    primary = cluster.primary()
    rows = standings(cluster)
    # A lag is not told while the log is late with its answer.
    while any(row["lag_records"] is None for row in rows.values()):
        rows = standings(cluster)
    assert rows.keys() == cluster.members.keys()
    assert all(row["shard"] == 0 and row["epoch"] == rows[primary]["epoch"] for row in rows.values())
    assert rows[primary]["role"] == "primary"
    standby = standby_of(cluster, primary)
    assert rows[standby]["role"] == "standby"
    assert rows[standby]["lag_records"] < 100
    address = cluster.members[standby].address
    assert run("cluster", "status", "--server", address, "--json").row["member"] == standby
    assert rows[standby]["log"] == {**rows[primary]["log"], "end": rows[standby]["log"]["end"]}
    log = rows[primary]["log"]
    assert (log["copies"], log["in_sync"], log["in_sync_min"], log["faults"]) == (1, 1, 1, [])
    assert 0 == log["first"] < log["end"]
    told = cluster.run("status").out
    assert f"if {primary} dies now: {standby} goes on" in told
    assert "Kafka, shard 0: 1 copies, 1 of them in sync; 1 have a record before it counts" in told
    assert "Kafka, members: 1 copies" in told
    cluster.members[standby].signal(signal.SIGSTOP)
    try:
        rows = {row["member"]: row for row in cluster.run("status", "--json").rows}
        assert (rows[standby]["role"], rows[standby]["lag_records"]) == ("unknown", None)
        told = cluster.run("status").out
        assert f"if {primary} dies now: NOTHING IS SERVED" in told
    finally:
        cluster.members[standby].signal(signal.SIGCONT)


def test_a_member_that_is_gone_is_forgotten_until_it_starts_again(cluster: Cluster) -> None:
    primary = cluster.primary()
    standby = cluster.members[standby_of(cluster, primary)]
    refused = cluster.run("forget", "--member", standby.name)
    assert (refused.code, f"{standby.name} answers at {standby.address}" in refused.err) == (1, True)
    standby.signal(signal.SIGTERM)
    assert standby.end()[0] == 0
    done = cluster.run("forget", "--member", standby.name, "--json")
    assert (done.code, done.row["member"]) == (0, standby.name), done.err
    assert [row["member"] for row in cluster.run("status", "--json").rows] == [primary]
    unknown = cluster.run("forget", "--member", standby.name)
    assert (unknown.code, f"no member {standby.name}" in unknown.err) == (1, True)
    standby.begin()
    standby.ready()
    assert {row["member"] for row in cluster.run("status", "--json").rows} == cluster.members.keys()


def test_a_switch_under_load_loses_nothing_and_repeats_nothing(cluster: Cluster) -> None:
    first = cluster.primary()
    heir = standby_of(cluster, first)
    with cluster.under_load():
        done = cluster.run("switch", "--shard", "0", "--to", heir, "--json")
        assert done.code == 0, done.err
        assert done.row["primary"] == heir
    assert cluster.primary() == heir
    assert f"{heir} leads shard 0 already" in cluster.run("switch", "--to", heir).out
    refused = cluster.run("switch", "--to", "zoe")
    assert (refused.code, "no member zoe of shard 0 answers" in refused.err) == (1, True)
    require_all_once(cluster, "switched")
    done = run("report", "latency", "--cluster", str(cluster.members[heir].file), "--json")
    planned = [each["planned"] for each in json.loads(done.out)["takeovers"]]
    assert (planned[0], planned[-1]) == (False, True), "the first one was killed"


def test_a_primary_that_ends_hands_over(cluster: Cluster) -> None:
    first = cluster.primary()
    with cluster.under_load():
        cluster.members[first].signal(signal.SIGTERM)
        assert cluster.members[first].end()[0] == 0
    assert cluster.primary() == standby_of(cluster, first)
    cluster.members[first].begin()
    cluster.members[first].ready()
    require_all_once(cluster, "ended")


def test_a_member_stays_down_where_its_directory_is_damaged_or_that_of_another_one(cluster: Cluster) -> None:
    """By its exit code: systemd starts it again otherwise, and that does not help."""
    primary = cluster.primary()
    standby = cluster.members[standby_of(cluster, primary)]
    standby.signal(signal.SIGTERM)
    assert standby.end()[0] == 0
    own, aside = standby.folder / standby.name, standby.folder / "aside"
    (own / "names.log").rename(aside)
    standby.begin()
    code, said = standby.end()
    assert (code, "Error: damaged: " in said, "recover rebuild" in said) == (3, True, True), said
    aside.rename(own / "names.log")
    name, standby.name = standby.name, "zoe"
    own.rename(standby.folder / "zoe")
    (standby.folder / "zoe.toml").write_text(
        (standby.folder / f"{name}.toml").read_text().replace(f'"{name}"', '"zoe"')
    )
    standby.begin()
    code, said = standby.end()
    assert (code, "Error: wrong directory: " in said) == (3, True), said
    standby.name = name
    (standby.folder / "zoe").rename(own)
    standby.begin()
    assert standby.ready()["standing"] == "standby"
    unknown = cluster.run("forget", "--member", "zoe")
    assert (unknown.code, "no member zoe" in unknown.err) == (1, True), "it never said where it is"


def test_a_lost_log_ends_all_members_by_name_and_they_heal_it(one_node: KafkaNodes, cluster: Cluster) -> None:
    primary = cluster.primary()
    cluster.send(5, delay_ms=20_000)
    text = cluster.members[primary].file.read_text()
    topic = text.partition('topic = "')[2].partition('"')[0]
    delete(one_node, topic)
    for member in cluster.members.values():
        code, said = member.end()
        assert (code, topic in said.splitlines()[-1]) == (3, True), said
    member = cluster.members[primary]
    member.begin()
    code, said = member.end()
    assert code == 3
    assert "does not exist" in said
    assert "delayserver cluster init" in said
    assert cluster.run("init").code == 0
    member.begin()
    code, said = member.end()
    assert (code, "delayserver cluster heal" in said) == (3, True), said
    healing = [
        start("cluster", "heal", "--cluster", str(each.file), "--data-dir", str(each.folder / each.name), "--json")
        for each in cluster.members.values()
    ]
    for process in healing:
        out, err = process.communicate(timeout=UNHURRIED_S)
        assert (process.returncode, json.loads(out)["position"]) == (0, 0), err
    for each in cluster.members.values():
        each.begin()
        each.ready()
    cluster.send(5)
    first = cluster.primary()
    cluster.members[first].signal(signal.SIGKILL)
    cluster.members[first].end()
    assert cluster.primary() != first
    require_all_once(cluster, "healed")
    cluster.members[first].begin()
    cluster.members[first].ready()
    works = cluster.run("heal", "--data-dir", str(next(iter(cluster.members.values())).folder / "a"))
    assert (works.code, "in use" in works.err) == (1, True), works.err
