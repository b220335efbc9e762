"""Where a column holds two numbers, `dump`, `trace` and `export` show each as a field of its own, and never both as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from delayserver.protocol.outcomes import Outcome
from store.disk.filesystem import RealFileSystem
from store.logs.message_log import MessageLog
from store.records.batches import StoredBatch
from store.records.file_header import FILE_STORE
from store.records.shared_column import REDELIVERY
from tests.delayserver.recover.directories import in_process
from tests.ops.audit.hand_made import START_MS, WINDOW_MS, HandMade

SERVER_ID = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two delivered messages; before the second one was, three hand-overs to other nodes had no answer."""
    path = tmp_path_factory.mktemp("unanswered") / "data"
    HandMade(
        path,
        server_id=SERVER_ID,
        messages=[1, 2],
        scheduled=[1, 2],
        outcomes=[(1, Outcome.DELIVERED, 900), (2, Outcome.DELIVERED, 900)],
        unanswered={2: 3},
    ).write()
    store = path / "broker" / "store"
    store.mkdir(parents=True)
    log = MessageLog.open(RealFileSystem(), str(store), SERVER_ID, segment_bytes=1 << 20, kind=FILE_STORE)
    log.append([_stored()])
    log.sync()
    log.close()
    return path


def _stored() -> StoredBatch:
    sequence = np.array([1, 2])
    return StoredBatch.filled(
        2,
        sequence=sequence,
        position=sequence - 1,
        due_ms=START_MS + sequence,
        server_id=SERVER_ID,
        window_ms=WINDOW_MS,
        subject=1,
        redelivery=REDELIVERY.pack(np.array([0, 5]), np.array([0, 3])),
    )


def _dumped(path: Path) -> list[dict[str, object]]:
    return [row for row in in_process("dump", str(path), "--json").rows if "row" in row]


def test_a_dump_of_outcomes_shows_attempts_and_unanswered_hand_overs_apart(data: Path) -> None:
    (path,) = (data / "dispatch_log").rglob("*.log")
    first, second = _dumped(path)
    assert (first["attempts"], first["unanswered_elsewhere"]) == (1, 0)
    assert (second["attempts"], second["unanswered_elsewhere"]) == (1, 3)


def test_a_dump_of_the_brokers_store_shows_redelivery_and_unanswered_hand_overs_apart(data: Path) -> None:
    (path,) = (data / "broker" / "store").iterdir()
    first, second = _dumped(path)
    assert (first["redelivery"], first["unanswered_elsewhere"]) == (0, 0)
    assert (second["redelivery"], second["unanswered_elsewhere"]) == (5, 3)


def test_a_trace_shows_unanswered_hand_overs_where_there_were_some(data: Path) -> None:
    found = {}
    for sequence in ("1", "2"):
        rows = in_process("trace", str(data), "--sequence", sequence, "--json").rows
        found[sequence] = {row["what"]: row for row in rows if "what" in row}
    outcome, stored = found["2"]["outcome"], found["2"]["stored by the broker"]
    assert (outcome["attempts"], outcome["unanswered_elsewhere"]) == (1, 3)
    assert (stored["redelivery"], stored["unanswered_elsewhere"]) == (5, 3)
    assert found["1"]["outcome"]["attempts"] == 1
    assert not [row for row in found["1"].values() if "unanswered_elsewhere" in row], "0 is not shown"


def test_an_export_has_unanswered_hand_overs_as_a_column(data: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    in_process("export", str(data), "--to", str(tmp_path / "out"), "--json")
    rows = parquet.read_table(tmp_path / "out" / "dispatched.parquet").to_pylist()
    shown = [(row["sequence"], row["attempts"], row["unanswered_elsewhere"]) for row in rows]
    assert shown == [(1, 1, 0), (2, 1, 3)]
