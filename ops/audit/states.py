"""One state for each message, from the rows of all logs: the heart of the completeness report. Pure numpy.

A task turns the rows of its files into `ROWS`, a few counters for each row, and splits them by message. A join brings the
rows of each message together and counts its states. So the logs are read once, and only narrow rows travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG, Part
from ops.audit.grouping import Table, concatenated
from ops.audit.latency_cells import HOUR_MS
from ops.audit.part_reader import Chunk
from ops.audit.readers import names_of, read_part
from ops.audit.selection import Selection
from ops.audit.topic_reader import TopicPart
from store.logs.due_windows import DAY_MS
from store.records.batches import FLAG_PREPARED, CancelBatch
from store.records.column_batch import ColumnBatch
from store.records.outcome_balance import is_internal
from store.records.shared_column import ATTEMPTS
from store.records.transaction_timer import TIMERS_SUBJECT
from store.tables.names import OWN

ENDS: Final = (
    Outcome.DELIVERED,
    Outcome.CANCELLED,
    Outcome.DEAD_LETTERED,
    Outcome.EXPIRED,
    Outcome.DEDUPLICATED,
    Outcome.ROLLED_BACK,
)
COUNTS: Final = ("accepted", *[OUTCOME_LABELS[end] for end in ENDS], "pending")
PROBLEMS: Final = ("lost", "duplicated", "early", "orphaned", "not_stored")
# Listed messages per problem, for tracing by hand; the counts are complete.
EVIDENCE_MAX: Final = 100

# Counters of six bits each in one signed number. Each counts up to 63 rows of a kind, more than a message has.
_BITS: Final = 6
_SCHEDULED, _LOGGED, _ENDED, _ENDED_COARSE, _EARLY, _STORED, _INTERNAL, _BEHIND, _DISPATCHED, _CANCELS = range(10)

ROWS: Final = np.dtype(
    [
        ("server", "<i8"),
        ("sequence", "<i8"),
        ("due_ms", "<i8"),
        ("counters", "<i8"),
        ("subject", "<u4"),
        ("outcome", "u1"),
        ("twice", "?"),
        ("prepared", "?"),
    ]
)
"""A row of any log, as far as it says what became of a message. `outcome` 0: none."""

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    SCHEDULE_LOG: ("sequence", "due_ms", "subject", "origin_sequence", "flags"),
    MESSAGE_LOG: ("sequence", "due_ms", "subject", "origin_sequence", "flags"),
    DISPATCH_LOG: (
        "sequence", "due_ms", "subject", "origin_sequence", "redelivery", "outcome", "accepted_us", "dispatched_us",
        "attempts",
    ),
    BROKER_LOG: ("sequence", "due_ms", "server_id"),
}  # fmt: skip
_NO_END: Final = 255
# Neighbouring sequences stay together, so that their rows compress and sort well.
_BLOCK_BITS: Final = 12


@dataclass(frozen=True, slots=True)
class Horizon:
    """`replayed` by server id: the offset of message_log below which every message is in schedule_log.
    `stored_from_us`: the broker log still has every message handed off since then. None without the broker log."""

    replayed: Mapping[int, int]
    stored_from_us: int | None = None


@dataclass(frozen=True, slots=True)
class Gone:
    """Windows of one server that its ledger counts. `start_ms` i64[n] ascending, `last_sequence` i64[n]: rows up to it are
    in the ledger. `window_ms`: the length of its windows."""

    start_ms: NDArray[np.int64]
    last_sequence: NDArray[np.int64]
    window_ms: int

    def holds(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Which rows the ledger counts, bool[n]."""
        start_ms = rows["due_ms"] - rows["due_ms"] % self.window_ms
        place = np.minimum(np.searchsorted(self.start_ms, start_ms), len(self.start_ms) - 1)
        found: NDArray[np.bool_] = (self.start_ms[place] == start_ms) & (rows["sequence"] <= self.last_sequence[place])
        return found


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """What tasks and joins need to know. `gone` by server id. Messages that were due before `overdue_ms` are overdue if they
    are pending. `places`: into so many parts the messages are split. `copies` by server id: the messages of a topic whose id
    came before, i64[n] ascending."""

    selection: Selection
    horizon: Horizon
    gone: Mapping[int, Gone]
    overdue_ms: int
    places: int
    copies: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogTask:
    """Parts of one log that one task reads."""

    log: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class States:
    """Counted states. `cells`: counts by server, subject code and hour of due time. `evidence`: the first messages with each
    problem, as arrays by name, ascending by server and sequence."""

    cells: Table | None = None
    evidence: Mapping[str, NDArray[Any]] = field(default_factory=dict)


