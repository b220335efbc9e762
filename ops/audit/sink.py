"""Scheduling from Spark: sends a DataFrame as delay messages, in parallel by partition.

    send(campaign, servers="10.0.0.1:20801,10.0.0.2:20801")
    campaign.write.format("delayserver").option("servers", "10.0.0.1:20801,10.0.0.2:20801").mode("append").save()

The second is what the first does. Columns: `subject` (or option `subject` for all), `body` (binary or text), `due_ms`
(milliseconds) or `due` (timestamp), and if wanted `message_id`, `properties` (map of text), `expires_ms`. Spark refuses its
default mode for every source that is written in Python, before it asks us: so say append.

A task that Spark runs again sends the same ids, and the server suppresses the copies. Where there is no id it is derived
from subject, due time, body, properties and the option `campaign`: rows that are the same in all of these are one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from delayserver.client import Client
from delayserver.client.core import parse_address
from ops.audit.message_rows import COLUMNS, MessageRows, rows_of
from ops.audit.sending import Sender

FAIL, SKIP = "fail", "skip"


def send(frame: DataFrame, servers: str | Sequence[str], **options: str) -> None:
    """Send every row of a DataFrame as a message; all are durable when this returns.

    `servers`: HOST:PORT, several of them with commas or as a list. `options` are those of the format: subject, campaign,
    rejected. Raises what Spark raises where a task fails for good; then call it again, and copies are suppressed.
    """
    addresses = servers if isinstance(servers, str) else ",".join(servers)
    frame.sparkSession.dataSource.register(DelayServerSink)
    frame.write.format("delayserver").options(servers=addresses, **options).mode("append").save()


class DelayServerSink(DataSource):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """The format `delayserver`, for writing."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "delayserver"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for these columns. Raises ValueError for columns and options that cannot be."""
        if overwrite:
            raise ValueError("messages that were sent are not taken back: write with .mode('append')")
        return DelayServerWriter(WriteOptions.read(self.options), schema.fieldNames())


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`servers`: addresses; a message goes to the one that its id selects, so that a retry goes there too. `subject`: for
    rows without that column. `campaign`: told apart from the same rows sent earlier. `rejected`: `fail`, or `skip`."""

    servers: tuple[str, ...]
    subject: str | None
    campaign: str
    rejected: str

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        """Raises ValueError."""
        servers = [text.strip() for text in options.get("servers", "").split(",") if text.strip()]
        if not servers:
            raise ValueError("option servers is missing: one HOST:PORT, or several with commas")
        for server in servers:
            parse_address(server)
        rejected = options.get("rejected", FAIL).lower()
        if rejected not in (FAIL, SKIP):
            raise ValueError(f"rejected={rejected}: write fail or skip")
        return cls(tuple(servers), options.get("subject"), options.get("campaign", ""), rejected)


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """What one task sent."""

    accepted: int
    rejected: int


class DelayServerWriter(DataSourceArrowWriter):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Sends the batches of each partition."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ValueError(
                f"unknown columns {', '.join(unknown)}: a message has {', '.join(COLUMNS)}; drop the others"
            )
        if "due_ms" not in columns and "due" not in columns:
            raise ValueError("no column says when: due_ms (milliseconds since 1970) or due (timestamp)")
        if "subject" not in columns and not options.subject:
            raise ValueError("no column subject, and no option subject")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One task. Raises the named errors of the client; ValueError for a rejected row where `rejected` is fail."""
        fail = self._options.rejected == FAIL
        with ExitStack() as stack:
            clients = [Client(server, timeout_s=60.0, retries=8) for server in self._options.servers]
            senders = [stack.enter_context(Sender(client, fail=fail)) for client in clients]
            for batch in iterator:
                for place, rows in self._shares(rows_of(batch, self._options.subject, self._options.campaign)):
                    senders[place].send(rows)
            sent = [sender.flush() for sender in senders]
        return Written(sum([one.accepted for one in sent]), sum([one.rejected for one in sent]))

    def _shares(self, rows: MessageRows) -> Iterator[tuple[int, MessageRows]]:
        count = len(self._options.servers)
        if count == 1:
            yield 0, rows
            return
        places = rows.places(count)
        for place in range(count):
            yield place, rows.take(places == place)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done; every message was durable when its task ended."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed for good. What was sent stays sent: run the job again, and the copies are suppressed."""
