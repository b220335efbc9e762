"""The life of one message, with evidence: every record about it, with the file and the offset in which it stands.

All logs are read without the bytes of the messages, so a trace of a large directory costs a fraction of a check. Evidence is
whatever verifies; damage that may hide more of it is named where the evidence says of no end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipt, parse_derived_message_id
from delayserver.recover.checking.broker_check import size_of
from delayserver.recover.checking.survey import hiding, touches
from delayserver.recover.checking.table_check import check_known_files
from delayserver.recover.checking.whole_rows import read_blobs
from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.code_words import outcome_name
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Expected, FileRead, Progress, Reader, no_progress
from delayserver.recover.reading.findings import CORRUPT, Finding
from delayserver.recover.telling.dump import put_blob
from store.errors import CorruptionError
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_of
from store.logs.schedule_key import ScheduleKey
from store.records.batches import (
    FLAG_DEAD_LETTER,
    FLAG_PREPARED,
    FLAG_PUBLISHED,
    CancelBatch,
    MessageBatch,
    OutcomeBatch,
    ProgressBatch,
    StoredBatch,
)
from store.records.column_batch import ColumnBatch
from store.records.file_header import FILE_PROGRESS, FILE_STORE
from store.records.id_hash import hash_id
from store.records.records import Records
from store.records.shared_column import plain_columns

_MESSAGE = (
    "sequence", "due_ms", "accepted_us", "expires_ms", "origin_sequence", "duplicate_of", "replaces_sequence",
    "replaces_due_ms", "id_hash", "subject", "target_group", "redelivery", "ids_length", "properties_length",
    "bodies_length", "order_keys_length", "tag", "flags",
)  # fmt: skip
_CANCEL_NAMES = ("sequence", "due_ms", "requested_us", "subject", "outcome")
_OUTCOME = tuple(name for name, _ in OutcomeBatch.schema.fields)
_STORED = (
    "sequence", "position", "due_ms", "accepted_us", "dispatched_us", "origin_sequence", "server_id", "subject",
    "target_group", "redelivery", "tag", "flags",
)  # fmt: skip
_PROGRESS = tuple(name for name, _ in ProgressBatch.schema.fields)
ACCEPTED: Final = "accepted"
SCHEDULED: Final = "scheduled"
CANCEL: Final = "cancel requested"
ROLLBACK: Final = "rollback requested"
OUTCOME: Final = "outcome"
STORED: Final = "stored by the broker"
PUBLISHED: Final = "published to the broker"
GIVEN_UP: Final = "given up by a consumer group"
ACKED: Final = "acked"
COPY: Final = "copy accepted"
RETRY: Final = "redelivery accepted"
REPLACED: Final = "replaced by"
RETIRED: Final = "retired"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One record about the message: its content, the time of the event (0: unknown), and its place."""

    at_us: int
    what: str
    file: str
    offset: int
    fields: dict[str, Any]

    def to_map(self) -> dict[str, Any]:
        """The JSON form."""
        return {"at_us": self.at_us, "what": self.what, "file": self.file, "offset": self.offset} | self.fields


@dataclass(frozen=True, slots=True)
class Life:
    """All that is known of one message. `evidence` is in the order of time; `due_ms` is -1 where no record has it."""

    sequence: int
    receipt: str
    state: str
    evidence: tuple[Evidence, ...]
    due_ms: int

    @property
    def ended(self) -> bool:
        """Whether the evidence has its outcome, or its window is retired, or it was published and gets no outcome."""
        return any(item.what in (OUTCOME, RETIRED, PUBLISHED) for item in self.evidence)


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """Which message: one of the three. `message_id` may be a client's or one that the server derived."""

    sequence: int = 0
    due_ms: int = -1
    message_id: str = ""