# -- the tasks


def read_rows(question: StateQuestion, task: LogTask) -> dict[int, bytes]:
    """The rows of a task by the place of their message, as bytes of `ROWS`. Corruption is skipped."""
    found: list[NDArray[Any]] = []
    for part in task.parts:
        try:
            found += _part_rows(question, task.log, part)
        except FileNotFoundError:
            continue  # the caller of `capture` checks for vanished files afterwards
    if not found:
        return {}
    rows = np.concatenate(found)
    for server_id, gone in question.gone.items():
        mine = np.flatnonzero(rows["server"] == server_id)
        if len(mine):
            rows = np.delete(rows, mine[gone.holds(rows[mine])])
    place = _places(rows, question.places)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(question.places + 1))
    return {
        index: rows[order[start:stop]].tobytes()
        for index, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
        if stop > start
    }


def _part_rows(question: StateQuestion, log: str, part: Part) -> Iterable[NDArray[Any]]:
    names = names_of(part)
    # Codes of a broker's own table name other subjects than those of the server.
    selection = question.selection.of_all_subjects() if log == BROKER_LOG else question.selection
    wanted = tuple(dict.fromkeys([*_COLUMNS[log], *selection.columns]))

    def columns(batch_type: type[ColumnBatch]) -> list[str]:
        there = {name for name, _ in batch_type.schema.fields}
        return [name for name in wanted if name in there]

    for chunk in read_part(part, columns, (), []):
        rows = _MAKERS[log](question, part, chunk)
        mask = selection.mask(chunk.columns, names)
        rows = rows if mask is None else rows[mask]
        # Of earlier messages the log has outcomes alone.
        yield rows[rows["sequence"] >= part.first_sequence] if isinstance(part, TopicPart) else rows


def _new_rows(chunk: Chunk, server: NDArray[Any] | int, subject: NDArray[Any] | int) -> NDArray[Any]:
    rows = np.zeros(len(chunk), ROWS)
    rows["server"], rows["subject"] = server, subject
    rows["sequence"], rows["due_ms"] = chunk.columns["sequence"], chunk.columns["due_ms"]
    return rows


def _one(counter: int, where: NDArray[np.bool_] | bool = True) -> NDArray[np.int64]:
    """One for a counter, in the rows where `where` is True."""
    return np.multiply(where, np.int64(1 << (_BITS * counter)), dtype=np.int64)


def _scheduled(question: StateQuestion, part: Part, chunk: Chunk) -> NDArray[Any]:
    columns = chunk.columns
    rows = _new_rows(chunk, part.server_id, columns["subject"])
    rows["counters"] = _one(_SCHEDULED) + _one(_INTERNAL, columns["origin_sequence"] != 0)
    rows["prepared"] = (columns["flags"] & FLAG_PREPARED) != 0
    return rows


def _logged(question: StateQuestion, part: Part, chunk: Chunk) -> NDArray[Any]:
    columns = chunk.columns
    rows = _new_rows(chunk, part.server_id, columns["subject"])
    internal = _one(_INTERNAL, columns["origin_sequence"] != 0)
    if chunk.batch_type is CancelBatch:
        rows["counters"] = _one(_CANCELS) + internal
        return rows
    behind = chunk.offsets + part.base < question.horizon.replayed.get(part.server_id, 0)
    rows["counters"] = _one(_LOGGED) + _one(_BEHIND, behind) + internal
    rows["prepared"] = (columns["flags"] & FLAG_PREPARED) != 0
    return rows


