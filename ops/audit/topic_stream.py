"""Follows the topic of a cluster as it grows: `readStream.format("delay_dispatch_log").option("cluster", FILE).load()`.

The offset of a stream has the place in the log of each shard: the position, and the last record that counted. So every row
comes exactly once, also after a restart. The driver reads new records once to judge them, and tasks read them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ops.audit.capture import PART_BYTES
from ops.audit.fields import Field
from ops.audit.log_rows import LogPartition, read_rows
from ops.audit.selection import Selection
from ops.audit.topic_reader import require_log, topic_parts
from ops.audit.topic_survey import Name, begin, take_survey
from ops.audit.topics import TopicShard, find_shards
from store.shared.envelope import LogWriter
from store.shared.followed import FollowedTo


class TopicStreamReader(DataSourceStreamReader):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Micro-batches of what the logs of all shards got since."""

    def __init__(self, log: str, fields: Sequence[Field], options: Mapping[str, str]) -> None:
        require_log(log)
        self._log = log
        self._fields = tuple(fields)
        self._selection = Selection.from_options(options)
        self._cluster = options["cluster"]
        self._from_latest = options.get("starting", "earliest").lower() == "latest"
        # By shard: the place up to which the log was read here, and the names that it had.
        self._read: dict[int, tuple[FollowedTo, tuple[Name, ...]]] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The first record of each log, or with the option `starting=latest` its end now."""
        if self._from_latest:
            return self.latestOffset()
        return _offset({shard.number: _first(shard) for shard in find_shards(self._cluster)})

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The ends of the logs now."""
        return _offset({shard.number: self._survey_to_end(shard) for shard in find_shards(self._cluster)})

    def _survey_to_end(self, shard: TopicShard) -> FollowedTo:
        place, _ = self._known(shard)
        _, stop = shard.bounds()
        return self._read_to(shard, stop) if stop > place.position else place

    def _known(self, shard: TopicShard) -> tuple[FollowedTo, tuple[Name, ...]]:
        if shard.number not in self._read:
            self._read[shard.number] = _first(shard), ()
        return self._read[shard.number]

    def _read_to(self, shard: TopicShard, stop: int) -> FollowedTo:
        place, names = self._known(shard)
        found = take_survey(shard, place, stop, PART_BYTES, names)
        self._read[shard.number] = found.places[-1], found.names
        return found.places[-1]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The pieces between two offsets. Raises LogTrimmed where a log begins behind the first one."""
        before, after = _places(start), _places(end)
        found: list[LogPartition] = []
        for shard in find_shards(self._cluster):
            last = after.get(shard.number)
            if last is None:
                continue
            # A shard that was added later begins with its first record.
            first = before.get(shard.number) or _first(shard)
            known, names = self._known(shard)
            if known.position < last.position:  # after a restart of the stream
                self._read_to(shard, last.position)
                names = self._known(shard)[1]
            piece = take_survey(shard, first, last.position, PART_BYTES, names)
            found += [LogPartition((part,)) for part in topic_parts(piece, self._log)]
        return found or [LogPartition(())]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        yield from read_rows(partition, self._fields, self._selection, skip=False, vanished_too=True)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark's checkpoint is the only one."""


def _first(shard: TopicShard) -> FollowedTo:
    first, stop = shard.bounds()
    return begin(shard, shard.records(first, stop), first)


def _offset(places: Mapping[int, FollowedTo]) -> dict[str, Any]:
    rows = {
        str(shard): [place.position, place.epoch, place.index, place.writer.member, f"{place.writer.instance:016x}"]
        for shard, place in sorted(places.items())
    }
    return {"shards": json.dumps(rows)}


def _places(offset: Mapping[str, Any]) -> dict[int, FollowedTo]:
    rows = json.loads(offset["shards"])
    return {
        int(shard): FollowedTo(position, epoch, index, LogWriter(member, int(instance, 16)))
        for shard, (position, epoch, index, member, instance) in rows.items()
    }