class Trace:
    """Reads a captured directory for one message."""

    def __init__(self, taken: Capture, progress: Progress = no_progress) -> None:
        self._taken = taken
        self._reader = Reader(taken, progress=progress, misnamed_too=True)
        self._server = f"{taken.server_id:012x}"
        self.unread: list[Finding] = []
        """Damage that may hide evidence of messages without an end, or of a message without any record."""

    def run(self, wanted: TracedMessage) -> list[Life]:
        """A life for each message meant: a client's id can name several. Empty: nothing is known of it."""
        sequences = [wanted.sequence] if wanted.sequence else self._by_id(wanted.message_id)
        found = [self._life(sequence, wanted.due_ms) for sequence in sequences]
        lives = [life for life in found if life.evidence]
        self.unread = self._hiding({life.due_ms for life in lives if not life.ended} if lives else {wanted.due_ms})
        return lives

    def _hiding(self, dues_ms: set[int]) -> list[Finding]:
        """Damage to files that may hold records of messages due then; -1: whenever they are due."""
        if not dues_ms:
            return []
        taken = self._taken
        check_known_files(taken, self._reader.findings)
        spans = [Range(due_ms, due_ms + 1) if due_ms >= 0 else Range() for due_ms in dues_ms]
        keys: dict[str, ScheduleKey | DispatchKey] = {
            **{taken.schedule_path(key): key for key in taken.files.schedule | taken.marks.schedule_known},
            **{taken.dispatch_path(found): found for found in taken.files.dispatch | taken.marks.dispatch_known},
        }
        hidden = {
            (finding.file, finding.offset): finding
            for finding in hiding(self._reader.findings)
            if finding.file not in keys or any(touches(span, taken, keys[finding.file]) for span in spans)
        }
        return list(hidden.values())

    # -- finding

    def _by_id(self, message_id: str) -> list[int]:
        derived = parse_derived_message_id(message_id)
        if derived is not None and derived[0] == self._server:
            return [derived[1]]
        wanted, data = hash_id(message_id.encode()), message_id.encode()
        found: set[int] = set()
        for read in self._message_files():
            for records, columns in _rows(read, MessageBatch, _MESSAGE):
                hits = np.flatnonzero((columns["id_hash"] == np.uint64(wanted)) & (columns["origin_sequence"] == 0))
                for row in hits.tolist():
                    blobs = self._blobs(read.path, records, columns, row)
                    if blobs is not None and blobs.get("ids") == data:
                        found.add(int(columns["sequence"][row]))
        return sorted(found)

    def _blobs(self, path: str, records: Records, columns: dict[str, Any], row: int) -> dict[str, bytes] | None:
        """Empty where they cannot be read; None where the file went, with its window, as the ledger says by now."""
        try:
            return read_blobs(self._taken, path, records, columns, row)
        except FileNotFoundError:
            return None
        except CorruptionError as error:
            self._reader.findings.add(CORRUPT, path, error.offset, error.detail)
            return {}

    def _message_files(self) -> Iterator[FileRead]:
        yield from self._log_files()
        yield from map(self._reader.schedule, self._taken.files.schedule)

    def _log_files(self) -> Iterator[FileRead]:
        return (read for _, read in self._reader.segments())

    # -- one message

    def _life(self, sequence: int, due_ms: int) -> Life:
        evidence: list[Evidence] = []
        for read in self._log_files():
            self._messages(read, ACCEPTED, sequence, evidence)
        for read in self._log_files():
            self._cancels(read, sequence, evidence)
        for key in sorted(self._taken.files.schedule):
            self._messages(self._reader.schedule(key), SCHEDULED, sequence, evidence)
        mine = {sequence} | {
            item.fields["sequence"] for item in evidence if item.fields.get("origin_sequence") == sequence
        }
        for found in sorted(self._taken.files.dispatch):
            self._outcomes(self._reader.dispatch(found), mine, evidence)
        self._broker(mine, evidence)
        self._ledger(sequence, due_ms, evidence)
        evidence.sort(key=lambda item: (item.at_us, _ORDER.index(item.what)))
        return _concluded(sequence, evidence, self._server)

    def _messages(self, read: FileRead, what: str, sequence: int, evidence: list[Evidence]) -> None:
        names = ("sequence", "origin_sequence", "duplicate_of", "replaces_sequence")
        for records, columns in _rows(read, MessageBatch, _MESSAGE):
            mask = np.zeros(records.rows, np.bool_)
            for name in names:
                mask |= columns[name] == sequence
            for row in np.flatnonzero(mask).tolist():
                fields = self._fields(columns, row)
                blobs = self._blobs(read.path, records, columns, row)
                if blobs is None:
                    continue
                for name in ("ids", "properties", "order_keys"):
                    if blobs.get(name):
                        put_blob(fields, name, blobs[name])
                fields["body_bytes"] = int(columns["bodies_length"][row])
                kind = what
                if fields["sequence"] != sequence:
                    kind = _relation(fields, sequence)
                    fields["tier"] = what
                offset = int(records.row_offsets()[row])
                evidence.append(Evidence(fields["accepted_us"], kind, read.path, offset, fields))

    def _fields(self, columns: dict[str, Any], row: int) -> dict[str, Any]:
        """The columns of a row that say something, with names for codes."""
        fields: dict[str, Any] = {}
        for name, column in columns.items():
            value = int(column[row])
            if name in ("subject", "target_group", "broker_group", "consumer_group", "tag"):
                if value:
                    fields[name] = self._taken.tables.subject_name(value)
            elif (
                name != "id_hash"
                and not name.endswith("_length")
                and (value or name in ("sequence", "due_ms", "position"))
            ):
                fields[name] = value
        if "due_ms" in fields and "accepted_us" in fields and fields.get("origin_sequence") is None:
            fields["receipt"] = format_receipt(self._server, fields["due_ms"], fields["sequence"])
        return fields

    def _cancels(self, read: FileRead, sequence: int, evidence: list[Evidence]) -> None:
        for records, columns in _rows(read, CancelBatch, _CANCEL_NAMES):
            for row in np.flatnonzero(columns["sequence"] == sequence).tolist():
                fields = self._fields(columns, row)
                what = ROLLBACK if fields.pop("outcome", 0) == int(Outcome.ROLLED_BACK) else CANCEL
                offset = int(records.row_offsets()[row])
                evidence.append(Evidence(int(columns["requested_us"][row]), what, read.path, offset, fields))

    def _outcomes(self, read: FileRead, mine: set[int], evidence: list[Evidence]) -> None:
        wanted = np.array(sorted(mine), np.int64)
        for records, columns in _rows(read, OutcomeBatch, _OUTCOME):
            for row in np.flatnonzero(np.isin(columns["sequence"], wanted)).tolist():
                fields = self._fields(columns, row)
                fields["outcome"] = outcome_name(int(columns["outcome"][row]))
                fields.pop("receipt", None)
                if int(columns["outcome"][row]) == int(Outcome.DELIVERED):
                    first_us = max(fields["due_ms"] * 1000, fields.get("accepted_us", 0))
                    fields["lateness_ms"] = (fields["dispatched_us"] - first_us) / 1000
                offset = int(records.row_offsets()[row])
                evidence.append(Evidence(int(columns["settled_us"][row]), OUTCOME, read.path, offset, fields))

    # -- the embedded broker

    def _broker(self, mine: set[int], evidence: list[Evidence]) -> None:
        root, fs = f"{self._taken.path}/broker", self._taken.fs
        wanted = np.array(sorted(mine), np.int64)
        held: list[tuple[int, int, int]] = []
        for name in fs.listdir(f"{root}/store"):
            path = f"{root}/store/{name}"
            read = self._reader.file(path, size_of(fs, path) or 0, Expected(FILE_STORE))
            for records, columns in _rows(read, StoredBatch, _STORED):
                own = columns["server_id"] == self._taken.server_id
                letters = (columns["flags"] & FLAG_DEAD_LETTER != 0) & np.isin(columns["origin_sequence"], wanted)
                for row in np.flatnonzero(own & (np.isin(columns["sequence"], wanted) | letters)).tolist():
                    fields = self._fields(columns, row)
                    fields.pop("receipt", None)
                    fields["server_id"] = self._server
                    offset = int(records.row_offsets()[row])
                    at_us = int(columns["dispatched_us"][row])
                    flags = fields.pop("flags", 0)
                    kind = PUBLISHED if flags & FLAG_PUBLISHED else STORED
                    kind = GIVEN_UP if flags & FLAG_DEAD_LETTER else kind
                    evidence.append(Evidence(at_us, kind, path, offset, fields))
                    held.append(
                        (int(columns["subject"][row]), int(columns["target_group"][row]), int(columns["position"][row]))
                    )
        progress = f"{root}/progress.log"
        if held and fs.exists(progress):
            self._acks(self._reader.file(progress, fs.size(progress), Expected(FILE_PROGRESS)), held, evidence)

    def _acks(self, read: FileRead, held: list[tuple[int, int, int]], evidence: list[Evidence]) -> None:
        for records, columns in _rows(read, ProgressBatch, _PROGRESS):
            for subject, target_group, position in held:
                mask = np.isin(columns["change"], (0, 5)) & (columns["subject"] == subject)
                mask &= (columns["start"] <= position) & (columns["stop"] > position)
                mask &= columns["retry"] == int(target_group != 0)
                if target_group:
                    mask &= columns["consumer_group"] == target_group
                for row in np.flatnonzero(mask).tolist():
                    group = self._taken.tables.subject_name(int(columns["consumer_group"][row]))
                    fields = {"consumer_group": group, "position": position, "redelivery": bool(target_group)}
                    offset = int(records.row_offsets()[row])
                    evidence.append(Evidence(_LAST, ACKED, read.path, offset, fields))

    def _ledger(self, sequence: int, due_ms: int, evidence: list[Evidence]) -> None:
        if not any(item.what == OUTCOME for item in evidence):
            self._taken.tables.read_ledger_again()  # its outcome may have gone with its window while the logs were read
        ledger = self._taken.tables.ledger
        known = [item.fields["due_ms"] for item in evidence if item.fields.get("sequence") == sequence]
        due_ms = known[0] if known else due_ms
        if ledger is None or due_ms < 0:
            return
        start = window_of(due_ms, self._taken.files.window_ms)
        if ledger.has(start):
            rows = ledger.window(start)
            if sequence <= int(rows.last_sequence.max()):
                fields = {
                    "start_ms": start,
                    "accepted": int(rows.accepted.sum()),
                    "delivered": int(rows.delivered.sum()),
                }
                evidence.append(Evidence(_LAST, RETIRED, f"{self._taken.path}/ledger.log", 0, fields))


