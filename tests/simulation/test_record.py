"""The record of a long run: it is resumed where it ended, and says what ran on which code."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.many import run_many
from tests.simulation.record import FOLDERS, ROOT, Record, code_digest
from tests.simulation.run import Result


def test_what_the_present_code_ran_is_done_and_a_half_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    old, new = Record(path, "old"), Record(path, "new")
    old.append(Result(1, cpu_s=0.5, crashes=3))
    new.append(Result(2, cpu_s=0.25, crashes=2, simulated_h=48))
    with path.open("a") as file:
        file.write('{"seed": 3, "co')
    assert old.done() == {1}
    assert new.done() == {2}
    new.append(Result(4, failure="lost", cpu_s=0.75, crashes=4, simulated_h=24))
    assert new.done() == {2, 4}


def test_the_summary_speaks_of_the_present_code_only(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    Record(path, "old").append(Result(1, failure="lost long ago"))
    record = Record(path, "new")
    for seed, failure in ((2, ""), (3, "lost"), (3, ""), (4, "early")):
        record.append(Result(seed, failure=failure, cpu_s=seed / 10, crashes=seed, simulated_h=24 * seed))
    summary = record.summary()
    assert (summary.seeds, summary.failed, summary.others) == (3, [4], 1)
    assert (summary.core_s_median, summary.crashes, summary.hours_median) == (0.3, 9, 72)
    assert "python -m tests.simulation --seed 4" in summary.text()


def test_the_digest_follows_every_file_that_a_seed_runs(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "part.py").write_text("one\n")
    seen = {code_digest(tmp_path)}
    for folder in FOLDERS:
        (tmp_path / folder / "part.py").write_text("two\n")
        seen.add(code_digest(tmp_path))
    assert len(seen) == len(FOLDERS) + 1
    assert code_digest() == code_digest(ROOT)


def test_several_processes_find_what_one_finds() -> None:
    seeds = range(4)
    alone = {result.seed: result.digest for result in run_many(seeds, 1)}
    assert {result.seed: result.digest for result in run_many(seeds, 2)} == alone


def test_no_seed_is_begun_after_the_time() -> None:
    assert not list(run_many(range(4), 1, seconds=0))
