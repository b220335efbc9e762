"""One audit of data directories: captures them at one moment, makes a report, repeats it if retention interferes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ops.audit.broker_log import read_broker_side
from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG, Captured, capture_all
from ops.audit.completeness import CompletenessQuestion, CompletenessReport, Evidence
from ops.audit.directories import ServerDirectory, find_directories, read_names, read_retired
from ops.audit.engines import Engine, InProcess, OnSpark
from ops.audit.latency import LatencyQuestion, LatencyReport
from ops.audit.log_frames import Range
from ops.audit.selection import DUE_MAX, DUE_MIN
from ops.audit.states import Horizon
from ops.audit.takeover_reading import read_takeovers
from ops.audit.takeovers import Epochs, takeovers_of, together
from ops.audit.topic_reader import topic_capture
from ops.audit.topic_survey import Survey, survey
from ops.audit.topics import find_shards
from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.logs.due_windows import DAY_MS
from store.tables.names import Names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Say = Callable[[str], None]
# Retention removes at most one window per minute. An audit that meets it this often in a row is slower than that.
ATTEMPTS_MAX = 4
# Up to this size of its logs, some million messages, a report is made without Spark. It takes seconds then, and the start of
# Spark alone takes as long.
SMALL_BYTES = 512 << 20
_WINDOW_MS = 60_000


class AuditDisturbedError(StoreError):
    """Files vanished during every attempt. Audit a copy, or a range of due times that retention does not touch."""


@dataclass(frozen=True, slots=True)
class Audit:
    """The directories to audit, or the file of a `cluster` whose topic to audit, and the tools for it. `session` starts
    Spark, or returns the running session. `say` gets a line for people at each step. A report over at most `small_bytes` of
    logs is made without Spark."""

    session: Callable[[], SparkSession]
    fs: FileSystem
    paths: tuple[str, ...]
    say: Say
    small_bytes: int = 0
    cluster: str | None = None

    def directories(self) -> list[ServerDirectory]:
        """The directories of all paths. Raises FormatError for a path that is no data directory."""
        return find_directories(self.fs, self.paths)

    def latency(self, question: LatencyQuestion, use: Callable[[LatencyReport], Result]) -> Result:
        """The result of `use` with the latency report. `use` runs again if files vanish meanwhile."""
        if self.cluster is not None:
            surveys = self._survey(self.cluster)
            topics = topic_capture(surveys, DISPATCH_LOG)
            none: Epochs = {}
            epochs = reduce(together, [found.epochs for found in surveys], none)
            damages = [row for found in surveys for row in found.damages]
            return use(LatencyReport.made_by(self._engine([topics]), topics, question, takeovers_of(epochs), damages))
        found = self.directories()

        def attempt() -> tuple[Result, list[str]]:
            captured = self._capture(found, [DISPATCH_LOG])[DISPATCH_LOG]
            engine = self._engine([captured])
            takeovers = read_takeovers(engine, self.fs, [directory.path for directory in found])
            report = LatencyReport.made_by(engine, captured, question, takeovers)
            return use(report), captured.vanished(self.fs)

        return self._undisturbed(attempt)

    def completeness(
        self, question: CompletenessQuestion, *, broker_log: bool, use: Callable[[CompletenessReport], Result]
    ) -> Result:
        """The result of `use` with the completeness report; with `broker_log` also of the brokers' stores. `use` runs
        again if files vanish meanwhile."""
        if self.cluster is not None:
            return use(self._completeness_of_topics(self._survey(self.cluster), question))
        logs = [DISPATCH_LOG, SCHEDULE_LOG, MESSAGE_LOG, *([BROKER_LOG] if broker_log else [])]

        def attempt() -> tuple[Result, list[str]]:
            found = self.directories()  # read again: the replay position must not be later than the captured ends
            captured = self._capture(found, logs)
            engine = self._engine(captured.values())
            evidence = self._evidence(engine, found, captured, question.chosen)
            report = CompletenessReport(engine, evidence, question)
            vanished = [path for one in captured.values() for path in one.vanished(self.fs)]
            return use(report), vanished

        return self._undisturbed(attempt)

    def _survey(self, cluster: str) -> list[Survey]:
        """Read the logs of all shards once."""
        shards = find_shards(cluster)
        self.say(f"reading the topic of {len(shards)} shards")
        engine = InProcess() if self.small_bytes else OnSpark(self.session().sparkContext)
        surveys = engine.folded(shards, survey, add) or []
        size = sum([sum(found.sizes) for found in surveys])
        self.say(f"{shards[0].cluster.topic}: {size / 1e6:,.1f} MB")
        return sorted(surveys, key=lambda found: found.shard.number)

    def _completeness_of_topics(self, surveys: Sequence[Survey], question: CompletenessQuestion) -> CompletenessReport:
        captured = {log: topic_capture(surveys, log) for log in (DISPATCH_LOG, MESSAGE_LOG)}
        names = {found.shard.server_id: Names.listed(found.names) for found in surveys}
        damages = tuple([row for found in surveys for row in found.damages])
        copies = {found.shard.server_id: found.copies for found in surveys}
        evidence = Evidence(captured, [], {}, names, Horizon({}), damages, copies)
        return CompletenessReport(self._engine(captured.values()), evidence, question)

    def _engine(self, captured: Iterable[Captured]) -> Engine:
        """This process for small logs, and Spark for all others."""
        size_bytes = sum([part.size_bytes for one in captured for part in one.parts])
        return InProcess() if size_bytes <= self.small_bytes else OnSpark(self.session().sparkContext)

    def _undisturbed(self, attempt: Callable[[], tuple[Result, list[str]]]) -> Result:
        vanished: list[str] = []
        for _ in range(ATTEMPTS_MAX):
            result, vanished = attempt()
            if not vanished:
                return result
            self.say(f"{len(vanished)} files were retired meanwhile, such as {vanished[0]}: reading again")
        raise AuditDisturbedError(
            f"{vanished[0]}: files were retired while they were read, {ATTEMPTS_MAX} times in a row; "
            "audit a copy, or leave the oldest windows out with --from"
        )

    def _capture(self, found: Sequence[ServerDirectory], logs: Sequence[str]) -> dict[str, Captured]:
        captured = capture_all(self.fs, [directory.path for directory in found], logs)
        for log, one in captured.items():
            files = len({part.path for part in one.parts})
            size = sum([part.size_bytes for part in one.parts])
            self.say(f"{log}: {files} files, {size / 1e6:,.1f} MB")
        return captured

    def _evidence(
        self, engine: Engine, found: Sequence[ServerDirectory], captured: dict[str, Captured], chosen: Range
    ) -> Evidence:
        window_ms = {directory.server_id: _window_ms(directory, captured) for directory in found}
        from_ms = DUE_MIN if chosen.from_ms is None else chosen.from_ms
        to_ms = DUE_MAX if chosen.to_ms is None else chosen.to_ms
        # Read after the capture: windows removed before are in the ledger, and files removed later count as vanished.
        retired = [read_retired(self.fs, directory, from_ms, to_ms) for directory in found]
        horizon = Horizon({directory.server_id: directory.replay_offset for directory in found})
        names = read_names(self.fs, found)
        damages = [row for directory in found for row in directory.damages]
        damages += [row for one in retired for row in one.damages]
        evidence = Evidence(captured, retired, window_ms, names, horizon, tuple(damages))
        if BROKER_LOG not in captured:
            return evidence
        side = read_broker_side(engine, self.fs, found, captured[BROKER_LOG], names)
        return replace(evidence, horizon=replace(horizon, stored_from_us=side.stored_from_us), broker=side)


def _window_ms(directory: ServerDirectory, captured: Mapping[str, Captured]) -> int:
    """The window length of a server, from its checkpoint, else from its files, else the default."""
    parts = captured[SCHEDULE_LOG].parts + captured[DISPATCH_LOG].parts
    spans = {part.span_ms for part in parts if part.server_id == directory.server_id} - {0, DAY_MS}
    return directory.window_ms or min(spans, default=_WINDOW_MS)


def as_plain(value: Any) -> Any:
    """Converts numpy numbers to Python numbers, and other values to text, for JSON."""
    return value.item() if isinstance(value, np.generic) else str(value)
