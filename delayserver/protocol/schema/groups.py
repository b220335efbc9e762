"""The operations `groups`, `group`, `seek` and `remove_group`: consumer groups of a node, and where they go on."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, TIME_MS_MAX, Group, OfGroup, Subject

GROUPS_AT_ONCE_MAX: Final = 256
"""Consumer groups of a reply."""
_I64_MAX: Final = (1 << 63) - 1

SeekTo: TypeAlias = Annotated[
    Literal["earliest", "latest"],
    says(
        "`earliest`: the first position kept. `latest`: the end, where the next message goes.",
        "earliest",
        expected='"earliest" or "latest"',
    ),
]
FromTime: TypeAlias = Annotated[
    int,
    says(
        "The first message that was dispatched (`dispatched_us`) at or after it, in milliseconds since 1970.",
        DUE_MS,
        ge=0,
        le=TIME_MS_MAX,
    ),
]
Position: TypeAlias = Annotated[int, says("The position of the next message that the group gets.", 41)]
GroupCursor: TypeAlias = list[int | str]
"""Two numbers of a node. A client of several shards makes pages of all of them: its cursor is a subject and a group."""
End: TypeAlias = Annotated[int, says("Where the next message of the subject goes.", 1_000)]


class ListGroups(Request, frozen=True):
    """Some consumer groups, of one subject or of all."""

    subject: Annotated[str, says("Only the groups of this subject.", "orders", is_name=True)] | None = None
    after: (
        Annotated[
            list[int],
            says(
                "The `next` of the reply before.", expected="the `next` of the reply before", min_length=2, max_length=2
            ),
        ]
        | None
    ) = None
    max: Annotated[int, says("At most so many groups.", 100, ge=1, le=GROUPS_AT_ONCE_MAX)] = GROUPS_AT_ONCE_MAX


class ShowGroup(OfGroup, frozen=True):
    """One consumer group."""


class SeekGroup(OfGroup, frozen=True):
    """Lets a group go on at another position: exactly one of the three."""

    to: SeekTo | None = None
    time_ms: FromTime | None = None
    position: Annotated[int, says("From the first position kept to the end.", 41, ge=-_I64_MAX, le=_I64_MAX)] | None = (
        None
    )


class RemoveGroup(OfGroup, frozen=True):
    """Forgets a group."""


class ConsumerGroup(Reply, frozen=True):
    """The progress of a consumer group in a subject, at one node."""

    subject: Subject
    group: Group
    position: Annotated[int, says("All messages before this position are acked.", 988)]
    end: End
    lag: Annotated[
        int,
        says(
            "Messages that the group has still to get at this node, or has not acked: new ones, leased ones, and "
            "redeliveries wherever they wait.",
            12,
        ),
    ]
    leased: Annotated[int, says("Some of `lag`: messages that consumers of the group have now.", 3)]
    retrying: Annotated[
        int, says("Some of `lag`: on the way through the delay pipeline, until they are in the queue again.", 0)
    ]
    expired: Annotated[int, says("Messages that expired before the group acked them.", 0)]
    oldest_ms: (
        Annotated[
            int,
            says(
                "When the oldest message that is not acked was due, in milliseconds since 1970. A redelivery is as old as "
                "its message. Of many redeliveries it may be early by some hundredth of the greatest age.",
                DUE_MS,
            ),
        ]
        | None
    )
    waiting_in_place: Annotated[
        int, says("Some of `lag`: they wait in their place for their redelivery, or for their order key.", 0)
    ] = 0
    redelivery_bytes: Annotated[int, says("What the redeliveries of the group keep on disk.", 0)] = 0
    dead_letters: Annotated[
        int, says("Messages that the group gave up, and that were neither sent again nor dropped.", 0)
    ] = 0
    waiting_keys: Annotated[int, says("Order keys that wait for a message that has failed.", 0)] = 0
    filtered: Annotated[int, says("Messages that the filter kept from the group since the node started.", 0)] = 0
    tags: Annotated[str, says("The filter of the group: tags, or `*` for all.", "paid || shipped")] | None = None
    where: (
        Annotated[str, says("The filter of the group: an expression over properties.", "price > 3 AND country = 'de'")]
        | None
    ) = None


class GroupsPage(Reply, frozen=True):
    """Some consumer groups. ``next`` names the next page; None on the last one. A page may be empty."""

    groups: Annotated[list[ConsumerGroup], says("The consumer groups.")]
    next: Annotated[GroupCursor, says("Names the next page. The last one has none.", [7, 12])] | None


class Sought(Reply, frozen=True):
    """Where a group goes on after a seek. Its subject keeps the positions from ``first`` to ``end``."""

    position: Position
    first: Annotated[int, says("The first position that this node keeps of the subject.", 0)]
    end: End


class GroupRemoved(Reply, frozen=True):
    """The group is forgotten."""
