"""Replies that were not sent: counted, freed as they go, and given up in part or in whole."""

from __future__ import annotations

from random import Random

from delayserver.front.unsent import COPY_BYTES_MIN, Unsent


def test_frames_go_out_in_order_and_byte_by_byte_the_same() -> None:
    chance = Random(1)
    frames = [chance.randbytes(chance.choice([1, 10, 3 * COPY_BYTES_MIN])) for _ in range(20)]
    unsent = Unsent()
    for frame in frames:
        unsent.add(memoryview(frame), None)
    sent = b""
    while unsent.bytes:
        count = min(chance.randrange(1, COPY_BYTES_MIN), len(unsent.first()))
        sent += bytes(unsent.first()[:count])
        unsent.remove_sent(count)
        unsent.check_invariants()
    assert sent == b"".join(frames)


def test_a_frame_counts_as_sent_with_its_last_byte_and_not_before() -> None:
    lost: list[str] = []
    unsent = Unsent()
    for name in ("whole", "part", "none"):
        unsent.add(memoryview(b"12345"), lambda name=name: lost.append(name))  # type: ignore[misc]
    unsent.remove_sent(5)
    unsent.remove_sent(4)
    for give_back in unsent.drop():
        give_back()
    assert lost == ["part", "none"]
    assert unsent.bytes == 0 and unsent.drop() == []


def test_the_rest_of_a_large_frame_does_not_keep_the_whole() -> None:
    frame = bytes(4 * COPY_BYTES_MIN)
    unsent = Unsent()
    unsent.add(memoryview(frame), None)
    assert unsent.first().obj is frame
    unsent.remove_sent(3 * COPY_BYTES_MIN)
    assert len(memoryview(unsent.first().obj)) == COPY_BYTES_MIN
