"""Counts outcome rows into cells for a latency report, in the task that reads them. Pure numpy.

Millions of rows become some thousand cells. Every figure of the report is a sum over cells of one kind:

    WHOLE    by internal or not and bucket of lateness; of delivered rows, as the next three are
    MINUTE   by due minute and bucket, without internal rows
    SUBJECT  by subject and bucket, without internal rows
    BY       by the dimensions of the question and bucket, without internal rows
    OUTCOME  by outcome, internal or not, delivered or not, and attempts; with the sums of the stage times
    STAGE    by stage and bucket of its time; of delivered rows that are not internal
    TROUBLE  by broker group and due minute, of delivered rows that had to wait for their group
    TAKEOVER by epoch of the shard and bucket, of rows that waited for the next primary, without internal rows

No cell is by minute and subject at once, because that would make nearly as many cells as rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from ops.audit.grouping import Table, concatenated
from ops.audit.histogram import buckets_of
from ops.audit.takeovers import Takeover
from store.records.outcome_balance import is_internal
from store.records.shared_column import ATTEMPTS

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
# A delivery that waits this long for its broker group marks the group as in trouble.
TROUBLE_US = 1_000_000
# Numbers of attempts from this on are counted together.
ATTEMPTS_MAX = 20
STAGES = ("load", "wheel", "queue", "handoff", "settle")
"""The stages of a delivery. `load`: until the row is in the wheel. `wheel`: until the wheel releases it. `queue`: until
a worker of its broker group takes it, with back-off. `handoff`: until it is handed to the broker. These four add up to
the lateness. `settle`: until the broker's answer, after the hand-off."""

WHOLE, MINUTE, SUBJECT, BY = "whole", "minute", "subject", "by"
OUTCOME, STAGE, TROUBLE, TAKEOVER = "outcome", "stage", "trouble", "takeover"
# A hand-over shortly before the last record of a primary may have no outcome there. The next primary makes it again.
_UNSETTLED_US = 1_000_000
KEYS = {"subject": "subject", "broker_group": "broker_group", "minute": "minute_ms", "hour": "hour_ms"}
"""The column of the cells for each dimension. `server_id` has none, as it is the same for all rows of a part."""

COLUMNS = (
    "due_ms", "accepted_us", "loaded_us", "released_us", "queued_us", "dispatched_us", "settled_us",
    "origin_sequence", "subject", "broker_group", "attempts", "redelivery", "outcome",
)  # fmt: skip
"""Stored columns from which cells are computed."""

Columns = Mapping[str, NDArray[Any]]


class CellCounter:
    """Counts rows of the dispatch log of one server. `slo_us`: the lateness allowed by the objective. `by`: the
    dimensions of the question; empty if other cells have them. `takeovers`: those of this server."""

    def __init__(self, slo_us: int, by: Sequence[str], takeovers: Sequence[Takeover] = ()) -> None:
        self._slo_us = slo_us
        self._takeovers = sorted(takeovers, key=lambda each: each.claimed_us)
        self._by = [KEYS[name] for name in by if name in KEYS] if by else None
        self._late: list[Table] = []
        self._others: dict[str, list[Table]] = {OUTCOME: [], STAGE: [], TROUBLE: [], TAKEOVER: []}

    def add(self, rows: Columns) -> None:
        """Counts rows. `rows` has arrays of one length, with the names in `COLUMNS`."""
        if not len(rows["due_ms"]):
            return
        rows = _times(rows)
        self._others[OUTCOME].append(_outcomes(rows).grouped())
        late = _where(rows, rows["delivered"])
        if len(late["late_us"]):
            self._late.append(self._lateness(late).grouped())
            self._others[STAGE].append(_stages(late))
            if self._takeovers:
                self._others[TAKEOVER].append(_waited(late, self._takeovers).grouped())
        trouble = (late["attempts"] > 1) | (late["queue_us"] >= TROUBLE_US)
        if trouble.any():
            self._others[TROUBLE].append(_troubles(_where(late, trouble)).grouped())

    def cells(self) -> dict[str, Table]:
        """The cells by kind, without kinds that have none."""
        found = {kind: concatenated(tables).grouped() for kind, tables in self._others.items() if tables}
        if self._late:
            late = concatenated(self._late)
            found[WHOLE] = late.by("internal", "bucket").grouped()
            own = late.where(~late.keys["internal"])
            found[MINUTE] = own.by("minute_ms", "bucket").grouped()
            found[SUBJECT] = own.by("subject", "bucket").grouped()
            if self._by is not None:
                found[BY] = own.by(*self._by, "bucket").grouped()
        return found

    def _lateness(self, rows: Columns) -> Table:
        late_us = rows["late_us"]
        keys = dict.fromkeys(
            ("subject", "minute_ms", *[name for name in self._by or () if name != "hour_ms"], "internal")
        )
        found = {name: rows[name] for name in keys}
        if "hour_ms" in (self._by or ()):
            found["hour_ms"] = rows["minute_ms"] - rows["minute_ms"] % HOUR_MS
        return Table(
            {**found, "bucket": buckets_of(late_us)},
            {
                "count": np.ones(len(late_us), np.int64),
                "early": (late_us < 0).astype(np.int64),
                "within": (late_us <= self._slo_us).astype(np.int64),
            },
            {"max_us": late_us},
        )


