"""The targets of the fuzzer on inputs that Hypothesis makes: what `python -m ops.fuzz` looks for longer, on every commit."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.fuzz import records, wire
from ops.fuzz.session import Session
from ops.fuzz.target import Garbage, Target
from ops.fuzz.targets import TARGETS
from store.records.file_header import FILE_MESSAGE_LOG, FileHeader
from store.records.record import BATCHES, encode_record

Changes = list[tuple[int, int]]
changes = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)


def changed(data: bytes, places: Changes, length: int) -> bytes:
    """Some bytes replaced, and cut off at a length where that is shorter."""
    result = bytearray(data)
    for place, value in places:
        if result:
            result[place % len(result)] = value
    return bytes(result[:length])


@pytest.mark.parametrize("name", TARGETS)
def test_a_sound_input_is_accepted_and_mending_leaves_it_alone(name: str) -> None:
    target = TARGETS[name]
    first = target.seeds()[0]
    assert target.check(first) and target.mend(first) == first


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), changes, st.integers(0, 1 << 12))
def test_damaged_inputs_are_refused_by_name_or_read_right(
    name: str, data: st.DataObject, places: Changes, cut: int
) -> None:
    target = TARGETS[name]
    target.check(changed(data.draw(st.sampled_from(target.seeds())), places, cut))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), changes)
def test_inputs_with_right_checksums_are_refused_by_name_or_read_right(
    name: str, data: st.DataObject, places: Changes
) -> None:
    target = TARGETS[name]
    seed = data.draw(st.sampled_from(target.seeds()))
    target.check(target.mend(changed(seed, places, len(seed))))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30, deadline=None)
@given(data=st.binary(max_size=300))
def test_random_bytes_are_refused_by_name(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


def test_an_unknown_record_that_is_cut_off_is_refused_at_the_first_opening_as_at_the_second() -> None:
    """Found by the fuzzer: damage at the first opening, which preallocates, so that the record was no longer cut off."""
    target = TARGETS["message-log"]
    batch = records.examples()[0]
    unknown = bytearray(b"".join(map(bytes, encode_record(batch, 64, 64).buffers)))
    unknown[8:10] = (16129).to_bytes(2, "little")
    unknown[24:32] = (12_818).to_bytes(8, "little")  # longer than the file, shorter than what is preallocated
    behind = 64 + len(unknown)
    proof = encode_record(batch, behind, behind)  # its header says that everything before it was durable
    header = FileHeader(FILE_MESSAGE_LOG, 5, 0).encode()
    assert not target.check(
        header + records.mend_record(bytes(unknown), 0, 64)[0] + b"".join(map(bytes, proof.buffers))
    )


@pytest.mark.parametrize(("seed", "places"), [(4, range(141, 159)), (9, range(64, 200))])
def test_a_check_survives_impossible_columns_and_windows_behind_right_checksums(seed: int, places: range) -> None:
    target = TARGETS["check"]
    data = target.seeds()[seed]
    for place in places:
        target.check(target.mend(changed(data, [(place, 3)], len(data))))


def test_a_reader_that_accepts_a_wrong_checksum_is_found() -> None:
    """The judge can fail: bytes whose checksums were not mended, given out as if they verified."""
    data = bytearray(records.TARGETS[1].seeds()[0])
    data[70] ^= 1
    batch = next(batch for batch in records.examples() if type(batch) is BATCHES[1])
    with pytest.raises(Garbage, match="checksum"):
        records.verify_accepted(bytes(128) + bytes(data), 128, batch)


def test_a_session_counts_a_finding_once_and_keeps_its_smallest_input() -> None:
    def check(data: bytes) -> bool:
        if b"bad" in data:
            raise ValueError("a parser that does not know what to say")
        return wire.check_request(data)

    session = Session(Target("example", list, check))
    for data in (b"very bad", b"fine", b"bad", b"so bad"):
        session.one(data)
    assert (session.executions, session.accepted, len(session.findings)) == (4, 0, 1)
    [found] = session.findings.values()
    assert (found.times, found.data) == (3, b"bad")
