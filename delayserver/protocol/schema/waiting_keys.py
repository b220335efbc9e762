"""The operation `waiting_keys`: order keys of a consumer group that wait for a message that has failed."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from delayserver.protocol.schema.structs import Reply, says
from delayserver.protocol.schema.words import (
    DUE_MS,
    After,
    DueMs,
    MessageId,
    OfGroup,
    Positions,
    Reason,
    Sequence,
    ServerId,
)

# Keys of one request: a step on the event loop reads a message of each.
LIST_MAX: Final = 256
SKIP_MAX: Final = 1024
RETRY_MAX: Final = 1 << 16

Left: TypeAlias = Annotated[int, says("Keys that still wait.", 7)]
NextMs: TypeAlias = Annotated[
    int,
    says("When its pause or its lease ends, in milliseconds since 1970. While it is `ready` there is none.", DUE_MS),
]


class ListWaitingKeys(OfGroup, frozen=True, tag_field="action", tag="list"):
    """Some waiting keys, in the order of their positions."""

    after: After = -1
    max: Annotated[int, says("At most so many keys.", 100, ge=1, le=LIST_MAX)] = LIST_MAX


class SkipWaitingKeys(OfGroup, frozen=True, tag_field="action", tag="skip"):
    """Makes dead letters of messages for which keys wait."""

    positions: Positions | None = None
    max: Annotated[int, says("At most so many messages.", 100, ge=1, le=SKIP_MAX)] = SKIP_MAX
    reason: Reason = ""


class RetryWaitingKeys(OfGroup, frozen=True, tag_field="action", tag="retry"):
    """Ends the pauses of messages for which keys wait."""

    positions: Positions | None = None
    max: Annotated[int, says("At most so many messages.", 100, ge=1, le=RETRY_MAX)] = RETRY_MAX


class WaitingKey(Reply, frozen=True):
    """An order key that waits for a message that has failed. ``position`` names the message, for `skip_waiting_keys` and
    `retry_waiting_keys`."""

    position: Annotated[
        int,
        says(
            "Names the message. It is the `position` of the delivery, or another number if the message came to this "
            "group alone.",
            41,
        ),
    ]
    order_key: Annotated[str, says("The order key. Messages of one key come in their order.", "customer-42")]
    message_id: MessageId
    state: Annotated[str, says("`paused`, `ready` (a pull brings it), or `leased` (a consumer has it).", "paused")]
    attempts: Annotated[int, says("How often it came.", 5)]
    since_ms: Annotated[
        int,
        says("When it first failed, in milliseconds since 1970. The node knows of failures since its start.", DUE_MS),
    ]
    next_ms: NextMs | None
    behind: Annotated[int, says("Later messages of the key that wait, of those that the group has looked at.", 4)]
    due_ms: DueMs
    sequence: Sequence
    server_id: ServerId


class WaitingKeysPage(Reply, frozen=True):
    """Some waiting keys."""

    keys: Annotated[list[WaitingKey], says("The keys, in the order of their positions.")]
    next: Annotated[int, says("Names the next page. The last one has none.", 41)] | None
    left: Annotated[int, says("All keys that wait.", 7)]
    unreadable: Annotated[int, says("Keys of this page whose message damage hides.", 0)]


class SkipResult(Reply, frozen=True):
    """How many messages became dead letters, so that their keys go on. A message that had expired counts, and leaves no
    letter."""

    skipped: Annotated[int, says("Messages that became dead letters, so that their keys go on.", 1)]
    left: Left


class RetryKeysResult(Reply, frozen=True):
    """How many messages a pull brings at once now."""

    retried: Annotated[int, says("Pauses that ended: a pull brings these messages at once.", 1)]
    left: Left