def _where(rows: Columns, wanted: NDArray[np.bool_]) -> Columns:
    return rows if wanted.all() else {name: column[wanted] for name, column in rows.items()}


def _times(rows: Columns) -> dict[str, NDArray[Any]]:
    """The rows with their lateness and stage times in microseconds, zeros for rows that were not delivered."""
    outcome, dispatched_us = rows["outcome"], rows["dispatched_us"]
    delivered = (outcome == int(Outcome.DELIVERED)) & (dispatched_us > 0)
    due_us = np.maximum(rows["due_ms"] * 1000, rows["accepted_us"])
    in_wheel_us = np.maximum(due_us, rows["loaded_us"])
    times = {
        "late_us": dispatched_us - due_us,
        "load_us": in_wheel_us - due_us,
        "wheel_us": rows["released_us"] - in_wheel_us,
        "queue_us": rows["queued_us"] - rows["released_us"],
        "handoff_us": dispatched_us - rows["queued_us"],
        "settle_us": rows["settled_us"] - dispatched_us,
    }
    if not delivered.all():
        times = {name: np.where(delivered, time, 0) for name, time in times.items()}
    return {
        **times,
        "subject": rows["subject"],
        "broker_group": rows["broker_group"],
        "minute_ms": rows["due_ms"] - rows["due_ms"] % MINUTE_MS,
        "outcome": outcome,
        "attempts": ATTEMPTS.number(rows["attempts"]),
        "elsewhere": ATTEMPTS.unanswered(rows["attempts"]),
        "delivered": delivered,
        "internal": is_internal(rows["redelivery"], rows["origin_sequence"], outcome),
        "released_us": rows["released_us"],
        "dispatched_us": dispatched_us,
    }


def _outcomes(rows: Columns) -> Table:
    keys = {name: rows[name] for name in ("outcome", "internal", "delivered")}
    # As doubles: a day in microseconds, times a billion messages, overflows 64 bits.
    sums = {f"{stage}_sum_us": rows[f"{stage}_us"].astype(np.float64) for stage in STAGES}
    return Table(
        {**keys, "attempts": np.minimum(rows["attempts"], ATTEMPTS_MAX)},
        {
            "count": np.ones(len(rows["attempts"]), np.int64),
            "maybe_twice": (rows["elsewhere"] > 0).astype(np.int64),
            "sum_us": rows["late_us"].astype(np.float64),
            **sums,
        },
        {f"{stage}_max_us": rows[f"{stage}_us"] for stage in STAGES},
    )


def _troubles(rows: Columns) -> Table:
    attempts = rows["attempts"]
    return Table(
        {name: rows[name] for name in ("broker_group", "minute_ms")},
        {"count": np.ones(len(attempts), np.int64), "retried": (attempts > 1).astype(np.int64)},
        {"attempts_max": np.minimum(attempts, ATTEMPTS_MAX), "trouble_to_us": rows["dispatched_us"]},
        {"trouble_from_us": rows["released_us"]},
    )


def _waited(rows: Columns, takeovers: Sequence[Takeover]) -> Table:
    """The rows that were to be delivered while no member led, and were delivered by the next primary. `takeovers` in the
    order of their claims."""
    claimed_us, last_us, epoch = (
        np.array([getattr(each, name) for each in takeovers], np.int64) for name in ("claimed_us", "last_us", "epoch")
    )
    ready_us = rows["dispatched_us"] - rows["late_us"]
    # The first claim behind the time at which the row was to be delivered.
    place = np.searchsorted(claimed_us, ready_us, side="right")
    following = np.minimum(place, len(takeovers) - 1)
    waited = (place < len(takeovers)) & (rows["dispatched_us"] >= claimed_us[following])
    waited &= (ready_us >= last_us[following] - _UNSETTLED_US) & ~rows["internal"]
    late = _where(rows, waited)
    return Table(
        {"epoch": epoch[following[waited]], "bucket": buckets_of(late["late_us"])},
        {
            "count": np.ones(len(late["late_us"]), np.int64),
            "maybe_twice": (late["elsewhere"] > 0).astype(np.int64),
        },
        {"max_us": late["late_us"]},
    )


def _stages(rows: Columns) -> Table:
    own = ~rows["internal"]
    counts = [np.bincount(buckets_of(rows[f"{stage}_us"][own])) for stage in STAGES]
    buckets = [np.flatnonzero(count) for count in counts]
    stage = np.repeat(np.arange(len(STAGES)), [len(found) for found in buckets])
    found = [count[bucket] for count, bucket in zip(counts, buckets, strict=True)]
    return Table({"stage": stage, "bucket": np.concatenate(buckets)}, {"count": np.concatenate(found)})
