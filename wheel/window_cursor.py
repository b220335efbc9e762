"""The cursor of one window of due time: slices of its key range, and the load in flight. See `cursors.py` for the
rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

import numpy as np

from wheel.keys import KEY_HIGHEST, KEY_LOWEST, Int64s, Key, Mask, lower_bounds

Places = np.ndarray[tuple[int], np.dtype[np.intp]]


class CursorError(ValueError):
    """A load was begun, ended or forgotten out of turn. The caller's bug: the message says what is in the way."""


@dataclass(frozen=True, slots=True)
class LoadTicket:
    """One load: keys in (from_key, to_key] of the window's records that begin below the end offset of their source
    (bytes; 0 for a source without one, whose file did not exist)."""

    number: int
    window_start_ms: int
    from_key: Key
    to_key: Key
    end_offsets: Mapping[str, int]


class SliceState(Enum):
    LOADED = "loaded"
    LOADING = "loading"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Slice:
    """Keys from the slice before through `to_key`, and the end offsets captured when they were first taken."""

    to_key: Key
    end_offsets: Mapping[str, int]
    state: SliceState


class WindowCursor:
    """Slices in key order: first the loaded ones, then at most one in loading, then abandoned ones. One load at a
    time."""

    def __init__(self, window_start_ms: int) -> None:
        self.window_start_ms = window_start_ms
        self.slices: list[Slice] = []
        self.ticket: LoadTicket | None = None
        # The load in flight has brought its keys through this one.
        self._brought = KEY_LOWEST
        # Keys through this one are loaded, and whether those are all: asked for at every look for a window to load.
        self.loaded_limit = KEY_LOWEST
        self.is_loaded = False
        self._limits_due_ms = np.empty(0, np.int64)
        self._limits_sequence = np.empty(0, np.int64)

    @property
    def loading(self) -> bool:
        return self.ticket is not None

    @property
    def limit(self) -> Key:
        """Keys through this one are taken."""
        return self.slices[-1].to_key if self.slices else KEY_LOWEST

    def begin(self, number: int, end_offsets: Mapping[str, int], to_key: Key) -> LoadTicket:
        if self.ticket is not None:
            raise CursorError(f"window {self.window_start_ms}: load {self.ticket.number} is in flight; end it first")
        from_key = self.loaded_limit
        if to_key <= from_key:
            raise CursorError(f"window {self.window_start_ms}: all through {to_key} is loaded already")
        at = self._count(SliceState.LOADED)
        if at == len(self.slices):
            taken = Slice(to_key, MappingProxyType(dict(end_offsets)), SliceState.LOADING)
            self.slices.append(taken)
        else:  # An abandoned slice: what arrived since it was taken is in the wheel, so its end offsets stand.
            abandoned = self.slices[at]
            taken = Slice(min(to_key, abandoned.to_key), abandoned.end_offsets, SliceState.LOADING)
            rest = [abandoned] if taken.to_key < abandoned.to_key else []
            self.slices[at : at + 1] = [taken, *rest]
        self._index()
        self._brought = KEY_LOWEST
        self.ticket = LoadTicket(number, self.window_start_ms, from_key, taken.to_key, taken.end_offsets)
        return self.ticket

    def finish(self, ticket: LoadTicket) -> None:
        self._end(ticket, SliceState.LOADED)

    def abandon(self, ticket: LoadTicket) -> None:
        self._end(ticket, SliceState.ABANDONED)

    def bring(self, ticket: LoadTicket, key: Key) -> None:
        self.check_ticket(ticket)
        self._brought = key

    def covers(self, ticket: LoadTicket, due_ms: Int64s, sequence: Int64s) -> Mask:
        self.check_ticket(ticket)
        at = self._count(SliceState.LOADED)
        if at == len(self.slices) or self.slices[at].state is not SliceState.LOADING:
            return np.zeros(len(due_ms), np.bool_)
        mine: Mask = self._slice_of(due_ms, sequence) == at
        return mine

    def covers_all(self, ticket: LoadTicket) -> bool:
        self.check_ticket(ticket)
        at = self._count(SliceState.LOADED)
        if at == len(self.slices) or self.slices[at].state is not SliceState.LOADING:
            return False
        return self.slices[at].to_key == ticket.to_key

    def owner(self, source: str, offset: int, due_ms: Int64s, sequence: Int64s) -> Mask:
        ends = [piece.end_offsets.get(source, 0) for piece in self.slices]
        direct: Mask = np.array([*(offset >= end for end in ends), False], np.bool_)  # The last: keys behind the limit.
        return direct[self._slice_of(due_ms, sequence)]

    def brought(self, source: str, offset: Int64s, due_ms: Int64s, sequence: Int64s) -> Mask:
        at, ends = self._at_and_ends(source, due_ms, sequence)
        return self._loaded(at, due_ms, sequence) & (offset < ends)

    def holds(self, source: str, offset: Int64s, due_ms: Int64s, sequence: Int64s) -> Mask:
        at, ends = self._at_and_ends(source, due_ms, sequence)
        return self._loaded(at, due_ms, sequence) | (offset >= ends)

    def _at_and_ends(self, source: str, due_ms: Int64s, sequence: Int64s) -> tuple[Places, Int64s]:
        """For each key its slice, intp[n], and the end offset of the source in it, i64[n]. No record begins behind the one
        of a key that lies in no slice."""
        never = np.iinfo(np.int64).max
        ends = np.array([*(piece.end_offsets.get(source, 0) for piece in self.slices), never], np.int64)
        at = self._slice_of(due_ms, sequence)
        return at, ends[at]

    def _loaded(self, at: Places, due_ms: Int64s, sequence: Int64s) -> Mask:
        """Whether each key lies in what is loaded, or in the part of the load in flight that it has brought: bool[n]."""
        loaded = np.array([*(piece.state is SliceState.LOADED for piece in self.slices), False], np.bool_)
        loading = np.array([*(piece.state is SliceState.LOADING for piece in self.slices), False], np.bool_)
        brought = self._brought
        through = (due_ms < brought.due_ms) | ((due_ms == brought.due_ms) & (sequence <= brought.sequence))
        mask: Mask = loaded[at] | (loading[at] & through)
        return mask

    def evict(self, key: Key) -> None:
        kept: list[Slice] = []
        from_key = KEY_LOWEST
        for piece in self.slices:
            if from_key >= key:
                break
            kept.append(piece if piece.to_key <= key else replace(piece, to_key=key))
            from_key = piece.to_key
        self.slices = kept
        self._index()

    def check_ticket(self, ticket: LoadTicket) -> None:
        if self.ticket != ticket:
            raise CursorError(f"window {self.window_start_ms}: load {ticket.number} is not in flight")

    def check_invariants(self) -> None:
        limits = [piece.to_key for piece in self.slices]
        assert all(low < high for low, high in zip([KEY_LOWEST, *limits], limits, strict=False))
        order = [SliceState.LOADED, SliceState.LOADING, SliceState.ABANDONED]
        states = [order.index(piece.state) for piece in self.slices]
        assert states == sorted(states)
        loading = self._count(SliceState.LOADING)
        assert loading == 0 or (loading == 1 and self.ticket is not None)
        if self.ticket is not None and loading:
            piece = self.slices[self._count(SliceState.LOADED)]
            assert piece.to_key <= self.ticket.to_key and piece.end_offsets == self.ticket.end_offsets
            assert self.loaded_limit == self.ticket.from_key
        assert self._limits_due_ms.tolist() == [limit.due_ms for limit in limits]
        assert self._limits_sequence.tolist() == [limit.sequence for limit in limits]
        assert self.limit <= KEY_HIGHEST
        loaded = self._count(SliceState.LOADED)
        assert self.loaded_limit == (limits[loaded - 1] if loaded else KEY_LOWEST)
        assert self.is_loaded == (self.loaded_limit == KEY_HIGHEST)

    def _end(self, ticket: LoadTicket, state: SliceState) -> None:
        self.check_ticket(ticket)
        slices: list[Slice] = []
        for piece in self.slices:
            ended = replace(piece, state=state) if piece.state is SliceState.LOADING else piece
            # Slices that differ in nothing but their limits are one: a window read in many slices stays small.
            if slices and slices[-1].state is ended.state and slices[-1].end_offsets == ended.end_offsets:
                slices.pop()
            slices.append(ended)
        self.slices = slices
        self._index()
        self.ticket = None

    def _count(self, state: SliceState) -> int:
        return sum(piece.state is state for piece in self.slices)

    def _slice_of(self, due_ms: Int64s, sequence: Int64s) -> Places:
        """For each key the index of the first slice whose limit reaches it; the number of slices for none: intp[n]."""
        return lower_bounds(self._limits_due_ms, self._limits_sequence, due_ms, sequence)

    def _index(self) -> None:
        loaded = self._count(SliceState.LOADED)
        self.loaded_limit = self.slices[loaded - 1].to_key if loaded else KEY_LOWEST
        self.is_loaded = self.loaded_limit == KEY_HIGHEST
        self._limits_due_ms = np.array([piece.to_key.due_ms for piece in self.slices], np.int64)
        self._limits_sequence = np.array([piece.to_key.sequence for piece in self.slices], np.int64)
