"""The message_log of a cluster's member holds what its shard decided. That of a single server does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from delayserver.recover.checking.check import check_directory
from store.disk.filesystem import RealFileSystem
from store.logs.message_log import MessageLog
from store.records.batches import KeptBatch, LedgerBatch, NameBatch, OutcomeBatch, RunBatch, TableBatch
from store.records.column_batch import ColumnBatch
from store.shared.followed import FollowedTo, marker
from store.tables.names import SUBJECT, Names
from tests.delayserver.recover.directories import Made
from tests.fakes.rows import messages

DECIDED, STRANGE = OutcomeBatch.filled(1, sequence=1), RunBatch.filled(1)
OTHERS = [LedgerBatch.filled(1), TableBatch.filled(1), KeptBatch.filled(1)]
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


@pytest.mark.parametrize("named", [True, False], ids=["named in the log", "named nowhere"])
def test_a_name_that_waits_for_replay_is_known(made: Made, named: bool) -> None:
    fs, server_id = RealFileSystem(), int(made.server_id, 16)
    names = Names.open(fs, str(made.path), server_id, write=False)
    names.close()
    code = len(names) + 1
    name = NameBatch.filled(1, code=code, name_kind=SUBJECT, names_length=3, names=b"new")
    log = MessageLog.open(fs, f"{made.path}/message_log", server_id, segment_bytes=1 << 20)
    message = replace(messages(1 << 40, 1), subject=np.array([code], np.uint32))
    log.append_durably([name, message, PLACE] if named else [message, PLACE])
    log.close()
    taken, checked = check_directory(fs, str(made.path))
    told = taken.tables.subject_name(code)
    taken.close()
    found = [finding.detail for finding in checked.findings if finding.file.endswith("names.log")]
    if named:
        assert (told, found) == ("new", [])
    else:
        assert (told, found) == (f"#{code}", [f"subject code {code} is used, but only {code - 1} names are known"])
