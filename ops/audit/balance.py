"""Joins the rows of all logs by (server, sequence) into one row per message.

A row of any log becomes a few counters packed in one number. So the join is one sum per message: a shuffle of narrow
rows instead of three joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG, Captured
from ops.audit.log_frames import Range, read_log

# Counters of six bits each in one signed number. Each counts up to 63 rows of a kind, more than a message has.
_BITS = 6
_SCHEDULED, _LOGGED, _ENDED, _ENDED_COARSE, _EARLY, _STORED, _INTERNAL, _BEHIND, _DISPATCHED, _CANCELS = range(10)
ENDS = (
    Outcome.DELIVERED,
    Outcome.CANCELLED,
    Outcome.DEAD_LETTERED,
    Outcome.EXPIRED,
    Outcome.DEDUPLICATED,
    Outcome.ROLLED_BACK,
)
KEY = ("server", "sequence")
COUNTS = ("accepted", *[OUTCOME_LABELS[end] for end in ENDS], "pending")
PROBLEMS = ("lost", "duplicated", "early", "orphaned", "not_stored")


@dataclass(frozen=True, slots=True)
class Horizon:
    """`replayed` by server id: the offset of message_log below which every message is in schedule_log.
    `stored_from_us`: the broker log still has every message handed off since then. None without the broker log."""

    replayed: Mapping[int, int]
    stored_from_us: int | None = None


def _one(counter: int, where: Column | None = None) -> Column:
    """Adds one to a counter, for the rows where `where` is True, by default all."""
    unit = F.lit(1 << (_BITS * counter))
    return unit if where is None else F.when(where, unit).otherwise(F.lit(0)).cast("long")


def _counter(counter: int) -> Column:
    return F.shiftright("counters", _BITS * counter).bitwiseAND(F.lit((1 << _BITS) - 1))


def _rows(
    frame: DataFrame,
    counters: Column,
    outcome: Column | None = None,
    maybe_twice: Column | None = None,
    prepared: Column | None = None,
) -> DataFrame:
    end = F.lit(0) if outcome is None else outcome
    twice = F.lit(False) if maybe_twice is None else maybe_twice
    unseen = F.lit(False) if prepared is None else F.coalesce(prepared, F.lit(False))
    columns = (
        *KEY,
        "due_ms",
        "subject_code",
        counters.cast("long").alias("counters"),
        end.cast("int").alias("outcome"),
        twice.alias("maybe_twice"),
        unseen.alias("prepared"),
    )
    return frame.select(*columns)


def _schedule(spark: SparkSession, captured: Captured, chosen: Range) -> DataFrame:
    columns = ("server", "sequence", "due_ms", "subject_code", "origin_sequence", "prepared")
    frame = read_log(spark, captured, columns, chosen)
    counters = _one(_SCHEDULED) + _one(_INTERNAL, F.col("origin_sequence") != 0)
    return _rows(frame, counters, prepared=F.col("prepared"))


def _message(spark: SparkSession, captured: Captured, chosen: Range, replayed: Mapping[int, int]) -> DataFrame:
    columns = ("server", "sequence", "due_ms", "subject_code", "origin_sequence", "prepared", "cancel", "log_offset")
    frame = read_log(spark, captured, columns, chosen)
    cancel, behind = F.col("cancel"), F.lit(False)
    for server, offset in replayed.items():
        behind = behind | ((F.col("server") == server) & (F.col("log_offset") < offset))
    counters = _one(_LOGGED, ~cancel) + _one(_CANCELS, cancel) + _one(_BEHIND, ~cancel & behind)
    counters = counters + _one(_INTERNAL, F.col("origin_sequence") != 0)
    return _rows(frame, counters, prepared=F.col("prepared"))


def _dispatch(spark: SparkSession, captured: Captured, chosen: Range, stored_from_us: int | None) -> DataFrame:
    columns = ("server", "sequence", "due_ms", "subject_code", "origin_sequence", "redelivery", "outcome_code")
    others = ("accepted_us", "dispatched_us", "unanswered_elsewhere", "coarse")
    frame = read_log(spark, captured, (*columns, *others), chosen)
    outcome = F.col("outcome_code")
    internal = ((F.col("origin_sequence") != 0) | (F.col("redelivery") > 0)) & (outcome != int(Outcome.DEDUPLICATED))
    delivered = (outcome == int(Outcome.DELIVERED)) & (F.col("dispatched_us") > 0)
    early = delivered & (F.col("dispatched_us") < F.greatest(F.col("due_ms") * 1000, F.col("accepted_us")))
    counters = _one(_ENDED, ~F.col("coarse")) + _one(_ENDED_COARSE, F.col("coarse")) + _one(_EARLY, early)
    counters = counters + _one(_INTERNAL, internal)
    if stored_from_us is not None:
        counters = counters + _one(_DISPATCHED, delivered & (F.col("dispatched_us") >= stored_from_us))
    return _rows(frame, counters, outcome, delivered & (F.col("unanswered_elsewhere") > 0))


def _stored(spark: SparkSession, captured: Captured, chosen: Range) -> DataFrame:
    """Rows of the broker log, by the server that handed them over. Without subjects, whose codes differ there."""
    frame = read_log(spark, captured, ("server", "sequence", "due_ms"), Range(chosen.from_ms, chosen.to_ms))
    return _rows(frame.withColumn("subject_code", F.lit(0)), _one(_STORED))


def states(
    spark: SparkSession,
    captured: Mapping[str, Captured],
    chosen: Range,
    horizon: Horizon,
    retired: DataFrame | None,
    window_ms: Mapping[int, int],
) -> DataFrame:
    """One row per message: server, sequence, due_ms, subject_code, outcome (0: pending), internal, `maybe_twice`,
    `prepared`, and the flags of `PROBLEMS`.

    `prepared`: a transaction that was prepared, which no consumer sees before its commit.
    `maybe_twice`: delivered, and an earlier hand-over to another node had no answer.
    `retired` rows (server, start_ms, last_sequence) are windows that the ledger counts.
    """
    rows = _schedule(spark, captured[SCHEDULE_LOG], chosen)
    rows = rows.unionByName(_message(spark, captured[MESSAGE_LOG], chosen, horizon.replayed))
    rows = rows.unionByName(_dispatch(spark, captured[DISPATCH_LOG], chosen, horizon.stored_from_us))
    if BROKER_LOG in captured:
        rows = rows.unionByName(_stored(spark, captured[BROKER_LOG], chosen))
    if retired is not None:
        start_ms = rows["due_ms"] - F.pmod(rows["due_ms"], _by_server(rows["server"], window_ms))
        gone = (rows["server"] == retired["server"]) & (start_ms == retired["start_ms"])
        rows = rows.join(F.broadcast(retired), gone & (rows["sequence"] <= retired["last_sequence"]), "left_anti")
    messages = rows.groupBy(*KEY).agg(
        F.max("due_ms").alias("due_ms"),
        F.max("subject_code").alias("subject_code"),
        F.max("outcome").alias("outcome"),
        F.min(F.when(F.col("outcome") != 0, F.col("outcome"))).alias("other_outcome"),
        F.sum("counters").alias("counters"),
        F.max("maybe_twice").alias("maybe_twice"),
        F.max("prepared").alias("prepared"),
    )
    return _flagged(messages)


def _by_server(server: Column, values: Mapping[int, int]) -> Column:
    """The value of each row's server."""
    chosen = [F.when(server == server_id, F.lit(value)) for server_id, value in values.items()]
    return F.coalesce(*chosen)


