"""Makes groups durable in the shared log: the `RecordWriter` of a primary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.positions.gathering import CommitGroup
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.proposals import Proposals
from store.records.column_batch import ColumnBatch
from store.records.message_rows import MessageRows

# Groups on their way. More would lie in the log's own queue, and a group that gathers meanwhile grows instead.
GROUPS_MAX = 5


class ShardWriter:
    """Proposes groups. They are accepted when they came back, by the follower."""

    def __init__(self, proposals: Proposals, accepted: AcceptedLog, positions: Positions) -> None:
        self._proposals = proposals
        self._accepted = accepted
        self._positions = positions

    def takes_now(self, size_bytes: int) -> bool:
        """Never: what is proposed comes back in a later step."""
        return False

    def write_now(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """Not to be called."""
        raise AssertionError("a shared log takes no group now")

    async def write(self, group: CommitGroup, records: Sequence[ColumnBatch | MessageRows]) -> None:
        """As `RecordWriter.write`: returns when fewer than `GROUPS_MAX` groups are on their way."""
        self._proposals.propose(
            records, partial(self._accepted.accept, group=group), partial(self._accepted.refuse, group)
        )
        positions = self._positions
        await positions.commits_ended.reached(positions.commits_begun.value - GROUPS_MAX + 1)

    def unknown(self) -> DelayServerError:
        """As `RecordWriter.unknown`. The record may stand in the log, or come to stand there: the next primary knows."""
        return InDoubt("the server has ended, so the result is unknown; ask the primary")
