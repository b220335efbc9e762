"""The lane of rows with an order key against a list, step by step."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from delayserver.state.memory.group_queue import GroupQueue
from delayserver.state.memory.keyed_lane import BUCKETS, CHUNK_ROWS_MAX, KeyedLane, buckets_of
from delayserver.state.memory.rows import ROW
from wheel.due_rows import DueRows
from wheel.keys import Key


def rows(sequences: list[int], bucket: dict[int, int]) -> DueRows:
    payload = np.zeros(len(sequences), dtype=ROW)
    payload["bodies_length"] = 10
    payload["order_keys_length"] = 1
    payload["order_hash"] = [bucket[sequence] for sequence in sequences]
    sequence = np.array(sequences, dtype=np.int64)
    return DueRows(sequence * 10, sequence, payload)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_steps_agrees_with_a_list(seed: int) -> None:
    chance = Random(seed)
    lane, model = KeyedLane(), set[int]()
    bucket = {sequence: chance.randrange(6) for sequence in range(3_000)}
    outside = set(bucket)
    busy: list[tuple[list[int], list[int]]] = []
    paused: dict[int, int] = {}
    for now in range(1, 251):
        lane.resume(now)
        paused = {key: until for key, until in paused.items() if until > now}
        kind = chance.randrange(6)
        if kind < 2 and outside:
            start = chance.choice(sorted(outside))
            given = [each for each in range(start, start + chance.choice([1, 5, 60])) if each in outside]
            chance.shuffle(given)
            lane.push(rows(given, bucket))
            model |= set(given)
            outside -= set(given)
        elif kind < 4:
            most, wanted = chance.choice([1, 7, 500]), np.zeros(BUCKETS, bool)
            wanted[[each for each in range(6) if chance.random() < 0.8]] = True
            held = {each for _rows, buckets in busy for each in buckets} | paused.keys()
            free = [each for each in sorted(model) if bucket[each] not in held and wanted[bucket[each]]]
            taken = lane.take(most, 1 << 30, wanted)
            assert ([] if taken is None else taken.sequence.tolist()) == free[:most]
            if taken is not None:
                model -= set(free[:most])
                buckets = np.unique(buckets_of(taken))
                lane.hold(buckets)
                busy.append((free[:most], buckets.tolist()))
        elif kind == 4 and busy:
            given, buckets_held = busy.pop(chance.randrange(len(busy)))
            if chance.random() < 0.4:
                lane.push(rows(given, bucket))
                model |= set(given)
            else:
                outside |= set(given)
            if chance.random() < 0.3:
                lane.pause(np.array(buckets_held), now + 5)
                paused |= {each: max(now + 5, paused.get(each, 0)) for each in buckets_held}
            lane.release(np.array(buckets_held))
        elif kind == 5 and model:
            first = chance.choice(sorted(model)[-30:]) + chance.randrange(2)
            wanted_out = [each for each in sorted(model) if each >= first]
            parts = lane.drop_from(Key(first * 10, first)) if chance.random() < 0.5 else lane.drop_last(len(wanted_out))
            dropped = sorted(each for part in parts for each in part.sequence.tolist())
            assert dropped == wanted_out
            model -= set(dropped)
            outside |= set(dropped)
        assert len(lane) == len(model)
        lane.check_invariants()


def test_a_late_row_copies_one_chunk_of_a_long_lane() -> None:
    lane = KeyedLane()
    count = 3 * CHUNK_ROWS_MAX
    bucket = dict.fromkeys(range(2 * count), 1)
    lane.push(rows(list(range(0, 2 * count, 2)), bucket))
    before = [chunk.rows for chunk in lane.chunks]
    lane.push(rows([1], bucket))
    after = [chunk.rows for chunk in lane.chunks]
    assert all(any(rows is each for each in after) for rows in before[1:])
    lane.check_invariants()


def test_a_queue_keeps_rows_with_a_key_apart_and_finds_and_removes_them() -> None:
    queue, bucket = GroupQueue(), dict.fromkeys(range(10), 3)
    mixed = rows([1, 2, 3, 4], bucket)
    mixed.payload["order_keys_length"][[0, 2]] = 0
    queue.push(mixed)
    assert (len(queue), queue.keyless_rows, len(queue.keyed)) == (4, 2, 2)
    assert sorted(queue.sequences().tolist()) == [1, 2, 3, 4]
    asked = np.array([2, 3], np.int64)
    assert queue.holds(asked * 10, asked).all()
    assert queue.remove(asked * 10, asked).all()
    assert (len(queue), queue.keyless_rows, len(queue.keyed)) == (2, 1, 1)
    taken = queue.take(10, 1 << 30)
    assert taken is not None and taken.sequence.tolist() == [1]
    assert [part.sequence.tolist() for part in queue.drop_behind(0)] == [[4]]
    queue.check_invariants()
