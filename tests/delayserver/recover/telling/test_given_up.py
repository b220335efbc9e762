"""Dead letters in the recovery tools: whole in the store, shown in the trace of their message, and never in the balance."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.client.listening.listeners import until
from tests.delayserver.recover.directories import SMALL, ServerProcess, in_process


def make(path: Path, number: int) -> tuple[str, int]:
    """One message that came twice and was given up, and one whose letter was sent again: the first one's receipt and the
    sequence of its letter."""
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        client.set_policy("s", "g", attempts=2, first_ms=0)
        sent = client.send("s", "dies", delay_ms=0)
        for _ in range(2):
            client.nack("s", "g", client.pull("s", "g", 1, wait_s=60))
        client.set_policy("s", "g", attempts=1)
        client.send("s", "again", delay_ms=0)
        client.nack("s", "g", client.pull("s", "g", 1, wait_s=60))
        first, second = client.dead_letters("s", "g")
        assert client.resend_dead_letters("s", "g", positions=[second.position]).resent == 1
        client.ack("s", "g", client.pull("s", "g", 1, wait_s=60))
        (letter, *_) = client.pull("s.dead.g", "looker", 10)
        assert letter.message_id == first.message_id
        until(lambda: client.status()["delivered"] >= 2)  # outcomes are written a moment after the hand-over
        server.stop(number)
    return sent.receipt, letter.sequence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_finds_no_fault_and_counts_letters_nowhere(tmp_path: Path, number: int) -> None:
    make(tmp_path / "d", number)
    last = in_process("check", str(tmp_path / "d"), "--json").last
    assert last["findings"] == []
    assert (last["accepted"], last["delivered"], last["pending"], last["dead_lettered"]) == (2, 2, 0, 0)


def test_a_trace_shows_that_a_message_was_given_up_also_after_a_redelivery(tmp_path: Path) -> None:
    receipt, sequence = make(tmp_path / "d", signal.SIGTERM)
    done = in_process("trace", str(tmp_path / "d"), "--receipt", receipt, "--json")
    told = [row for row in done.rows if row.get("what") == "given up by a consumer group"]
    assert [row["sequence"] for row in told] == [sequence]
    done = in_process("trace", str(tmp_path / "d"), "--sequence", str(sequence), "--json")
    assert [row["what"] for row in done.rows if "what" in row] == ["given up by a consumer group"]


def test_sequences_that_are_made_anew_lie_behind_those_of_letters(tmp_path: Path) -> None:
    path = tmp_path / "d"
    _, sequence = make(path, signal.SIGTERM)
    (path / "sequences").unlink()
    assert in_process("rebuild", str(path), "--yes").code == 0
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        assert client.send("s", "new", delay_ms=0).sequence > sequence
        server.stop(signal.SIGTERM)
