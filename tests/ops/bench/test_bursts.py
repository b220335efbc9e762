"""Bursts in turns: what senders say is what they sent, failures are reported, ratios are of neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.bench.bursts import OpenSend, Send, bursts_in_turns, check_pending, medians_of, ratios_of
from ops.bench.figures import WrongResult

BURST_S = 0.02


def noting(path: Path, who: str) -> OpenSend:
    """Senders that write their name and number down, one byte line a batch."""

    def open_send(number: int) -> Send:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def send(due_ms: int) -> None:
            os.write(fd, f"{who} {number} {due_ms}\n".encode())

        return send

    return open_send


def test_the_rates_are_those_of_bursts_sent_in_turns(tmp_path: Path) -> None:
    noted = tmp_path / "sent"
    rates = bursts_in_turns({who: noting(noted, who) for who in "abc"}, 3, 10, 4, BURST_S)
    lines = [line.split() for line in noted.read_text().splitlines()]
    for who in "abc":
        assert len(rates[who]) == 4
        assert round(sum(rates[who]) * BURST_S) == 10 * sum(line[0] == who for line in lines)
        assert {line[1] for line in lines if line[0] == who} == {"1", "2", "3"}
    assert merged([line[0] for line in lines]) == merged("abcbcacababc")


def merged(turns: Sequence[str]) -> str:
    """Without letters that repeat the one before them."""
    return "".join(letter for place, letter in enumerate(turns) if not place or turns[place - 1] != letter)


@pytest.mark.parametrize("fails_at", ["open", "send"])
def test_a_sender_that_fails_ends_the_bursts_with_its_words(fails_at: str) -> None:
    def open_send(number: int) -> Send:
        def send(_: int) -> None:
            raise OSError(f"sender {number} cannot")

        if fails_at == "open":
            send(0)
        return send

    with pytest.raises(WrongResult, match=r"OSError: sender \d cannot"):
        bursts_in_turns({"a": open_send}, 2, 1, 1, BURST_S)


def test_a_burst_reports_a_sender_that_goes_away() -> None:
    def open_send(_: int) -> Send:
        return lambda _: os._exit(3)

    with pytest.raises(WrongResult, match="went away"):
        bursts_in_turns({"a": open_send}, 1, 1, 1, BURST_S)


def test_a_ratio_is_that_of_neighbouring_bursts() -> None:
    # The machine doubles its speed in each burst; one is a tenth quicker throughout.
    rates = {"ours": [110.0, 220.0, 440.0, 880.0], "redis": [100.0, 200.0, 400.0, 800.0]}
    assert ratios_of(rates, "ours")["redis"] == pytest.approx((1.1, 1.1, 1.1))
    assert medians_of(rates) == {"ours": 330.0, "redis": 300.0}


def test_a_burst_reports_a_server_that_holds_less_than_it_took() -> None:
    class Peer:
        def __init__(self, held: int | None) -> None:
            self.held = held

        def pending(self) -> Any:
            return self.held

    check_pending("ours", Peer(60), [1000.0, 2000.0], BURST_S)
    check_pending("beanstalkd", Peer(None), [1000.0, 2000.0], BURST_S)
    with pytest.raises(WrongResult, match="ours holds 59 of 60"):
        check_pending("ours", Peer(59), [1000.0, 2000.0], BURST_S)
