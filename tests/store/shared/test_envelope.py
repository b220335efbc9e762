"""A record of a shared log is whole and of this shard, or it is foreign. A newer one is never passed over."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import UpgradeNeededError
from store.shared.envelope import (
    ENVELOPE_BYTES,
    Envelope,
    EnvelopeKind,
    ForeignRecordError,
    LogWriter,
    ShardIdentity,
    unwrap,
    wrap,
)

SHARD = ShardIdentity(0x1122, 0x3344)
BEAT = Envelope(EnvelopeKind.BEAT, SHARD, 5, 6, LogWriter(7, 8), 9)
U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


@given(
    st.sampled_from([*EnvelopeKind][1:]), U64, U64, U32, U32, U64.filter(bool), U64,
    st.integers(-1 << 63, (1 << 63) - 1), st.lists(st.binary(max_size=20)),
)  # fmt: skip
def test_an_envelope_survives_its_bytes(
    kind: EnvelopeKind,
    cluster_id: int,
    server_id: int,
    epoch: int,
    member: int,
    index: int,
    instance: int,
    wall_us: int,
    payload: list[bytes],
) -> None:
    shard = ShardIdentity(cluster_id, server_id)
    envelope = Envelope(kind, shard, epoch, index, LogWriter(member, instance), wall_us)
    data = wrap(envelope, [memoryview(part) for part in payload])
    assert len(data) == ENVELOPE_BYTES + sum(map(len, payload))
    unwrapped = unwrap(data, shard, 3)
    assert unwrapped.envelope == envelope and bytes(unwrapped.payload) == b"".join(payload)


def test_the_bytes_are_those_of_the_document() -> None:
    assert wrap(BEAT, [b"ab", b"c"]).hex() == (
        "444c4f47" "0100" "0200" "2211000000000000" "4433000000000000" "05000000" "07000000" "0600000000000000"
        "0800000000000000" "0900000000000000" "03000000" "b209ef32" "616263"
    )  # fmt: skip


def test_every_changed_byte_makes_it_foreign() -> None:
    data = wrap(BEAT, [b"payload"])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(ForeignRecordError):
            unwrap(bytes(changed), SHARD, 3)


def test_what_is_cut_off_or_has_more_behind_it_is_foreign() -> None:
    data = wrap(BEAT, [b"payload"])
    for length in range(len(data)):
        with pytest.raises(ForeignRecordError):
            unwrap(data[:length], SHARD, 3)
    with pytest.raises(ForeignRecordError, match="8 bytes, where the envelope says 7"):
        unwrap(data + b"x", SHARD, 3)


@pytest.mark.parametrize("shard", [ShardIdentity(1, SHARD.server_id), ShardIdentity(SHARD.cluster_id, 1)])
def test_a_record_of_another_cluster_or_shard_is_foreign(shard: ShardIdentity) -> None:
    with pytest.raises(ForeignRecordError, match="of cluster 000000001122 and server 000000003344"):
        unwrap(wrap(BEAT, []), shard, 3)


def rewritten(version: int, kind: int) -> bytes:
    """`BEAT` with another version and kind, and a right checksum."""
    data = bytearray(wrap(BEAT, [b"payload"]))
    struct.pack_into("<HH", data, 4, version, kind)
    crc = google_crc32c.extend(google_crc32c.value(bytes(data[:60])), bytes(data[64:]))
    struct.pack_into("<I", data, 60, crc)
    return bytes(data)


@pytest.mark.parametrize(("version", "kind"), [(2, 2), (0, 2), (1, 9), (1, 0)])
def test_a_version_or_kind_that_is_not_known_asks_for_an_upgrade(version: int, kind: int) -> None:
    with pytest.raises(UpgradeNeededError, match=f"position 33 .* kind {kind} and version {version}") as found:
        unwrap(rewritten(version, kind), SHARD, 33)
    assert found.value.position == 33


def test_a_newer_record_of_another_cluster_is_only_foreign() -> None:
    with pytest.raises(ForeignRecordError):
        unwrap(rewritten(2, 2), ShardIdentity(1, 1), 3)


def test_only_a_claim_stands_before_the_first_record_of_its_epoch() -> None:
    for kind, index in ((EnvelopeKind.CLAIM, 1), (EnvelopeKind.RECORDS, 0)):
        with pytest.raises(AssertionError, match="a claim comes before"):
            wrap(Envelope(kind, SHARD, 1, index, LogWriter(1, 1), 0), [])