def _flagged(messages: DataFrame) -> DataFrame:
    accepted = (_counter(_SCHEDULED) > 0) | (_counter(_LOGGED) > 0)
    ended, coarse = _counter(_ENDED), _counter(_ENDED_COARSE)
    # A moved outcome is the same in both places. The log has a cancel or a rollback only of a message that was held. It was
    # answered so, or the server stopped before the answer, and the message must not have another outcome.
    two_ends = (F.col("other_outcome") != F.col("outcome")) | (
        (_counter(_CANCELS) > 0) & ~F.col("outcome").isin(int(Outcome.CANCELLED), int(Outcome.ROLLED_BACK))
    )
    flags = {
        "internal": _counter(_INTERNAL) > 0,
        "accepted": accepted,
        "stored_only": ~accepted & (ended + coarse == 0),
        # Replayed, so it must be in schedule_log, but it is not, and it has no outcome.
        "lost": (_counter(_BEHIND) > 0) & (_counter(_SCHEDULED) == 0) & (ended + coarse == 0),
        # The outcomes of a coarse day move to the minutes; a crash may leave them in both places.
        "duplicated": (F.greatest(ended, coarse) > 1) | ((ended + coarse > 0) & two_ends),
        "early": _counter(_EARLY) > 0,
        "orphaned": ~accepted & (ended + coarse > 0),
        "not_stored": (_counter(_DISPATCHED) > 0) & (_counter(_STORED) == 0),
        "stored": _counter(_STORED),
    }
    return messages.withColumns(flags)
