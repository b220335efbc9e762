"""The demo, as a stranger runs it, and that its verdict can be bad."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from delayserver.cli.demo import ending_on_signals
from delayserver.cli.demo.demo_run import Demo, Measurements, quantiles
from delayserver.cli.demo.view import BOUNDS_MS, _panel


def test_every_message_of_the_demo_arrives_and_none_early(delayserver: Callable[..., Any]) -> None:
    done = delayserver("demo", "--messages", "300", "--seconds", "2", "--json")
    assert done.code == 0, done.err
    row = done.row
    assert (row["scheduled"], row["delivered"], row["missing"]) == (300, 300, 0)
    assert (row["early"], row["duplicates"], row["ok"]) == (0, 0, True)
    assert 0 <= row["lateness_ms"]["p50"] <= row["lateness_ms"]["p99"] <= row["lateness_ms"]["max"]


def test_the_demo_shows_progress_and_a_summary_where_there_is_no_terminal(delayserver: Callable[..., Any]) -> None:
    for seconds in ("2.5", "12", "60"):  # a line a second, where the machine does not stand still
        done = delayserver("demo", "--messages", "100", "--seconds", seconds)
        assert done.code == 0, done.err
        if done.out.count("arrived  ") >= 3:
            break
    assert done.out.count("arrived  ") >= 3
    assert "\x1b" not in done.out
    for words in ("scheduled", "delivered", "early", "p50", "p99", "max", "none before it was due"):
        assert words in done.out


def test_the_demo_draws_on_a_terminal(begin: Callable[..., Any]) -> None:
    ours, theirs = pty.openpty()
    process = begin("demo", "--messages", "50", "--seconds", "1", stdout=theirs)
    os.close(theirs)
    shown = b""
    # The end of a terminal is an error on Linux.
    with pytest.raises(OSError, match="Input/output error"):
        while True:
            shown += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(60) == 0
    assert "█".encode() in shown
    assert b"none before it was due" in shown


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_ended_by_a_signal_leaves_nothing_behind(
    begin: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    inherited = signal.signal(number, signal.SIG_DFL)  # what `nohup` ignores the demo ignores too
    try:
        process = begin("demo", "--messages", "10", "--seconds", "600", env=dict(os.environ), bufsize=0)
    finally:
        signal.signal(number, inherited)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"server ")
    assert process.stdout.readline().startswith(b"scheduled ")
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    assert process.wait(60) == (130 if number == signal.SIGINT else 128 + number)
    assert list(tmp_path.iterdir()) == []
    assert b"Traceback" not in process.stderr.read()


def test_quantiles_are_exact() -> None:
    assert quantiles(np.arange(1.0, 101.0)) == {"p50": 50.0, "p99": 99.0, "max": 100.0}
    assert quantiles(np.empty(0)) == {"p50": None, "p99": None, "max": None}


@pytest.mark.parametrize("bad", ["missing", "early", "duplicates"])
def test_the_verdict_is_bad_when_something_went_wrong(bad: str) -> None:
    nothing = np.empty(0)
    counts = {"delivered": 9 if bad == "missing" else 10, "early": int(bad == "early")}
    counts["duplicates"] = int(bad == "duplicates")
    assert not Measurements(scheduled=10, dispatched_ms=nothing, received_ms=nothing, **counts).ok


def note(demo: Demo, sequence: list[int], dispatched_us: int, received_us: int) -> Measurements:
    """The progress behind one pull of these messages. No server delivers early or twice for a test."""
    rows = np.array(sequence, np.int64)
    due_ms = np.full(len(rows), 10, np.int64)
    dispatched = np.full(len(rows), dispatched_us, np.int64)
    demo._note(rows, due_ms, dispatched, dispatched - due_ms * 1000, received_us)
    return demo._progress()


def test_a_message_that_comes_early_or_twice_is_counted() -> None:
    demo = Demo("127.0.0.1:1", 3, 1.0)
    progress = note(demo, [0, 1], 10_000, 10_500)
    assert (progress.delivered, progress.duplicates, progress.early) == (2, 0, 0)
    progress = note(demo, [1, 2, 2], 10_000, 10_500)
    assert (progress.delivered, progress.duplicates, progress.early) == (3, 2, 0)
    assert note(demo, [0], 9_999, 10_500).early == 1
    assert note(demo, [0], 10_000, 9_999).early == 2


def test_every_part_of_the_panel_has_a_line_of_its_own_within_80_columns() -> None:
    late_ms = np.array([0.2, 3.0, 120.0])
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(_panel(Measurements(500, 250, 0, 0, late_ms, late_ms)))
    lines = captured.get().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["arrived", "late"]
    assert set(lines[2].strip()) <= set("━╸╺")
    assert [line.split("ms")[0].strip() for line in lines[3:]] == [
        *(f"< {bound:g}" for bound in BOUNDS_MS),
        f"≥ {BOUNDS_MS[-1]:g}",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_whose_exception_is_lost_in_a_callback_ends_the_demo_all_the_same(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: lost.append(unraisable.exc_type))

    class Held:
        pass

    held = Held()

    def dies(_: object) -> None:
        os.kill(os.getpid(), number)
        for _ in range(1000):  # the handler runs between two of these steps
            pass

    watched = weakref.ref(held, dies)
    with ending_on_signals() as end_if_told:
        end_if_told()
        del held
        assert watched() is None
        assert lost == [], "it comes again, so Python tells nobody"
        with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
            end_if_told()
    if number == signal.SIGINT:
        assert ended.type is KeyboardInterrupt
    else:
        assert isinstance(ended.value, SystemExit)
        assert ended.value.code == 128 + number
