"""A cluster's log is trimmed to what checked backups have, and a member that has lost its disk starts from one of them."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import Done, run
from tests.delayserver.kafka.processes import running

pytestmark = pytest.mark.kafka
HOUR_MS = 3_600_000


def test_a_member_without_its_disk_starts_from_a_backup_of_a_trimmed_log(one_node: KafkaNodes, tmp_path: Path) -> None:
    place = str(tmp_path / "backups")
    with running(one_node, tmp_path, "ab") as cluster:
        first = cluster.primary()
        second = next(name for name in cluster.members if name != first)
        lost = cluster.members[second]

        def trim(*arguments: str) -> Done:
            return run("cluster", "trim", "--cluster", str(lost.file), "--backups", place, *arguments)

        def covered() -> dict[str, Any]:
            rows = run("cluster", "status", "--cluster", str(lost.file), "--backups", place, "--json").rows
            found: dict[str, Any] = rows[0]["backups"]
            return found

        (tmp_path / "backups").mkdir()
        assert (covered()["last_ms"], covered()["covered"], bool(covered()["uncovered"])) == (None, 0, True)
        for _ in range(2):
            cluster.send(5)
            done = run("backup", "--server", lost.address, "--to", place, "--json")
            assert done.code == 0, done.err
            refused = trim()
            assert (refused.code, "no backup covers the log" in refused.err) == (1, True), refused.err
            told = run("cluster", "status", "--cluster", str(lost.file), "--backups", place).out
            assert "backups, shard 0: NOT COVERED, though the last backup is" in told
            assert covered()["last_ms"] == done.row["taken_ms"]
            checked = run("backup", "check", place, "--json")
            assert checked.row["clean"], checked.out
        covers = [row["covers_position"] for row in run("backup", "list", place, "--json").rows]
        assert 0 < covers[0] <= covers[1]
        assert (covered()["covered"], covered()["trims_to"], covered()["silent"]) == (covers[0], covers[0], [])
        lost.signal(signal.SIGKILL)
        lost.end()
        assert (covered()["trims_to"], covered()["silent"]) == (0, [second])
        unsaid = trim("--json")
        assert (unsaid.code, f"--without {second}" in unsaid.err) == (1, True), unsaid.err
        dry = trim("--json", "--dry-run", "--without", second).row
        assert (dry["trims_to"], dry["removed"], dry["first"]) == (covers[0], 0, 0)
        assert trim("--json", "--without", second).row["removed"] == covers[0]
        shutil.rmtree(tmp_path / second)
        cluster.send(5)
        lost.begin()
        code, said = lost.end()
        assert code != 0 and f"a backup that has position {covers[0]} or a later one" in said, said
        shutil.rmtree(tmp_path / second)
        made = run("restore", "--from", place, "--data-dir", str(tmp_path / second), "--json")
        assert made.row["log_position"] == covers[1]
        lost.begin()
        assert lost.ready()["standing"] == "standby"
        cluster.members[first].signal(signal.SIGKILL)
        cluster.members[first].end()
        assert cluster.primary() == second
        cluster.send(5)
        assert set(cluster.consumed("restored").values()) == {1}
