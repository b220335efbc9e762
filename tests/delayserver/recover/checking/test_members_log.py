"""The message_log of a cluster's member holds what its shard decided. That of a single server does not."""

from __future__ import annotations

import pytest

from delayserver.recover.checking.check import check_directory
from store.disk.filesystem import RealFileSystem
from store.logs.message_log import MessageLog
from store.records.batches import LedgerBatch, OutcomeBatch, RunBatch, TableBatch
from store.records.column_batch import ColumnBatch
from store.shared.followed import FollowedTo, marker
from tests.delayserver.recover.directories import Made

DECIDED, STRANGE = OutcomeBatch.filled(1, sequence=1), RunBatch.filled(1)
OTHERS = [LedgerBatch.filled(1), TableBatch.filled(1)]
PLACE = marker([], FollowedTo(5, 1, 4))


@pytest.mark.parametrize(
    ("records", "strange"),
    [([DECIDED, PLACE], False), ([*OTHERS, PLACE], False), ([DECIDED], True), ([STRANGE, PLACE], True)],
    ids=["a member's", "also a member's", "a single server's", "nobody's"],
)
def test_a_record_has_its_place_in_the_log_of_a_member_only(
    made: Made, records: list[ColumnBatch], strange: bool
) -> None:
    server_id = int(made.server_id, 16)
    log = MessageLog.open(RealFileSystem(), f"{made.path}/message_log", server_id, segment_bytes=1 << 20)
    end = log.end
    log.append_durably(records)
    log.close()
    taken, checked = check_directory(RealFileSystem(), str(made.path))
    taken.close()
    found = [(finding.offset, finding.detail) for finding in checked.findings]
    assert found == ([(end, "records of a kind that has no place in message_log")] if strange else [])
