"""Two minutes of the day in a shop, in every run of the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ops.torture.shop.__main__ import main


def test_two_minutes_in_a_shop_keep_all_promises_and_stay_flat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["shop", "--minutes", "2", "--restart-every", "45", "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    code = main()
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (code, report["violations"], report["growing"]) == (0, [], []), said.err[-3000:]
    assert report["restarts"] >= 1
    counts = report["counts"]
    names = ("handled", "dead", "visits", "scrapes", "console lines", "cancelled", "move cancelled")
    assert [name for name in names if not counts.get(name)] == []