def _ended(question: StateQuestion, part: Part, chunk: Chunk) -> NDArray[Any]:
    timers = names_of(part).code(OWN, TIMERS_SUBJECT)
    columns, outcome, dispatched_us = chunk.columns, chunk.columns["outcome"], chunk.columns["dispatched_us"]
    rows = _new_rows(chunk, part.server_id, columns["subject"])
    internal = is_internal(columns["redelivery"], columns["origin_sequence"], outcome)
    delivered = (outcome == int(Outcome.DELIVERED)) & (dispatched_us > 0)
    early = delivered & (dispatched_us < np.maximum(columns["due_ms"] * 1000, columns["accepted_us"]))
    counters = _one(_ENDED_COARSE if part.span_ms == DAY_MS else _ENDED) + _one(_EARLY, early)
    counters = counters + _one(_INTERNAL, internal)
    if question.horizon.stored_from_us is not None:
        # A timer of a transaction is a matter of the server. No broker stores it.
        stored = delivered & (dispatched_us >= question.horizon.stored_from_us) & (columns["subject"] != (timers or 0))
        counters = counters + _one(_DISPATCHED, stored)
    rows["counters"], rows["outcome"] = counters, outcome
    rows["twice"] = delivered & (ATTEMPTS.unanswered(columns["attempts"]) > 0)
    return rows


def _stored(question: StateQuestion, part: Part, chunk: Chunk) -> NDArray[Any]:
    """Rows of a broker log, by the server that handed them over. Without subjects, whose codes differ there."""
    rows = _new_rows(chunk, chunk.columns["server_id"].astype(np.int64), 0)
    rows["counters"] = _one(_STORED)
    return rows


_MAKERS: Final = {SCHEDULE_LOG: _scheduled, MESSAGE_LOG: _logged, DISPATCH_LOG: _ended, BROKER_LOG: _stored}


