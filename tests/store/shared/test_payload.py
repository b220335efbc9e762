"""The payloads of a shared log are read as they were written, or ask for an upgrade."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from store.errors import UpgradeNeededError
from store.records.batches import CancelBatch, MessageBatch
from store.records.message_rows import MessageRows, Row
from store.shared.envelope import EnvelopeKind
from store.shared.payload import (
    BarrierNote,
    BeatNote,
    ClaimNote,
    EndNote,
    Note,
    decode_note,
    decode_records,
    encode_note,
    encode_records,
    kind_of,
)

NOTES: list[Note] = [
    ClaimNote("b", "b:7000", "1.4", 17, "silence"),
    BeatNote(12, 1200, b"digest", 5),
    EndNote("c", 9),
    BarrierNote(3, "1.5"),
]


@pytest.mark.parametrize("note", NOTES)
def test_a_note_survives_its_bytes(note: Note) -> None:
    assert decode_note(kind_of(note), encode_note(note), 3) == note


def test_each_kind_but_records_has_a_note() -> None:
    assert {kind_of(note) for note in NOTES} == {*EnvelopeKind} - {EnvelopeKind.RECORDS}


@pytest.mark.parametrize("note", NOTES)
def test_a_map_that_this_program_does_not_know_asks_for_an_upgrade(note: Note) -> None:
    fields = msgspec.to_builtins(note, builtin_types=(bytes,))
    unknown = msgspec.msgpack.encode(fields | {"newer": 1})
    missing = msgspec.msgpack.encode({name: fields[name] for name in [*fields][1:]})
    for payload in (unknown, missing, b"", b"\xc1", encode_note(note)[:-1]):
        with pytest.raises(UpgradeNeededError, match="position 33"):
            decode_note(kind_of(note), payload, 33)


def test_records_of_several_kinds_are_read_in_their_order() -> None:
    row: Row = (5, 1, 0, b"id", b"", b"body", 0, b"")
    cancels = CancelBatch.filled(2, sequence=np.array([1, 2]), due_ms=5)
    images = decode_records(b"".join(map(bytes, encode_records([MessageRows([row, row], 7, 9), cancels]))), 3)
    messages, read_cancels = [image.to_batch() for image in images]
    assert isinstance(messages, MessageBatch) and isinstance(read_cancels, CancelBatch)
    assert messages.sequence.tolist() == [7, 8] and bytes(messages.bodies) == b"bodybody"
    assert read_cancels.sequence.tolist() == [1, 2]


@pytest.mark.parametrize("payload", [b"", bytes(64), b"no record"])
def test_what_is_no_record_asks_for_an_upgrade(payload: bytes) -> None:
    with pytest.raises(UpgradeNeededError, match="position 33"):
        decode_records(payload, 33)