_ORDER = (
    ACCEPTED,
    SCHEDULED,
    COPY,
    RETRY,
    CANCEL,
    ROLLBACK,
    REPLACED,
    PUBLISHED,
    STORED,
    OUTCOME,
    GIVEN_UP,
    ACKED,
    RETIRED,
)
# Records without a time of their own come last.
_LAST = 1 << 62


def _rows(
    read: FileRead, batch_type: type[ColumnBatch], names: Sequence[str]
) -> Iterator[tuple[Records, dict[str, Any]]]:
    """Records of a kind with their columns, one number each. Records that cannot be decoded are passed over: `check`
    reports them."""
    for mine, columns in read.rows(batch_type, names):
        yield mine, plain_columns(batch_type.schema.kind, columns)


def _relation(fields: dict[str, Any], sequence: int) -> str:
    if fields.get("duplicate_of") == sequence:
        return COPY
    return REPLACED if fields.get("replaces_sequence") == sequence else RETRY


def _concluded(sequence: int, evidence: list[Evidence], server: str) -> Life:
    """The evidence with what became of the message, by the last word of it."""
    own = [item for item in evidence if item.fields.get("sequence") == sequence]
    due_ms = next((int(item.fields["due_ms"]) for item in own if "due_ms" in item.fields), -1)
    receipt = format_receipt(server, due_ms, sequence) if due_ms >= 0 else ""
    outcomes = [item for item in own if item.what == OUTCOME]
    state = "unknown"
    if outcomes:
        state = str(outcomes[0].fields["outcome"])
    elif any(item.what == RETIRED for item in evidence):
        state = "retired"
    elif any(item.what == PUBLISHED for item in own):
        state = "published"
    elif any(item.what in (ACCEPTED, SCHEDULED) for item in own):
        asked = {item.what for item in evidence}
        prepared = any(item.fields.get("flags", 0) & FLAG_PREPARED for item in own)
        state = Outcome.PREPARED.label if prepared else Outcome.PENDING.label
        if ROLLBACK in asked:
            state = ROLLBACK
        elif CANCEL in asked or REPLACED in asked:
            state = CANCEL
    return Life(sequence, receipt, state, tuple(evidence), due_ms)