def _places(rows: NDArray[Any], places: int) -> NDArray[np.int64]:
    blocks = (rows["server"] + (rows["sequence"] >> _BLOCK_BITS)).view(np.uint64)
    mixed = (blocks * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    found: NDArray[np.int64] = (mixed % np.uint64(places)).astype(np.int64)
    return found


# -- the join


def join_rows(question: StateQuestion, blobs: list[bytes]) -> States:
    """The states of the messages whose rows are in these blobs."""
    rows = np.concatenate([np.frombuffer(blob, ROWS) for blob in blobs])
    order = np.lexsort((rows["sequence"], rows["server"]))
    rows = rows[order]
    changes = (rows["server"][1:] != rows["server"][:-1]) | (rows["sequence"][1:] != rows["sequence"][:-1])
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    messages = _messages(rows, starts, question.copies)
    evidence = {}
    for problem in PROBLEMS:
        listed = np.flatnonzero(messages[f"shown_{problem}"])[:EVIDENCE_MAX]
        evidence[problem] = _evidence(messages, listed)
    counted = np.flatnonzero(~messages["stored_only"])
    if not len(counted):
        return States(None, evidence)
    return States(_cells(question, {name: column[counted] for name, column in messages.items()}), evidence)


def _messages(
    rows: NDArray[Any], starts: NDArray[np.intp], copies: Mapping[int, NDArray[np.int64]]
) -> dict[str, NDArray[Any]]:
    """One row for each message with its flags, bool[n]."""
    counters = np.add.reduceat(rows["counters"], starts)

    def counted(counter: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = (counters >> (_BITS * counter)) & ((1 << _BITS) - 1)
        return found

    outcome = np.maximum.reduceat(rows["outcome"], starts)
    for server, sequences in copies.items():
        copy = (rows["server"][starts] == server) & (outcome == 0) & np.isin(rows["sequence"][starts], sequences)
        outcome = np.where(copy, np.uint8(Outcome.DEDUPLICATED), outcome)
    ends = np.where(rows["outcome"] == 0, _NO_END, rows["outcome"])
    other_outcome = np.minimum.reduceat(ends, starts)
    accepted = (counted(_SCHEDULED) > 0) | (counted(_LOGGED) > 0)
    ended, coarse = counted(_ENDED), counted(_ENDED_COARSE)
    has_end = ended + coarse > 0
    # A moved outcome is the same in both places. The log has a cancel or a rollback only of a message that was held. It was
    # answered so, or the server stopped before the answer, and the message must not have another outcome.
    cancelled = (outcome == int(Outcome.CANCELLED)) | (outcome == int(Outcome.ROLLED_BACK))
    two_ends = (other_outcome != outcome) | ((counted(_CANCELS) > 0) & ~cancelled)
    internal = counted(_INTERNAL) > 0
    messages = {
        "server": rows["server"][starts],
        "sequence": rows["sequence"][starts],
        "due_ms": np.maximum.reduceat(rows["due_ms"], starts),
        "subject": np.maximum.reduceat(rows["subject"], starts),
        "outcome": outcome,
        "maybe_twice": np.logical_or.reduceat(rows["twice"], starts),
        "prepared": np.logical_or.reduceat(rows["prepared"], starts),
        "internal": internal,
        "accepted": accepted,
        "stored_only": ~accepted & ~has_end,
        # Replayed, so it must be in schedule_log, but it is not, and it has no outcome.
        "lost": (counted(_BEHIND) > 0) & (counted(_SCHEDULED) == 0) & ~has_end,
        # The outcomes of a coarse day move to the minutes; a crash may leave them in both places.
        "duplicated": (np.maximum(ended, coarse) > 1) | (has_end & two_ends),
        "early": counted(_EARLY) > 0,
        "orphaned": ~accepted & has_end,
        "not_stored": (counted(_DISPATCHED) > 0) & (counted(_STORED) == 0),
    }
    for problem in PROBLEMS:
        # What the server makes for itself counts where a consumer could see it.
        shown = True if problem in ("early", "not_stored") else ~internal
        messages[f"shown_{problem}"] = messages[problem] & shown
    return messages


def _cells(question: StateQuestion, messages: Mapping[str, NDArray[Any]]) -> Table:
    own = messages["accepted"] & ~messages["internal"]
    pending = own & (messages["outcome"] == 0)
    counts = {
        "accepted": own,
        "pending": pending,
        "overdue": pending & ~messages["prepared"] & (messages["due_ms"] < question.overdue_ms),
        "maybe_twice": messages["maybe_twice"] & ~messages["internal"],
        "internal": messages["internal"],
        "internal_pending": messages["internal"] & (messages["outcome"] == 0),
        **{OUTCOME_LABELS[end]: own & (messages["outcome"] == int(end)) for end in ENDS},
        **{problem: messages[f"shown_{problem}"] for problem in PROBLEMS},
    }
    keys = {
        "server": messages["server"],
        "subject": messages["subject"].astype(np.int64),
        "hour_ms": messages["due_ms"] - messages["due_ms"] % HOUR_MS,
    }
    return Table(keys, {name: column.astype(np.int64) for name, column in counts.items()}).grouped()


def _evidence(messages: Mapping[str, NDArray[Any]], places: NDArray[np.intp]) -> NDArray[Any]:
    found = np.zeros(len(places), ROWS)
    for name in ("server", "sequence", "due_ms", "subject", "outcome"):
        found[name] = messages[name][places]
    return found


def merged(parts: Sequence[States]) -> States:
    """The states of all joins, whose messages are different ones."""
    tables = [part.cells for part in parts if part.cells is not None]
    evidence = {}
    for problem in PROBLEMS:
        rows = np.concatenate([np.zeros(0, ROWS), *[part.evidence[problem] for part in parts]])
        evidence[problem] = rows[np.lexsort((rows["sequence"], rows["server"]))][:EVIDENCE_MAX]
    return States(concatenated(tables).grouped() if tables else None, evidence)
