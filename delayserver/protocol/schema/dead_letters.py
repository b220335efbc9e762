"""The operation `dead_letters`: messages that a consumer group gave up."""

from __future__ import annotations

from typing import Annotated, Final

from delayserver.protocol.schema.structs import Reply, says
from delayserver.protocol.schema.words import (
    DUE_MS,
    After,
    DueMs,
    MessageId,
    OfGroup,
    Positions,
    Sequence,
    ServerId,
)

# Letters of one request: a step on the event loop reads them, and looks into the properties of each.
LIST_MAX: Final = 256
RESEND_MAX: Final = 1024
DROP_MAX: Final = 1 << 20
# Messages a second; also the inverse is a spread that the bound of a delay still holds.
RATE_MIN, RATE_MAX = 1e-4, 1e6
# The longest delay of a redelivery: 30 days.
FIRST_MS_MAX: Final = 30 * 86_400_000


class ListDeadLetters(OfGroup, frozen=True, tag_field="action", tag="list"):
    """Some dead letters, oldest first."""

    bodies: Annotated[bool, says("True: each row has its `body`.", True)] = False
    after: After = -1
    max: Annotated[int, says("At most so many letters.", 100, ge=1, le=LIST_MAX)] = LIST_MAX


class ResendDeadLetters(OfGroup, frozen=True, tag_field="action", tag="resend"):
    """Sends letters to their group again."""

    positions: Positions | None = None
    max: Annotated[int, says("At most so many letters.", 100, ge=1, le=RESEND_MAX)] = RESEND_MAX
    rate: (
        Annotated[
            float,
            says(
                "So many become due in a second, 0.0001 to 1,000,000. Without it all at once.",
                50.0,
                expected=f"a number of messages a second from {RATE_MIN:g} to {RATE_MAX:g}",
                ge=RATE_MIN,
                le=RATE_MAX,
            ),
        ]
        | None
    ) = None
    first_ms: Annotated[
        int, says("The first one is due in so many milliseconds. Without it at once.", 20, ge=0, le=FIRST_MS_MAX)
    ] = 0


class DropDeadLetters(OfGroup, frozen=True, tag_field="action", tag="drop"):
    """Removes letters for good."""

    positions: Positions | None = None
    max: Annotated[int, says("At most so many letters.", 100, ge=1, le=DROP_MAX)] = DROP_MAX


class DeadLetter(Reply, frozen=True):
    """A message that a consumer group gave up. A field that a letter does not have is empty or 0. ``body`` is None if the
    bodies were not asked for."""

    position: Annotated[int, says("Names the letter for `resend` and `drop`.", 41)]
    message_id: MessageId
    reason: Annotated[str, says("Why the group gave the message up: `nacked`, `ack_timeout` or `skipped`.", "nacked")]
    text: Annotated[
        str, says("What the consumer gave with the nack, or the operator who skipped the message.", "no such customer")
    ]
    attempts: Annotated[int, says("How often the message came before it was given up.", 5)]
    dead_ms: Annotated[int, says("When the group gave the message up, in milliseconds since 1970.", DUE_MS)]
    due_ms: DueMs
    sequence: Sequence
    server_id: ServerId
    properties: Annotated[dict[str, str], says("The properties of the message, from text to text.", {"trace": "7"})]
    body_bytes: Annotated[int, says("Length of the body in bytes.", 14)]
    body: Annotated[bytes, says("The body of the message, if `bodies` asked for it.", left_out=True)] | None = None


class DeadLetterPage(Reply, frozen=True):
    """Some dead letters. ``next`` names the next page; None on the last one. ``left`` counts all letters of the group."""

    letters: Annotated[list[DeadLetter], says("The letters, oldest first.")]
    next: Annotated[int, says("Names the next page. The last one has none.", 41)] | None
    left: Annotated[int, says("All letters of the group.", 7)]
    unreadable: Annotated[int, says("Letters of this page that damage hides.", 0)]


class ResendResult(Reply, frozen=True):
    """How many letters were sent again and how many are ``left``. The node could not read ``unreadable`` ones. At the
    same rate the next one is due in ``next_ms``."""

    resent: Annotated[int, says("Dead letters that were sent to their group again.", 3)]
    left: Annotated[int, says("Dead letters of the group that are left.", 7)]
    next_ms: Annotated[int, says("The `first_ms` with which the next request goes on at the same rate.", 20)]
    unreadable: Annotated[int, says("Dead letters that the node cannot read.", 0)]


class DropResult(Reply, frozen=True):
    """How many letters were dropped and how many are ``left``."""

    dropped: Annotated[int, says("Dead letters that were removed.", 3)]
    left: Annotated[int, says("Dead letters of the group that are left.", 7)]
