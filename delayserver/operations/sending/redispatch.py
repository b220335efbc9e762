"""Delivers messages again that already have an outcome, for brokers that lost their messages.

Existing records do not change. Each new delivery is an internal record, due at once, for no particular consumer group.
`origin_sequence` is the message. The record goes through the pipeline like a retry and does not count in the balance.
One request handles a bounded slice and returns the position of the next one.

`recover redispatch` for a stopped server stays beside it: if a broker lost its data with the server, the deliveries
are durable before the server starts.
"""

from __future__ import annotations

from typing import NamedTuple

from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.redispatch_reading import RedispatchReader
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL
from delayserver.protocol.schema.redispatch import DamagedPlace, Redispatched, RedispatchSlice
from delayserver.receive.group_commit import GroupCommit
from delayserver.recover.reading.redispatch_records import RedispatchSelection, Unread, deliveries_again
from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.windows.window_book import WindowBook
from store.logs.schedule_log import ScheduleKey
from store.records.batches import I64
from store.tables.names import SUBJECT


class Position(NamedTuple):
    """The beginning of a slice: behind this sequence of the file with this start and source."""

    start_ms: int
    source: int
    sequence: int


_FIRST = Position(-1, 0, 0)
_END_OF_FILE = 1 << 62


class Redispatch:
    """The operation `redispatch` of a running server."""

    def __init__(
        self,
        files: Files,
        book: WindowBook,
        reader: RedispatchReader,
        commit: GroupCommit,
        admission: Admission,
        servers: Servers,
        runtime: Runtime,
    ) -> None:
        self._server_id = files.server_id
        self._schedule = files.schedule
        self._reader = reader
        self._commit = commit
        self._names = files.names
        self._admission = admission
        self._servers = servers
        self._book = book
        self._clock = runtime.clock

    async def slice(self, asked: RedispatchSlice, peer: Peer) -> Redispatched:
        """Redispatches one slice behind `after`; with `dry_run` only counts it. Skips, reports and counts damage.

        Raises ServerNotProven, InvalidArgument, and the errors of a send."""
        self._servers.check_redispatch(peer)
        self._admission.require()
        unread, wanted = Unread(), self._wanted(asked)
        after = _FIRST if asked.after is None else Position(*asked.after)
        for key in self._files(wanted):
            file = (key.start_ms, int(key.source))
            if file < after[:2]:
                continue
            floor = after.sequence if file == after[:2] else 0
            sequences, more = await self._reader.select(key, wanted, floor, unread)
            if not len(sequences):
                continue
            count = len(sequences) if asked.dry_run else await self._deliver(key, sequences, unread)
            return _reply(count, Position(*file, int(sequences[-1]) if more else _END_OF_FILE), unread)
        return _reply(0, None, unread)

    def _wanted(self, asked: RedispatchSlice) -> RedispatchSelection:
        code = 0
        if asked.subject is not None:
            code = self._names.code(SUBJECT, asked.subject)
            if not code:
                raise InvalidArgument(f"no message of the subject {shown(asked.subject)} was ever accepted here")
        return RedispatchSelection(
            asked.from_ms, asked.to_ms, code, tuple([int(OUTCOMES_BY_LABEL[label]) for label in asked.outcomes])
        )

    def _files(self, wanted: RedispatchSelection) -> list[ScheduleKey]:
        """The files of windows and whole days, also lost ones. No message of a coarse day was delivered."""
        first_ms = self._book.start_of(wanted.from_ms)
        keys = {*self._schedule.keys_between(first_ms, wanted.to_ms)}
        keys |= {key for key in self._schedule.lost if first_ms <= key.start_ms < wanted.to_ms}
        return sorted(key for key in keys if self._book.is_delivered_from(key))

    async def _deliver(self, key: ScheduleKey, sequences: I64, unread: Unread) -> int:
        batch = await self._reader.read(key, sequences, unread)
        if len(batch):
            await self._commit.commit(deliveries_again(batch, self._server_id, self._clock.now_us()))
        return len(batch)


def _reply(messages: int, following: Position | None, unread: Unread) -> Redispatched:
    damages = [DamagedPlace(path, offset, detail) for (path, offset), detail in unread.damages.items()]
    return Redispatched(messages, following, unread.messages, damages)
