"""A proposal that the log refuses changes nothing: the next one has its number and its names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import pytest

from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.shared_log import RECORD_BYTES_MAX, LogRecord
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.seat import Seat
from store.disk.memory_filesystem import MemoryFileSystem
from store.records.batches import MessageBatch, NameBatch
from store.shared.envelope import EnvelopeKind, LogWriter, unwrap
from store.shared.payload import BeatNote, decode_records
from store.tables.names import SUBJECT, Names
from tests.delayserver.follow.members import IDENTITY, ListLog, Records, fresh_messages
from tests.fakes.clock import SimulatedClock


class BoundedLog(ListLog):
    """Takes records up to `bytes_max`."""

    bytes_max = 0

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        raise AssertionError("nothing is read back")

    def append(self, record: bytes) -> None:
        if len(record) > self.bytes_max:
            raise ValueError("too long")
        super().append(record)


def refused(error: DelayServerError) -> None:
    raise error


async def test_a_record_that_is_too_long_takes_no_number_and_no_names() -> None:
    records = Records()
    fs = MemoryFileSystem(1 << 24)
    fs.make_directory("/d")
    names = Names.open(fs, "/d", IDENTITY.server_id, shared=True)
    log = BoundedLog(records)
    proposals = Proposals(log, Seat(0, IDENTITY, LogWriter(1, 11), "a", "a:1"), names, SimulatedClock())
    proposals.begin(1)
    names.intern(SUBJECT, ["new"])
    log.bytes_max = 64
    with pytest.raises(ValueError, match="too long"):
        proposals.propose([fresh_messages(1)], print, refused)
    with pytest.raises(ValueError, match="too long"):
        proposals.note(BeatNote(1, 1, b"", 0), print, refused)
    proposals.check_invariants()
    assert (len(proposals), proposals.size_bytes) == (0, 0)
    log.bytes_max = 1 << 20
    proposals.propose([fresh_messages(1)], print, refused)
    proposals.check_invariants()
    (record,) = records.data
    found = unwrap(record, IDENTITY, 0)
    assert (found.envelope.kind, found.envelope.index) == (EnvelopeKind.RECORDS, 1)
    first, _ = decode_records(found.payload, 0)
    assert isinstance(first.to_batch(), NameBatch)
    assert names.new == []


async def test_names_that_one_record_does_not_take_go_before_what_uses_them() -> None:
    """Many tiny messages of one group may bring more bytes of new subjects than of all the rest."""
    records = Records()
    fs = MemoryFileSystem(1 << 24)
    fs.make_directory("/d")
    names = Names.open(fs, "/d", IDENTITY.server_id, shared=True)
    log = BoundedLog(records)
    log.bytes_max = RECORD_BYTES_MAX
    proposals = Proposals(log, Seat(0, IDENTITY, LogWriter(1, 11), "a", "a:1"), names, SimulatedClock())
    proposals.begin(1)
    rows = 16_384
    for request in range(9):
        names.intern(SUBJECT, [f"{request * rows + number:0255}" for number in range(rows)])
    proposals.propose([fresh_messages(10)], print, refused)
    proposals.check_invariants()
    found = [unwrap(record, IDENTITY, 0) for record in records.data]
    assert [each.envelope.index for each in found] == list(range(1, len(found) + 1))
    batches = [[image.to_batch() for image in decode_records(each.payload, 0)] for each in found]
    codes = [batch.code for part in batches for batch in part if isinstance(batch, NameBatch)]
    assert np.concatenate(codes).tolist() == list(range(1, 9 * rows + 1))
    assert [type(batch) for batch in batches[-1]] == [MessageBatch]
    assert len(proposals) == len(found) == 3, "in no more than they need"
    for index, part in enumerate(batches[:-1], start=1):
        proposal = proposals.came_back(index)
        assert (proposal.names, proposal.accepted([])) == (len(part), None)
    assert names.new == []
    proposals.propose([fresh_messages(10)], print, refused)
    assert len(decode_records(unwrap(records.data[-1], IDENTITY, 0).payload, 0)) == 1
