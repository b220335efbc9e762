"""Counts what lies in the files, apart from the server's own counters: accepted and outcomes, each sequence once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from store.logs.dispatch_log import DispatchLog
from store.logs.schedule_log import ScheduleLog, ScheduleSource
from store.logs.window_files import FileUse
from store.tables.ledger import Ledger
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host

# Before the code of a subject, in the counts: its pending messages.
SUBJECT = "subject "
OUTCOMES = {4: "delivered", 5: "cancelled", 6: "expired", 7: "deduplicated", 8: "dead_lettered", 12: "rolled_back"}


def count_files(host: Host) -> Counter[str]:
    """The balance of rule 3 from dispatch_log, schedule_log and the ledger."""
    assert host.server is not None
    directory, window_ms = host.server.parts.opened.directory, host.settings.storage.window_ms
    fs, server_id = host.disk, directory.server_id
    counts: Counter[str] = Counter()
    done: Counter[tuple[int, bool]] = Counter()
    outcome_of: dict[int, int] = {}
    dispatch = DispatchLog(fs, "/data/dispatch_log", server_id, window_ms, FileUse(write=False), reserve_bytes=0)
    dispatch.recover_all({})
    ledger = Ledger.open(fs, "/data", server_id, write=False)
    for key in dispatch.keys():
        rows = dispatch.outcomes(key)
        rows = rows.take(np.flatnonzero(rows.sequence > _retired_to(ledger, key.start_ms, coarse=key.coarse)))
        for sequence, outcome, origin in zip(
            rows.sequence.tolist(), rows.outcome.tolist(), rows.origin_sequence.tolist(), strict=True
        ):
            # While a day drains its outcomes are moved: for a while they stand in the day's file and in the minute's.
            done[sequence, key.coarse] += 1
            if origin == 0 or outcome == 7:
                if sequence in outcome_of and outcome_of[sequence] != outcome:
                    raise SimulationFailure(f"sequence {sequence} has outcomes {outcome_of[sequence]} and {outcome}")
                outcome_of[sequence] = outcome
    twice = [sequence for (sequence, _), times in done.items() if times > 1]
    if twice:
        raise SimulationFailure(f"sequences {twice[:5]} have more than one outcome row")
    for outcome in outcome_of.values():
        counts[OUTCOMES[outcome]] += 1
    sequences = _scheduled(host, server_id, window_ms, ledger)
    counts["accepted"] = len(sequences)
    pending = sequences.keys() - outcome_of.keys()
    counts["pending"] = len(pending)
    for sequence in pending:
        counts[f"{SUBJECT}{sequences[sequence]}"] += 1
    strangers = outcome_of.keys() - sequences.keys()
    if strangers:
        raise SimulationFailure(f"outcomes of sequences {sorted(strangers)[:5]} that no schedule file has")
    totals = ledger.totals()
    for name in ("accepted", *OUTCOMES.values()):
        counts[name] += int(getattr(totals, name).sum())
    for part in (dispatch, ledger):
        part.close()
    return counts


def _retired_to(ledger: Ledger, start_ms: int, *, coarse: bool) -> int:
    """What the ledger counts of a window is up to this sequence; a message that came meanwhile keeps the files."""
    return ledger.last_sequence(start_ms) if not coarse else 0


def _scheduled(host: Host, server_id: int, window_ms: int, ledger: Ledger) -> dict[int, int]:
    """The subject codes of all messages, by their sequences."""
    schedule = ScheduleLog(host.disk, "/data/schedule_log", server_id, window_ms, FileUse(write=False))
    schedule.recover_all({})
    seen: dict[int, ScheduleSource] = {}
    subjects: dict[int, int] = {}
    for key in schedule.keys():
        columns = schedule.read_columns(key, ("sequence", "origin_sequence", "subject"))
        retired_to = _retired_to(ledger, key.start_ms, coarse=key.source == ScheduleSource.DAY)
        for sequence, origin, subject in zip(*[column.tolist() for column in columns.values()], strict=True):
            if origin or sequence <= retired_to:
                continue
            before = seen.get(sequence)
            # A day that is being drained holds rows that its minutes have already.
            if before is not None and {before, key.source} != {ScheduleSource.DAY, ScheduleSource.FROM_DAY}:
                raise SimulationFailure(f"sequence {sequence} lies in {before} and in {key}")
            seen[sequence] = key.source
            subjects[sequence] = subject
    schedule.close()
    return subjects


def check_files(host: Host, status: dict[str, Any]) -> None:
    """The files and the status must say the same, to the message."""
    counts = count_files(host)
    _check_subjects(host, counts)
    for name in ("accepted", "pending", *OUTCOMES.values()):
        if counts[name] != status[name]:
            raise SimulationFailure(f"{name}: the files say {counts[name]}, status says {status[name]}; {dict(counts)}")


def _check_subjects(host: Host, counts: Counter[str]) -> None:
    """The counters of the subjects say what the files say, as soon as they are known."""
    assert host.server is not None
    told = host.server.parts.state.balance.subjects
    if not told.is_counted:
        return
    pending = {code: count for code, count in enumerate(told.pending().tolist()) if count}
    found = {int(name.removeprefix(SUBJECT)): count for name, count in counts.items() if name.startswith(SUBJECT)}
    if pending != found:
        raise SimulationFailure(f"pending by subject: the files say {found}, the counters {pending}")
