"""The record of a long run: it is resumed where it ended, and says what ran on which code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.simulation.many import run_bounded, run_many
from tests.simulation.record import ROOT, START, Code, Record, code_digest, files_of_a_seed
from tests.simulation.run import Result

OLD, NEW = Code("old", "judge"), Code("new", "judge")


def test_what_the_present_code_ran_is_done_and_a_half_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    old, new = Record(path, OLD), Record(path, NEW)
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
    Record(path, OLD).append(Result(1, failure="lost long ago"))
    record = Record(path, NEW)
    for seed, failure in ((2, ""), (3, "lost"), (3, ""), (4, "early")):
        record.append(Result(seed, failure=failure, cpu_s=seed / 10, crashes=seed, simulated_h=24 * seed))
    summary = record.summary()
    assert (summary.seeds, summary.failed, summary.others) == (3, ["--seed 4"], 1)
    assert (summary.core_s_median, summary.crashes, summary.hours_median) == (0.3, 9, 72)
    assert "python -m tests.simulation --seed 4" in summary.text()


def test_another_judge_repeats_what_failed_and_takes_nothing_from_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    record = Record(path, NEW)
    record.append(Result(1))
    record.append(Result(2, failure="lost"))
    judged = Record(path, Code("new", "mended"))
    assert judged.done() == {1}
    judged.append(Result(2))
    judged.append(Result(3, failure="early"))
    assert judged.done() == {1, 2, 3}
    summary = judged.summary()
    assert (summary.seeds, summary.judges, summary.failed) == (3, 2, ["--seed 3"])
    assert "3 seeds by 2 versions of the simulation, 1 failed" in summary.text()


def test_the_digest_follows_every_file_that_a_seed_reaches(tmp_path: Path) -> None:
    texts = {
        START: "import part\nimport tests.judge\nfrom package.inner import name\n",
        "part.py": "class A:\n    from package import other\n",
        "package/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tool\n",
        "package/inner.py": "name = 1\n",
        "package/other.py": "def late():\n    import tool\n",
        "tool.py": "",
        "tests/judge.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = code_digest(tmp_path)
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "# changed\n")
        before, after = code, code_digest(tmp_path)
        changed = [name for name in ("server", "judge") if getattr(before, name) != getattr(after, name)]
        expected = [] if name == "tool.py" else ["judge" if name.startswith("tests/") else "server"]
        assert changed == expected, name
        code = after


def test_what_a_seed_loads_is_in_the_digest() -> None:
    program = (
        "import sys\n"
        "from tests.simulation.run import run_seed\n"
        "run_seed(1)\n"
        "print(*(module.__file__ for module in sys.modules.values() if getattr(module, '__file__', None)), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    packages = [ROOT / name for name in ("delayserver", "store", "wheel", "ops", "tests")]
    loaded = {Path(line) for line in done.stdout.splitlines()}
    ours = {path for path in loaded if any(path.is_relative_to(package) for package in packages)}
    assert len(ours) > 100
    assert not ours - set(files_of_a_seed())


def test_several_processes_find_what_one_finds() -> None:
    seeds = (1, 2)
    alone = {result.seed: result.digest for result in run_many(seeds, run_bounded, 1)}
    assert {result.seed: result.digest for result in run_many(seeds, run_bounded, 2)} == alone


def test_no_seed_is_begun_after_the_time() -> None:
    assert not list(run_many(range(4), run_bounded, 1, seconds=0))
