"""The audit finds what is wrong: hand-made directories with one mistake of each kind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ops.audit.needs_spark import require_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
require_pyspark()

from click.exceptions import ClickException  # noqa: E402 - behind the check that Spark is there

from delayserver.protocol.outcomes import Outcome  # noqa: E402
from delayserver.protocol.receipts import parse_receipt  # noqa: E402
from ops.audit.audit import Audit  # noqa: E402
from ops.audit.command import report  # noqa: E402
from ops.audit.completeness import CompletenessQuestion  # noqa: E402
from ops.audit.latency import LatencyQuestion  # noqa: E402
from ops.audit.log_frames import Range  # noqa: E402
from store.disk.filesystem import RealFileSystem  # noqa: E402
from tests.ops.audit.hand_made import START_MS, HandMade  # noqa: E402

NOW_MS = START_MS + 3_600_000


def _balance(spark: Any, *paths: str, chosen: Range | None = None) -> dict[str, Any]:
    audit = Audit(lambda: spark, RealFileSystem(), paths, lambda _line: None, 0 if spark else 1 << 40)
    question = CompletenessQuestion(chosen or Range(), NOW_MS)
    return audit.completeness(question, broker_log=False, use=lambda made: made.to_map())


def _latency(*paths: str, spark: Any = None, chosen: Range | None = None, by: tuple[str, ...] = ("subject",)) -> Any:
    """The latency report of Spark, or without a session the same report of this process."""
    audit = Audit(lambda: spark, RealFileSystem(), paths, lambda _line: None, 0 if spark else 1 << 40)
    return audit.latency(LatencyQuestion(chosen or Range(), by=by), lambda made: made.to_map())


@dataclass(frozen=True)
class Audited:
    """One audit of many servers, each with mistakes of its own."""

    paths: dict[int, str]
    found: dict[str, Any]

    def balance(self, server: int) -> dict[str, Any]:
        """The figures of one server."""
        (row,) = [row for row in self.found["by_server"] if row["server_id"] == f"{server:012x}"]
        return dict(row)

    def evidence(self, server: int) -> dict[str, list[dict[str, Any]]]:
        """The messages of one server that are listed, by problem."""
        listed = self.found["evidence"].items()
        return {name: [row for row in rows if row["server_id"] == f"{server:012x}"] for name, rows in listed}


WRONG, TWO_ENDS, CANCELLED, DAMAGED, RETIRED, EAST, WEST, MEMBER = range(11, 19)


@pytest.fixture(scope="module")
def audited(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    """Spark joins the logs of all servers at once. What it does for one takes as long as for all."""
    folder = tmp_path_factory.mktemp("servers")
    servers = (_wrong, _two_ends, _cancelled, _damaged, _retired, _east, _west, _member)
    paths = {made.server_id: made.write() for made in [server(folder / server.__name__) for server in servers]}
    checkpoint = Path(paths[DAMAGED], "checkpoint")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    return Audited(paths, _balance(spark, *paths.values()))


def _wrong(path: Path) -> HandMade:
    return HandMade(
        path,
        WRONG,
        messages=[1, 2, 3, 4, 5],
        scheduled=[1, 2, 3, 5],
        unreplayed=[6],  # waits for its replay, and is not lost
        outcomes=[
            (1, Outcome.DELIVERED, 900),
            (2, Outcome.DELIVERED, 800),
            (2, Outcome.DELIVERED, 950),
            (3, Outcome.DELIVERED, -5),
            (9, Outcome.DELIVERED, 100),
        ],
    )


def test_lost_duplicated_early_and_orphaned_are_found_by_name(audited: Audited) -> None:
    found, evidence, path = audited.balance(WRONG), audited.evidence(WRONG), audited.paths[WRONG]
    assert {name: found[name] for name in ("lost", "duplicated", "early", "orphaned")} == {
        "lost": 1, "duplicated": 1, "early": 1, "orphaned": 1,
    }  # fmt: skip
    sequences = {
        name: [row["sequence"] for row in evidence[name]] for name in ("lost", "duplicated", "early", "orphaned")
    }
    assert sequences == {"lost": [4], "duplicated": [2], "early": [3], "orphaned": [9]}
    receipt = parse_receipt(evidence["lost"][0]["receipt"])
    assert (receipt.server_id, receipt.due_ms, receipt.sequence) == (f"{WRONG:012x}", START_MS + 4, 4)
    assert (found["accepted"], found["delivered"], found["pending"], found["overdue"]) == (6, 3, 3, 3)
    late = _latency(path)
    assert (late["count"], late["early"]) == (5, 1)
    assert report.main(["completeness", path, "--json"], standalone_mode=False) == 1


def _two_ends(path: Path) -> HandMade:
    return HandMade(
        path,
        TWO_ENDS,
        messages=[1, 2, 3, 4, 5, 6],
        scheduled=[1, 2, 3, 4, 5, 6],
        cancels=[1, 2, 3, 6],
        outcomes=[
            (1, Outcome.DELIVERED, 900),  # beside its cancel, of which no outcome was recorded
            (2, Outcome.CANCELLED, 0),
            (3, Outcome.CANCELLED, 0),
            (4, Outcome.DELIVERED, 900),  # and cancelled by the file of the day
            (5, Outcome.DELIVERED, 900),
        ],
        coarse=[(3, Outcome.CANCELLED, 0), (4, Outcome.CANCELLED, 0)],
    )  # the outcome of 6 is still to be recorded


def test_a_message_with_two_ends_is_found_and_one_whose_end_was_moved_is_not(audited: Audited) -> None:
    found = audited.balance(TWO_ENDS)
    assert [row["sequence"] for row in audited.evidence(TWO_ENDS)["duplicated"]] == [1, 4]
    assert {name: found[name] for name in ("accepted", "pending", "duplicated", "lost", "orphaned")} == {
        "accepted": 6, "pending": 1, "duplicated": 2, "lost": 0, "orphaned": 0,
    }  # fmt: skip


def _cancelled(path: Path) -> HandMade:
    return HandMade(path, CANCELLED, messages=[1], scheduled=[1], cancels=[2])


def test_a_cancel_of_a_message_that_is_gone_counts_as_no_message(audited: Audited) -> None:
    found = audited.balance(CANCELLED)
    assert (found["accepted"], found["pending"], found["orphaned"], found["lost"]) == (1, 1, 0, 0)


def _member(path: Path) -> HandMade:
    outcomes = [(1, Outcome.DELIVERED, 900), (2, Outcome.CANCELLED, 0)]
    return HandMade(path, MEMBER, messages=[1, 2, 3], scheduled=[1, 2, 3], cancels=[2], outcomes=outcomes, member=True)


def test_what_the_log_of_a_cluster_decided_counts_once_in_a_members_directory(audited: Audited) -> None:
    found = audited.balance(MEMBER)
    names = ("accepted", "delivered", "cancelled", "pending", "duplicated", "lost", "orphaned")
    assert [found[name] for name in names] == [3, 1, 1, 1, 0, 0, 0]
    assert not [row for row in audited.found["corrupt"] if row["server_id"] == f"{MEMBER:012x}"]


def _damaged(path: Path) -> HandMade:
    return HandMade(path, DAMAGED, messages=[1], scheduled=[1])


def test_this_process_and_spark_give_the_same_answers(spark: Any, audited: Audited) -> None:
    paths = list(audited.paths.values())
    assert _balance(None, *paths) == audited.found
    by = ("subject", "hour", "server_id")
    assert _latency(*paths, by=by) == _latency(*paths, spark=spark, by=by)
    chosen = Range(START_MS + 2, START_MS + 4)
    assert _balance(None, *paths, chosen=chosen) == _balance(spark, *paths, chosen=chosen)
    subjects = Range(subjects=(str(EAST), "orders"))
    assert _latency(*paths, chosen=subjects) == _latency(*paths, spark=spark, chosen=subjects)


def test_a_damaged_checkpoint_is_a_finding(audited: Audited) -> None:
    checkpoint = str(Path(audited.paths[DAMAGED], "checkpoint"))
    assert [row["file"] for row in audited.found["corrupt"]] == [checkpoint]
    assert report.main(["completeness", audited.paths[DAMAGED], "--json"], standalone_mode=False) == 1


def test_both_reports_count_messages_that_may_have_been_delivered_twice(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = HandMade(
        tmp_path / "data",
        messages=[1, 2, 3, 4, 5],
        scheduled=[1, 2, 3, 4, 5],
        outcomes=[
            *[(sequence, Outcome.DELIVERED, 900) for sequence in (1, 2, 3, 4)],
            (5, Outcome.CANCELLED, 0),
        ],
        unanswered={2: 1, 3: 255, 4: 1, 5: 1},
        retries=[4],  # a redelivery to one consumer group, which is no message of its own
    ).write()
    found, late = _balance(spark, path), _latency(path)
    assert (found["maybe_twice"], late["attempts"]["maybe_twice"]) == (2, 2)
    assert [row["maybe_twice"] for row in (*found["by_subject"], *found["by_hour"], *found["by_server"])] == [2, 2, 2]
    assert (found["duplicated"], late["attempts"]["by_count"]) == (0, {"1": 3})
    assert report.main(["completeness", path], standalone_mode=False) == 0, "it is no finding"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("maybe_twice")] == [["maybe_twice", "2"]]
    report.main(["latency", path], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("maybe twice")] == [["maybe", "twice", "2"]]
    report.main(["completeness", path, "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["maybe_twice"] == 2
    page = tmp_path / "report.html"
    report.main(["completeness", path, "--out", str(page)], standalone_mode=False)
    for figure in ("completeness.maybe_twice", "latency.attempts.maybe_twice"):
        assert f'<dd data-figure="{figure}">2</dd>' in page.read_text(), figure


def _east(path: Path) -> HandMade:
    return _with_one_delivered(path, EAST)


def _west(path: Path) -> HandMade:
    return _with_one_delivered(path, WEST)


def _with_one_delivered(path: Path, server: int) -> HandMade:
    outcomes = [(1, Outcome.DELIVERED, 1000 * server)]
    return HandMade(path, server, subject=str(server), messages=[1, 2], scheduled=[1, 2], outcomes=outcomes)


def test_servers_with_the_same_sequences_are_distinguished(audited: Audited) -> None:
    figures = ("accepted", "delivered", "pending", "duplicated")
    assert [row["server_id"] for row in audited.found["by_server"]] == [f"{server:012x}" for server in audited.paths]
    for server in (EAST, WEST):
        assert [audited.balance(server)[name] for name in figures] == [2, 1, 1, 0]
        (row,) = [row for row in audited.found["by_subject"] if row["subject"] == str(server)]
        assert [row[name] for name in figures] == [2, 1, 1, 0]
    late = _latency(audited.paths[EAST], audited.paths[WEST])
    assert [(row["subject"], row["lateness_ms"]["max"]) for row in late["by"]] == [("16", 16.0), ("17", 17.0)]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        (("server_id", "minute"), {(f"{7:012x}", "2026-01-01T00:00Z"): 2, (f"{8:012x}", "2026-01-01T00:00Z"): 3}),
        (("hour", "subject"), {("2026-01-01T00:00Z", "east"): 2, ("2026-01-01T00:00Z", "west"): 3}),
        (("broker_group",), {("default",): 5}),
        (("hour",), {("2026-01-01T00:00Z",): 5}),
        ((), {}),
    ],
)
def test_groups_are_by_any_of_the_dimensions(
    tmp_path: Path, by: tuple[str, ...], groups: dict[tuple[str, ...], int]
) -> None:
    paths = [
        HandMade(
            tmp_path / name, server_id=server, subject=name,
            outcomes=[(index, Outcome.DELIVERED, 1000 * server) for index in range(1, count + 1)],
        ).write()
        for server, name, count in ((7, "east", 2), (8, "west", 3))
    ]  # fmt: skip
    found = _latency(*paths, by=by)
    assert {tuple([row[name] for name in by]): row["count"] for row in found["by"]} == groups
    assert (found["count"], len(found["worst_subjects"]), len(found["worst_minutes"])) == (5, 2, 1)


def test_the_worst_and_the_fullest_come_in_order_and_only_the_first_ten(spark: Any, tmp_path: Path) -> None:
    """Twelve subjects, each in a minute of its own, of which two and two are alike: then the earlier name comes first. By
    name, by lateness and by count they stand in three different orders."""
    late_us = {index: (index * 5 % 12 // 2 + 1) * 10_000 for index in range(12)}
    counts = {index: index * 7 % 12 // 2 + 1 for index in range(12)}
    paths = [
        HandMade(
            tmp_path / str(index), server_id=7 + index, start_ms=START_MS + 60_000 * index, subject=f"s{index:02}",
            outcomes=[(number, Outcome.DELIVERED, late_us[index] // number) for number in range(1, counts[index] + 1)],
        ).write()
        for index in range(12)
    ]  # fmt: skip
    found = _latency(*paths, spark=spark)
    worst = sorted(late_us, key=lambda index: (-late_us[index], index))[:10]
    fullest = sorted(counts, key=lambda index: (-counts[index], index))[:10]
    assert len({tuple(worst), tuple(fullest), tuple(range(10))}) == 3
    minutes = [f"2026-01-01T00:{index:02}Z" for index in range(12)]
    assert [row["subject"] for row in found["worst_subjects"]] == [f"s{index:02}" for index in worst]
    assert [row["minute"] for row in found["worst_minutes"]] == [minutes[index] for index in worst]
    assert [row["minute"] for row in found["thundering_minutes"]] == [minutes[index] for index in fullest]
    for rows, order in (("worst_subjects", worst), ("worst_minutes", worst), ("thundering_minutes", fullest)):
        assert [row["lateness_ms"]["max"] for row in found[rows]] == [late_us[index] / 1000 for index in order]
        assert [row["count"] for row in found[rows]] == [counts[index] for index in order]


def _retired(path: Path) -> HandMade:
    # The window's files are gone, one message of it is still in message_log, and so is a later one of another window.
    return HandMade(
        path, RETIRED, messages=[1], retired={"accepted": 10, "delivered": 9, "cancelled": 1, "last_sequence": 5}
    )


def test_retired_windows_count_as_the_ledger_counts_them(audited: Audited) -> None:
    found = audited.balance(RETIRED)
    assert (found["accepted"], found["delivered"], found["cancelled"], found["pending"]) == (10, 9, 1, 0)
    assert (audited.found["retired"], found["lost"], audited.found["balanced"]) == (10, 0, True)


def test_a_range_without_rows_gives_an_honest_empty_report(spark: Any, tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1], outcomes=[(1, Outcome.DELIVERED, 1)]).write()
    retired = _retired(tmp_path / "retired").write()
    empty = _latency(path, chosen=Range(from_ms=NOW_MS))
    assert (empty["count"], empty["by"], empty["slo"]["attained"]) == (0, [], None)
    assert set(empty["lateness_ms"].values()) == {None}
    assert _balance(spark, path, retired, chosen=Range(subjects=("nobody",)))["accepted"] == 0
    found = _balance(spark, path, retired, chosen=Range(from_ms=NOW_MS))
    assert found["accepted"] == 0
    page = tmp_path / "empty.html"
    command = ["latency", path, "--from", "2030-01-01T00:00Z", "--out", str(page)]
    assert report.main(command, standalone_mode=False) == 0
    assert "Nothing was due in this range" in page.read_text()


def test_corruption_is_a_finding_and_the_rest_is_counted(spark: Any, tmp_path: Path) -> None:
    outcomes = [(sequence, Outcome.DELIVERED, 500) for sequence in (1, 2, 3)]
    path = HandMade(tmp_path / "data", messages=[1, 2, 3], scheduled=[1, 2, 3], outcomes=outcomes).write()
    (file,) = Path(path, "dispatch_log").glob("*/*.log")
    data = bytearray(file.read_bytes())
    size = (len(data) - 64) // 3
    data[64 + 70] ^= 0xFF  # within the first record, which later ones call durable
    file.write_bytes(_with_synced(data, size))
    late = _latency(path, spark=spark)
    assert late["count"] == 2
    assert [(row["file"], row["start"]) for row in late["corrupt"]] == [(str(file), 64)]


def _with_synced(data: bytearray, size: int) -> bytes:
    """The last record says that the first was durable before it, as it does once a sync came in between."""
    import google_crc32c

    start = 64 + 2 * size
    data[start + 40 : start + 48] = start.to_bytes(8, "little")
    crc: int = google_crc32c.value(bytes(data[start + 8 : start + 64]))
    data[start + 4 : start + 8] = crc.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("command", ["latency", "completeness"])
def test_a_folder_that_is_no_data_directory_is_refused_in_one_line(spark: Any, tmp_path: Path, command: str) -> None:
    with pytest.raises(ClickException, match="not a data directory"):
        report.main([command, str(tmp_path)], standalone_mode=False)
    with pytest.raises(ClickException, match="no such directory"):
        report.main([command, str(tmp_path / "nothing")], standalone_mode=False)


def test_a_file_of_a_newer_version_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1], outcomes=[(1, Outcome.DELIVERED, 1)]).write()
    (file,) = Path(path, "dispatch_log").glob("*/*.log")
    data = bytearray(file.read_bytes())
    data[8:10] = (9).to_bytes(2, "little")
    import google_crc32c

    data[40:44] = google_crc32c.value(bytes(data[:40])).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(ClickException, match="version 9 is newer"):
        report.main(["latency", path], standalone_mode=False)


def test_the_audit_refuses_a_record_of_a_newer_version_in_one_line(spark: Any, tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1], outcomes=[(1, Outcome.DELIVERED, 1)]).write()
    (file,) = Path(path, "dispatch_log").glob("*/*.log")
    data = bytearray(file.read_bytes())
    data[64 + 10 : 64 + 12] = (9).to_bytes(2, "little")
    import google_crc32c

    data[68:72] = google_crc32c.value(bytes(data[72:128])).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(ClickException, match=r"version 9 .* upgrade this program"):
        report.main(["latency", path], standalone_mode=False)


def test_files_that_vanish_under_the_audit_make_it_begin_again(spark: Any, tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1], outcomes=[(1, Outcome.DELIVERED, 1)]).write()
    said: list[str] = []
    audit = Audit(lambda: spark, RealFileSystem(), (path,), said.append)
    counts: list[int] = []

    def use(made: Any) -> int:
        for file in Path(path, "dispatch_log").glob("*/*.log"):
            file.unlink()
        counts.append(made.to_map()["count"])
        return counts[-1]

    assert audit.latency(LatencyQuestion(Range()), use) == 0
    assert len(counts) == 2
    assert any("retired meanwhile" in line for line in said)
