"""Spark data sources: `delay_dispatch_log`, `delay_schedule_log`, `delay_message_log`, `delay_broker_log`.

    register(spark)
    spark.read.format("delay_dispatch_log").option("columns", "subject,due_ms").load("/data/server-1")

Options: `columns` (or a narrower `.schema`), `from`, `to`, `subjects`, `corrupt` (`fail`, `skip` or `report`),
`part_bytes`, `pack_bytes`. Paths are data directories, which must have the same path on driver and executors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from delayserver.config.units import parse_size_bytes
from ops.audit.capture import (
    BROKER_LOG,
    DISPATCH_LOG,
    MESSAGE_LOG,
    PART_BYTES,
    SCHEDULE_LOG,
    Captured,
    capture,
)
from ops.audit.fields import CORRUPT_FIELDS, Field, default_fields, fields_named, schema_of
from ops.audit.log_rows import LogPartition, corrupt_rows, pack, read_rows
from ops.audit.pushdown import push_filters, pushed_without_being_asked
from ops.audit.selection import Selection
from ops.audit.topic_reader import topic_capture
from ops.audit.topic_survey import survey
from ops.audit.topics import find_shards
from store.disk.filesystem import RealFileSystem

FAIL, SKIP, REPORT = "fail", "skip", "report"


def directories_of(options: Mapping[str, str]) -> list[str]:
    """The data directories of `load(path)` or `load([path, ...])`. Raises ValueError."""
    many = options.get("paths")
    found = json.loads(many) if many else [options["path"]] if options.get("path") else []
    if not found:
        raise ValueError("name a data directory: .load('/data/server-1'), or a list of them")
    return [str(path).removeprefix("file://").rstrip("/") or "/" for path in found]


class LogSource(DataSource):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """One log of one or more data directories."""

    log: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return f"delay_{cls.log}"

    @property
    def corrupt(self) -> str:
        """The option `corrupt`. Raises ValueError."""
        choice = str(self.options.get("corrupt", FAIL)).lower()
        if choice not in (FAIL, SKIP, REPORT):
            raise ValueError(f"corrupt={choice}: write fail, skip or report")
        return choice

    def schema(self) -> StructType:
        """The schema of the option `columns`, or of the default columns."""
        if self.corrupt == REPORT:
            return schema_of(CORRUPT_FIELDS)
        named = self.options.get("columns")
        return schema_of(
            default_fields(self.log)
            if named is None
            else fields_named(self.log, [name.strip() for name in named.split(",")])
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of `schema`."""
        return LogReader(self.log, self.options, self._checked(schema), self.corrupt)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader that follows the files as they grow. Raises ValueError for a log other than dispatch_log."""
        from ops.audit.stream import DispatchStreamReader
        from ops.audit.topic_stream import TopicStreamReader

        if self.options.get("cluster"):
            return TopicStreamReader(self.log, self._checked(schema), self.options)
        if self.log != DISPATCH_LOG:
            raise ValueError(f"readStream follows delay_{DISPATCH_LOG} only; read delay_{self.log} as a batch")
        return DispatchStreamReader(directories_of(self.options), self._checked(schema), self.options)

    def _checked(self, schema: StructType) -> tuple[Field, ...]:
        if self.corrupt == REPORT:
            return CORRUPT_FIELDS
        fields = fields_named(self.log, schema.fieldNames())
        for field, asked in zip(fields, schema.fields, strict=True):
            if field.type != asked.dataType:
                wanted = field.type.simpleString()
                raise ValueError(f"column {field.name} is of type {wanted}, not {asked.dataType.simpleString()}")
        return fields


class DispatchLogSource(LogSource):
    """Outcomes of messages."""

    log = DISPATCH_LOG


class ScheduleLogSource(LogSource):
    """Messages by the window of their due times."""

    log = SCHEDULE_LOG


class MessageLogSource(LogSource):
    """Messages and cancels (`cancel` is true) in the order of arrival."""

    log = MESSAGE_LOG


class BrokerLogSource(LogSource):
    """Messages that a broker node stored."""

    log = BROKER_LOG


SOURCES: tuple[type[LogSource], ...] = (DispatchLogSource, ScheduleLogSource, MessageLogSource, BrokerLogSource)


def register(spark: SparkSession) -> None:
    """Registers all formats with a session, also the one for writing."""
    from ops.audit.sink import DelayServerSink

    every: tuple[type[DataSource], ...] = (*SOURCES, DelayServerSink)
    for source in every:
        spark.dataSource.register(source)


class LogReader(DataSourceReader):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Plans one input partition per file or part of a large file. Spark reads the partitions in its tasks."""

    def __init__(self, log: str, options: Mapping[str, str], fields: Sequence[Field], corrupt: str) -> None:
        self._log = log
        self._options = dict(options)
        self._fields = tuple(fields)
        self._corrupt = corrupt
        self._selection = Selection.from_options(options)
        if hasattr(DataSourceReader, "pushFilters"):
            # An attribute, not a method; see `pushed_without_being_asked`.
            setattr(self, "pushFilters", pushed_without_being_asked(self._push))  # noqa: B010

    def _push(self, filters: Sequence[Any]) -> list[Any]:
        """Takes the filters that a selection can express, and returns the others to Spark."""
        if self._corrupt == REPORT:
            return list(filters)
        self._selection, rest = push_filters(self._selection, filters)
        return rest

    def partitions(self) -> list[LogPartition]:
        """The partitions of the files captured in the option `capture`, or of those captured now."""
        text, cluster = self._options.get("capture"), self._options.get("cluster")
        if cluster:
            surveys = [found for shard in find_shards(cluster) for found in survey(shard)]
            captured = topic_capture(surveys, self._log)
        elif text:
            captured = Captured.decode(text)
        else:
            part_bytes = parse_size(self._options.get("part_bytes"), PART_BYTES)
            captured = capture(RealFileSystem(), directories_of(self._options), self._log, part_bytes)
        wanted = [part for part in captured.parts if self._selection.touches(part)]
        return pack(wanted, parse_size(self._options.get("pack_bytes"), 0))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The record batches of a partition."""
        if not isinstance(partition, LogPartition):
            return  # without files, Spark calls this once without a partition
        if self._corrupt == REPORT:
            yield from corrupt_rows(partition)
            return
        vanished_too = "capture" in self._options
        yield from read_rows(
            partition, self._fields, self._selection, skip=self._corrupt == SKIP, vanished_too=vanished_too
        )


def parse_size(text: str | None, default: int) -> int:
    """A size in bytes from a text such as `64MiB` or a number. Raises ValueError."""
    if text is None:
        return default
    return int(text) if text.strip().isdigit() else parse_size_bytes(text)
