"""The completeness report: accepted = delivered + cancelled + dead-lettered + expired + deduplicated + rolled back +
pending.

Lists messages that break it: lost, duplicated, early, orphaned, each with a receipt for `delayserver recover trace`.
Windows that retention removed count as in the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from delayserver.protocol.outcomes import OUTCOME_LABELS
from delayserver.protocol.receipts import format_receipt
from ops.audit.broker_log import BrokerSide
from ops.audit.capture import Captured
from ops.audit.directories import CorruptRow, Retired
from ops.audit.engines import Engine
from ops.audit.latency import instant
from ops.audit.latency_cells import HOUR_MS
from ops.audit.log_frames import PACK_BYTES, Range
from ops.audit.log_rows import damages_of, pack
from ops.audit.states import (
    COUNTS,
    PROBLEMS,
    Gone,
    Horizon,
    LogTask,
    StateQuestion,
    join_rows,
    merged,
    read_rows,
)
from store.tables.names import Names

# A join gets the rows of so many bytes of logs. They are some tenth of it, and are sorted in memory.
JOIN_BYTES = 128 << 20
_LEDGER = ("accepted", "delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back")


@dataclass(frozen=True, slots=True)
class CompletenessQuestion:
    """The question. A pending message that was due `grace_ms` before `now_ms` is overdue. A prepared
    transaction is not: it is due when it is committed."""

    chosen: Range
    now_ms: int
    grace_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """The inputs: logs captured at one moment, ledgers (`retired`), names, and the horizons.

    `window_ms` and `names` are by server id, and so are `copies`, as in `StateQuestion`. `damages`: rows of the `corrupt`
    report for checkpoints, ledgers and topics."""

    captured: Mapping[str, Captured]
    retired: Sequence[Retired]
    window_ms: Mapping[int, int]
    names: Mapping[int, Names]
    horizon: Horizon
    damages: tuple[CorruptRow, ...] = ()
    copies: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    broker: BrokerSide | None = None


class CompletenessReport:
    """One join over all logs, and the figures computed from it."""

    def __init__(self, engine: Engine, evidence: Evidence, question: CompletenessQuestion) -> None:
        self._evidence = evidence
        self._question = question
        selection = question.chosen.selection()
        tasks = [
            LogTask(log, partition.parts)
            for log, captured in evidence.captured.items()
            for partition in pack([part for part in captured.parts if selection.touches(part)], PACK_BYTES)
        ]
        size_bytes = sum([part.size_bytes for task in tasks for part in task.parts])
        asked = StateQuestion(
            selection,
            evidence.horizon,
            self._gone(),
            question.now_ms - question.grace_ms,
            max(1, -(-size_bytes // JOIN_BYTES)),
            evidence.copies,
        )
        self._states = merged(
            engine.exchanged(tasks, partial(read_rows, asked), partial(join_rows, asked), asked.places)
        )
        # All files are looked at, also those without a row of the range: damage hides what a row says.
        whole = [
            partition.parts
            for captured in evidence.captured.values()
            # A survey has found the damage of topics.
            for partition in pack([part for part in captured.parts if part.directory], PACK_BYTES)
        ]
        damages = engine.folded(whole, damages_of, add) or []
        self._damages = sorted(damages, key=lambda row: (str(row["file"]), row["start"]))
        self.hours = self._hours()

    def _gone(self) -> dict[int, Gone]:
        gone: dict[int, Gone] = {}
        for retired in self._evidence.retired:
            if len(retired.rows):
                starts, first = np.unique(retired.rows.start_ms, return_index=True)
                last = _highest(retired.rows.start_ms, retired.rows.last_sequence, len(first))
                gone[retired.server_id] = Gone(starts, last, self._evidence.window_ms[retired.server_id])
        return gone

    def _hours(self) -> list[dict[str, Any]]:
        """Counts by server, subject and hour of due time, of the rows in the logs and of the ledgers."""
        counts: dict[tuple[str, str, int], Counter[str]] = {}
        for key, found in (*self._from_logs(), *self._from_ledgers()):
            counts.setdefault(key, Counter()).update(found)
        return [
            {"server_id": key[0], "subject": key[1], "hour_ms": key[2]} | {name: values[name] for name in _SUMS}
            for key, values in sorted(counts.items())
        ]

    def _from_logs(self) -> Iterable[tuple[tuple[str, str, int], Counter[str]]]:
        cells = self._states.cells
        if cells is None:
            return
        sums = {name: column.tolist() for name, column in cells.sums.items()}
        keys = zip(*[cells.keys[name].tolist() for name in ("server", "subject", "hour_ms")], strict=True)
        for index, (server, code, hour_ms) in enumerate(keys):
            key = (f"{server:012x}", self._subject(server, code), hour_ms)
            yield key, Counter({name: column[index] for name, column in sums.items()})

    def _from_ledgers(self) -> Iterable[tuple[tuple[str, str, int], Counter[str]]]:
        wanted = self._question.chosen.subjects
        for retired in self._evidence.retired:
            rows, names = retired.rows, self._evidence.names[retired.server_id]
            if not len(rows):
                continue
            hours = rows.start_ms - rows.start_ms % HOUR_MS
            keys, inverse = np.unique(np.stack([rows.subject.astype(np.int64), hours]), axis=1, return_inverse=True)
            place = inverse.ravel()
            sums = {name: np.bincount(place, getattr(rows, name), keys.shape[1]).astype(np.int64) for name in _LEDGER}
            for index, (subject, hour_ms) in enumerate(keys.T.tolist()):
                text = names.name(subject) if subject else ""
                if not wanted or text in wanted:
                    found = Counter({name: int(values[index]) for name, values in sums.items()})
                    found["retired"] = found["accepted"]
                    yield (f"{retired.server_id:012x}", text, hour_ms), found

    def to_map(self) -> dict[str, Any]:
        """The JSON report."""
        total = _sum(self.hours)
        broker = self._evidence.broker
        names = [name for name in PROBLEMS if name != "not_stored" or broker is not None]
        return {
            **{name: total[name] for name in COUNTS},
            "balanced": total["accepted"] == sum([total[name] for name in COUNTS[1:]]),
            **{name: total[name] for name in names},
            **({"broker": broker.to_map()} if broker is not None else {}),
            "overdue": total["overdue"],
            "maybe_twice": total["maybe_twice"],
            "retired": total["retired"],
            "internal": {"accepted": total["internal"], "pending": total["internal_pending"]},
            "by_subject": self.by("subject"),
            "by_hour": self.by("hour_ms"),
            "by_server": self.by("server_id"),
            "evidence": {name: self.evidence(name) if total[name] else [] for name in names},
            "corrupt": [*self._evidence.damages, *self._damages],
        }

    def table(self) -> pa.Table:
        """The balance by server, subject and hour, for a .parquet file."""
        fields = [("server_id", pa.string()), ("subject", pa.string()), ("hour_ms", pa.int64())]
        schema = pa.schema([*fields, *[(name, pa.int64()) for name in _SUMS]])
        return pa.Table.from_pylist(self.hours, schema=schema)

    def by(self, dimension: str) -> list[dict[str, Any]]:
        """The balance by subject, hour or server, where it has a figure. A subject of timers or check-backs has none."""
        groups: dict[Any, list[dict[str, Any]]] = {}
        for row in self.hours:
            groups.setdefault(row[dimension], []).append(row)
        label = "hour" if dimension == "hour_ms" else dimension
        shown = {key: {name: _sum(rows)[name] for name in _SHOWN} for key, rows in sorted(groups.items())}
        return [
            {label: instant(key) if label == "hour" else key} | figures
            for key, figures in shown.items()
            if any(figures.values())
        ]

    def evidence(self, problem: str) -> list[dict[str, Any]]:
        """The first messages with a problem: server_id, sequence, due_ms, subject, outcome, and receipt."""
        return [
            {
                "server_id": f"{row['server']:012x}",
                "sequence": int(row["sequence"]),
                "due_ms": int(row["due_ms"]),
                "subject": self._subject(int(row["server"]), int(row["subject"])),
                "outcome": OUTCOME_LABELS[int(row["outcome"])] if row["outcome"] else "pending",
                "receipt": format_receipt(f"{row['server']:012x}", int(row["due_ms"]), int(row["sequence"])),
            }
            for row in self._states.evidence[problem]
        ]

    def _subject(self, server: int, code: int) -> str:
        names = self._evidence.names.get(server)
        return names.name(code) if names is not None and 0 < code <= len(names) else ""


_SHOWN = (*COUNTS, *PROBLEMS[:4], "overdue", "maybe_twice")
_SUMS = (*COUNTS, *PROBLEMS, "overdue", "maybe_twice", "internal", "internal_pending", "retired")


def _sum(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update({name: row[name] for name in _SUMS})
    return total


def _highest(starts: Any, values: Any, count: int) -> Any:
    """The largest value of each distinct start, ascending by start."""
    _, inverse = np.unique(starts, return_inverse=True)
    highest = np.zeros(count, np.int64)
    np.maximum.at(highest, inverse, values)
    return highest
