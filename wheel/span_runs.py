"""The coarse part of the wheel: rows of wide batches, by spans of many ticks, kept whole until their span is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from sortedcontainers import SortedDict

from wheel.keys import DUE_MS_NONE, Int64s, Mask, groups
from wheel.runs import SortedRuns
from wheel.sorted_run import Opaque, SortedRun

MERGE_RUNS_MIN: Final = 4
"""Small runs in a span that has begun, from which on one merge is cheaper than cutting each of them at every tick."""


class SpanRuns:
    """Sorted runs by span of due time (`span_ms`), in a SortedDict: the first span is the next one due."""

    __slots__ = ("_rows", "_span_ms", "_spans")

    def __init__(self, span_ms: int) -> None:
        self._span_ms = span_ms
        self._spans: SortedDict = SortedDict()  # Span number to SortedRuns.
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def first_due_ms(self) -> int:
        return self._spans.peekitem(0)[1].first_due_ms if self._spans else DUE_MS_NONE

    def add(self, span: int, run: SortedRun) -> None:
        """Puts a run whose rows are all due in the given span into it."""
        runs = self._spans.get(span)
        if runs is None:
            runs = self._spans[span] = SortedRuns(merge_phase=span)
        runs.add(run)
        self._rows += len(run)

    def cut(self, end_ms: int) -> list[SortedRun]:
        """Takes out all rows due before `end_ms`."""
        out: list[SortedRun] = []
        while self._spans and self._spans.peekitem(0)[0] * self._span_ms < end_ms:
            span, runs = self._spans.peekitem(0)
            partly = (span + 1) * self._span_ms > end_ms
            if partly:
                runs.merge_small(MERGE_RUNS_MIN)
            out.extend(runs.cut(end_ms))
            if not len(runs):
                del self._spans[span]
            if partly:
                break
        self._rows -= sum(map(len, out))
        return out

    def runs_below(self, due_ms: int) -> Iterator[tuple[Int64s, Int64s, Opaque]]:
        """The columns of the rows due before the given time, run by run."""
        for span in self._spans.irange(maximum=(due_ms - 1) // self._span_ms):
            yield from self._spans[span].runs_below(due_ms)

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before the given time."""
        spans = self._spans.irange(maximum=(due_ms - 1) // self._span_ms)
        return sum(self._spans[span].rows_below(due_ms) for span in spans)

    def drop_behind(self, due_ms: int, sequence: int) -> int:
        """Drops all rows with a key greater than the given one; returns how many."""
        dropped = 0
        for span in list(self._spans.irange(minimum=due_ms // self._span_ms)):
            dropped += self._spans[span].drop_behind(due_ms, sequence)
            self._forget_empty(span)
        self._rows -= dropped
        return dropped

    def find(self, due_ms: Int64s, sequence: Int64s, *, cancel: bool) -> Mask:
        """True where the row with this key is (with `cancel`: was) here, bool[n]; the n keys ascend."""
        held = np.zeros(len(due_ms), np.bool_)
        if not self._spans:
            return held
        for span, start, stop in groups(due_ms // self._span_ms):
            runs = self._spans.get(span)
            if runs is None:
                continue
            rows_before = len(runs)
            held[start:stop] = runs.find(due_ms[start:stop], sequence[start:stop], cancel=cancel)
            if cancel:  # The count of found keys would be wrong: a caller may name a key twice.
                self._rows -= rows_before - len(runs)
                self._forget_empty(span)
        return held

    def check_invariants(self) -> None:
        assert self._rows == sum(map(len, self._spans.values()))
        for span, runs in self._spans.items():
            runs.check_invariants()
            assert len(runs) > 0, "an empty span is let go, not kept"
            for run in runs:
                assert (run.due_ms[run.head :] // self._span_ms == span).all()

    def _forget_empty(self, span: int) -> None:
        if not len(self._spans[span]):
            del self._spans[span]
