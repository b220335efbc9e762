"""Sorts the rows of a batch into schedule files. Pure: columns in, slices out.

The order within a file stays the order of the sequences, so the last sequence of a file is its high-water mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store.logs.due_windows import day_starts, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import MessageBatch
from store.records.column_batch import ragged_offsets

_BLOBS = MessageBatch.schema.blobs


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of a batch that belong to one schedule file."""

    key: ScheduleKey
    batch: MessageBatch


def bucket(
    batch: MessageBatch,
    window_ms: int,
    coarse: NDArray[np.bool_] | None,
    fine_source: ScheduleSource = ScheduleSource.DIRECT,
) -> list[Bucket]:
    """Cut a batch (in sequence order) by window; rows where `coarse` is True go to the file of their day."""
    starts = window_starts(batch.due_ms, window_ms)
    if coarse is not None:
        # Windows start at multiples of window_ms > 1, so an odd number can stand for a day beside them.
        starts = np.where(coarse, day_starts(batch.due_ms) + 1, starts)
    first = int(starts[0])
    if bool((starts == first).all()):
        return [Bucket(_key(first, coarse is not None, window_ms, fine_source), batch)]
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    cuts = np.concatenate(([0], np.flatnonzero(np.diff(starts)) + 1, [len(starts)])).tolist()
    parts = _slices(batch.take(order), cuts)
    return [
        Bucket(_key(int(starts[cut]), coarse is not None, window_ms, fine_source), part)
        for cut, part in zip(cuts[:-1], parts, strict=True)
    ]


def _key(code: int, has_coarse: bool, window_ms: int, fine_source: ScheduleSource) -> ScheduleKey:
    if has_coarse and code % window_ms == 1:
        return ScheduleKey(code - 1, ScheduleSource.DAY)
    return ScheduleKey(code, fine_source)


def _slices(batch: MessageBatch, cuts: list[int]) -> list[MessageBatch]:
    """`batch.slice` for many cuts, with the blob offsets computed once."""
    offsets = {
        name: ragged_offsets(getattr(batch, f"{name}_length"))[cuts].tolist() if len(getattr(batch, name)) else None
        for name in _BLOBS
    }
    columns = [(name, getattr(batch, name)) for name, _ in batch.schema.fields]
    parts = []
    for place, (begin, end) in enumerate(pairwise(cuts)):
        values = {name: column[begin:end] for name, column in columns}
        for name in _BLOBS:
            places = offsets[name]
            values[name] = getattr(batch, name)[places[place] : places[place + 1]] if places else memoryview(b"")
        parts.append(MessageBatch(**values))
    return parts
