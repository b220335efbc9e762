"""Fields that stand in several families, each with its one meaning."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, field

from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL, Outcome
from delayserver.protocol.schema.structs import Reply, Request, says

POSITION_MAX: Final = (1 << 48) - 1
REASON_BYTES_MAX: Final = 1024
"""A dead letter keeps the reason beside its properties: an error and where it came from, no log."""
TIME_MS_MAX: Final = 1 << 53
"""Times in milliseconds since 1970 stay below it, so that microseconds fit into 63 bits."""
DUE_MS: Final = 1_800_000_000_000
"""A due time for examples: 15 January 2027, 08:00:00 UTC."""
RECEIPT: Final = "5f3a9c0d2b71-01a3185c5000-00000000002e"
"""A receipt for examples."""

Subject: TypeAlias = Annotated[str, says("The name by which consumers pull.", "orders", is_name=True)]
Group: TypeAlias = Annotated[str, says("The consumer group.", "billing", is_name=True)]
MessageId: TypeAlias = Annotated[str, says("The id of the message, of its sender or made by the server.", "order-7")]
ServerId: TypeAlias = Annotated[str, says("The server that accepted the message.", "5f3a9c0d2b71")]
Sequence: TypeAlias = Annotated[int, says("The number that the server gave the message when it accepted it.", 46)]
DueMs: TypeAlias = Annotated[int, says("When the message is due, in milliseconds since 1970.", DUE_MS)]
After: TypeAlias = Annotated[int, says("The `next` of the page before.", 41, ge=-1, le=POSITION_MAX)]
Reason: TypeAlias = Annotated[
    str, says("Why, in words. It is kept with the dead letters.", "no such customer", bytes_max=REASON_BYTES_MAX)
]
Positions: TypeAlias = Annotated[
    list[Annotated[int, Meta(ge=0, le=POSITION_MAX)]],
    says("These messages. Without it the first ones.", [41, 42], expected="a list of positions"),
]


class OfGroup(Request, frozen=True):
    """A request about a consumer group."""

    subject: Subject
    group: Group


class WithOutcome(Reply, frozen=True, kw_only=True):
    """A row with an outcome: its name on the wire and in JSON, and `Outcome` for a caller."""

    outcome_name: Annotated[str, says("What became of the message.", "pending")] = field(name="outcome")

    @property
    def outcome(self) -> Outcome:
        """The outcome. Raises KeyError for a name that this version does not know."""
        return OUTCOMES_BY_LABEL[self.outcome_name]
