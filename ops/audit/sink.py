"""Scheduling from Spark: sends a DataFrame as delay messages, in parallel by partition.

    send(campaign, servers="10.0.0.1:20801,10.0.0.2:20801")
    campaign.write.format("delayserver").option("servers", "10.0.0.1:20801,10.0.0.2:20801").mode("append").save()

Both do the same. Columns: `subject` (or option `subject` for all), `body` (binary or text), `due_ms` (milliseconds) or
`due` (timestamp), and optionally `message_id`, `properties` (map of text), `expires_ms`. The mode must be append,
because Spark refuses its default mode for sources written in Python.

A task that Spark runs again sends the same ids, and the server suppresses the duplicates. A missing id is derived from
subject, due time, body, properties and the option `campaign`. Rows that are equal in all of these are one message.

For servers that ask for it: option `token`, and option `tls`: `true` for certificates that the executor's system trusts, or
the path of a file with those of another authority, which each executor has.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from delayserver.client import Client
from delayserver.client.calls.core import parse_address
from ops.audit.message_rows import COLUMNS, MessageRows, rows_of
from ops.audit.sending import Sender

FAIL, SKIP = "fail", "skip"


def send(frame: DataFrame, servers: str | Sequence[str], **options: str) -> None:
    """Sends every row of a DataFrame as a message. All are durable when this returns.

    `servers`: one or more HOST:PORT, with commas or as a list. `options` are those of the format: subject, campaign,
    rejected, token, tls. Raises the exception of Spark if a task fails for good. Call it again then; duplicates are
    suppressed.
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
        """A writer for these columns. Raises ValueError for bad columns or options."""
        if overwrite:
            raise ValueError("messages that were sent are not taken back: write with .mode('append')")
        return DelayServerWriter(WriteOptions.read(self.options), schema.fieldNames())


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`servers`: addresses. The id of a message selects one, also for a retry. `subject`: for rows without that column.
    `campaign`: makes derived ids differ from those of the same rows sent earlier. `rejected`: `fail` or `skip`. `token`: of
    the servers, if they have tokens. `tls`: `false`, `true`, or the path of the certificates to trust."""

    servers: tuple[str, ...]
    subject: str | None
    campaign: str
    rejected: str
    token: str | None = field(repr=False)
    tls: str

    @classmethod
    def read(cls, options: Mapping[str, str]) -> WriteOptions:
        """Reads the options of the format. Raises ValueError."""
        servers = [text.strip() for text in options.get("servers", "").split(",") if text.strip()]
        if not servers:
            raise ValueError("option servers is missing: one HOST:PORT, or several with commas")
        for server in servers:
            parse_address(server)
        rejected = options.get("rejected", FAIL).lower()
        if rejected not in (FAIL, SKIP):
            raise ValueError(f"rejected={rejected}: write fail or skip")
        return cls(
            tuple(servers),
            options.get("subject"),
            options.get("campaign", ""),
            rejected,
            options.get("token"),
            options.get("tls", "false"),
        )

    def clients(self) -> list[Client]:
        """A client for each server. Raises OSError if there is no such file of certificates."""
        tls: ssl.SSLContext | bool = self.tls == "true"
        if self.tls not in ("true", "false"):
            tls = ssl.create_default_context(cafile=self.tls)
        return [Client(server, timeout_s=60.0, retries=8, token=self.token, tls=tls) for server in self.servers]


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc,unused-ignore]  # Any where pyspark is not installed
    """Counts of the rows that one task sent."""

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
        """Runs one task. Raises named errors of the client, and ValueError for a rejected row if `rejected` is fail."""
        fail = self._options.rejected == FAIL
        with ExitStack() as stack:
            senders = [stack.enter_context(Sender(client, fail=fail)) for client in self._options.clients()]
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
        """Does nothing: the messages of a task are durable when it ends."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: sent messages stay sent. If the job runs again, the server suppresses the duplicates."""
