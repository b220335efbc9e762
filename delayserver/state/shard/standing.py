"""Who leads a shard, as far as this member has read the log."""

from __future__ import annotations

import trio

from delayserver.runtime.marks import Bell, Mark
from delayserver.state.shard.seat import Seat
from store.shared.envelope import LogWriter
from store.shared.followed import FollowedTo
from store.shared.payload import LOG_VERSION, BarrierNote, BeatNote, ClaimNote, EndNote, Note


class Standing:
    """The leadership as far as the log was read. Writer: the follower.

    Invariants: the epoch only grows. This member leads while the claim of the present epoch is of its own process."""

    __slots__ = (
        "acts",
        "applied",
        "barrier",
        "claim",
        "epoch",
        "heard",
        "heir",
        "horizon_ms",
        "index",
        "kept",
        "leader",
        "leader_address",
        "leader_http",
        "lease",
        "program",
        "read",
        "reads",
        "seat",
        "took_over",
        "written_us",
    )

    def __init__(self, seat: Seat, start: FollowedTo, program: str, reads: int = LOG_VERSION) -> None:
        """`start`: where the last process left the log. `program`: the version of this program. `reads`: the highest version
        of the log that it reads."""
        self.seat = seat
        self.program = program
        self.reads = reads
        # The version of the log where it was read up to.
        self.barrier = Mark(start.barrier)
        self.epoch = Mark(start.epoch)
        self.leader: LogWriter = start.writer
        # What the leader said of itself; None if its claim was read by an earlier process.
        self.claim: ClaimNote | None = None
        # Where clients reach the leader; empty: not read yet. `leader_http` is a URL, and empty where it has none.
        self.leader_address = self.leader_http = ""
        # The member to which the leader has handed over; empty: to any; None: it has not.
        self.heir: str | None = None
        # Nothing that is due later was attempted by any leader so far.
        self.horizon_ms = start.horizon_ms
        # The position behind the last record that was read; and behind the last one whose records are in message_log.
        self.read = Mark(start.position)
        # The number of the last record of the epoch up to there.
        self.index = start.index
        self.applied = Mark(start.position)
        # The position from which the next process would read on: message_log says it.
        self.kept = Mark(start.position)
        # Set when this process has seen that it leads: from then on another claim ends its life.
        self.acts = trio.Event()
        # Set when this process leads and has applied all that came before its claim: from then on it decides.
        self.took_over = trio.Event()
        # When the last valid record was written, by the clock of its writer, in microseconds since 1970.
        self.written_us = Mark(0)
        # Rung by each valid record.
        self.heard = Bell()
        # Until then this process serves pulls and lookups and begins attempts. In microseconds of the clock that goes on
        # during a suspend. Writer: `Beating`.
        self.lease = Mark(0)

    @property
    def leads(self) -> bool:
        """Whether this process leads, as far as the log was read."""
        return self.leader == self.seat.me

    @property
    def role(self) -> str:
        """`primary`, `standby`, or `taking_over`: this process leads, and does not serve yet."""
        return ("primary" if self.took_over.is_set() else "taking_over") if self.leads else "standby"

    def lag_records(self, end: int | None) -> int | None:
        """The records below the end of the log that are not applied; None where the end is not known."""
        return None if end is None else max(end - self.applied.value, 0)

    def lag_ms(self, lag_records: int | None, now_us: int) -> int:
        """0 where nothing is missing; else how long ago the last record that was read was written, by the wall clocks."""
        return 0 if lag_records == 0 else max(now_us - self.written_us.value, 0) // 1000

    def advance(self, place: FollowedTo) -> None:
        """The log was read up to a place."""
        self.read.advance(place.position)
        self.index = place.index

    def take(self, epoch: int, writer: LogWriter, note: Note) -> None:
        """A note counts, which this writer made in this epoch."""
        if isinstance(note, ClaimNote):
            assert epoch == self.epoch.value + 1
            self.leader, self.claim, self.heir = writer, note, None
            self.leader_address, self.leader_http = note.address, note.http
            self.epoch.advance(epoch)
        elif isinstance(note, BeatNote):
            self.horizon_ms = max(self.horizon_ms, note.horizon_ms)
            self.leader_address, self.leader_http = note.address, note.http
        elif isinstance(note, EndNote):
            self.heir = note.heir
            # 0: all that was attempted has an outcome in the log. Else a beat may have come between the making of this note
            # and its place in the log, and the writer may have attempted up to the horizon of that beat.
            self.horizon_ms = max(self.horizon_ms, note.horizon_ms) if note.horizon_ms else 0
        elif isinstance(note, BarrierNote):
            self.barrier.advance(note.version)

    def check_invariants(self) -> None:
        """Nothing is applied or kept that was not read."""
        assert self.kept.value <= self.applied.value <= self.read.value
