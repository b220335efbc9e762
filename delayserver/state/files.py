"""The open files of a data directory that several rooms read or write."""

from __future__ import annotations

from dataclasses import dataclass

from store.logs.dispatch_log import DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleLog
from store.tables.days import DayTable
from store.tables.ledger import Ledger
from store.tables.names import Names


@dataclass(frozen=True, slots=True)
class Files:
    """Logs and tables of one server id. Each of them says who writes it."""

    server_id: int
    log: MessageLog
    schedule: ScheduleLog
    dispatch: DispatchLog
    days: DayTable
    ledger: Ledger
    names: Names


def sync_sources(files: Files) -> None:
    """Make durable what rows of other files point at: names and message_log. Nothing may point behind what a loss of power
    takes (durability `os`). May run in a thread. Raises SyncFailedError."""
    files.names.sync()
    files.log.sync_assumed()
