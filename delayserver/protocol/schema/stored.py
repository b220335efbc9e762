"""Messages that a node stores, and the operations `find` and `read`, which show them."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import field

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.receipts import format_receipt
from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, DueMs, MessageId, Sequence, ServerId, Subject

FOUND_AT_ONCE_MAX: Final = 1_000
"""Messages of one reply."""
# Ids and keys have at most so many bytes.
_TEXT_BYTES_MAX: Final = 1024
# Milliseconds; as microseconds it has 63 bits.
_TIME_MAX: Final = 1 << 52
_AT_LEAST_1: Final = "an integer of at least 1"

Key: TypeAlias = Annotated[
    str, says("One word of the property `keys`.", "order-7", bytes_max=_TEXT_BYTES_MAX, min_length=1)
]
FromMs: TypeAlias = Annotated[
    int,
    says("Only messages handed to the node from this time on, in milliseconds since 1970.", DUE_MS, ge=0, le=_TIME_MAX),
]
ToMs: TypeAlias = Annotated[
    int,
    says("Only messages handed to the node before this time, in milliseconds since 1970.", DUE_MS, ge=0, le=_TIME_MAX),
]


class FindMessages(Request, frozen=True):
    """The messages with an id, with a key, or of a subject and a time. Raises InvalidArgument."""

    message_id: (
        Annotated[str, says("The id of the messages.", "order-7", bytes_max=_TEXT_BYTES_MAX, min_length=1)] | None
    ) = None
    key: Key | None = None
    subject: (
        Annotated[
            str,
            says(
                "Only messages of this subject. It is needed if neither id nor key is given.",
                "orders",
                bytes_max=_TEXT_BYTES_MAX,
                min_length=1,
            ),
        ]
        | None
    ) = None
    from_ms: FromMs = 0
    to_ms: ToMs = _TIME_MAX
    after: (
        Annotated[
            tuple[int, int], says("The `next` of the reply before.", [41, 0], expected="the `next` of the reply before")
        ]
        | None
    ) = None
    max: Annotated[
        int,
        says("At most so many messages. A reply also ends at 4 MiB of bodies.", 100, ge=1, le=FOUND_AT_ONCE_MAX),
    ] = FOUND_AT_ONCE_MAX

    def __post_init__(self) -> None:
        if self.message_id is not None and self.key is not None:
            raise InvalidArgument("give either message_id or key, not both")
        if self.message_id is None and self.key is None and self.subject is None:
            raise InvalidArgument("give message_id, key, or subject (with from_ms and to_ms)")
        # A client may give anything here: what is no text is refused where the frame is made.
        key = self.key.encode(errors="replace") if isinstance(self.key, str) else b""
        if key and key.split() != [key]:
            raise InvalidArgument("a key is one word: a message with several keys is found by each of them")


class StoredMessage(Reply, frozen=True):
    """A message that a node stores."""

    message_id: MessageId
    subject: Subject
    position: Annotated[int, says("The place of the message in the queue of its subject at this node.", 41)]
    sequence: Sequence
    server_id: ServerId
    due_ms: DueMs
    accepted_us: Annotated[
        int, says("When the server accepted the message, in microseconds since 1970.", DUE_MS * 1000 + 4_000)
    ]
    dispatched_us: Annotated[
        int, says("When the server handed the message to its node, in microseconds since 1970.", DUE_MS * 1000 + 4_000)
    ]
    body: Annotated[bytes, says("The body of the message.")]
    properties: Annotated[
        dict[str, str], says("A map from text to text, which consumers get beside the body.", {"trace": "7"})
    ] = field(default_factory=dict)
    expires_ms: Annotated[
        int,
        says("From this time on no consumer gets the message, in milliseconds since 1970; 0: never.", DUE_MS + 60_000),
    ] = 0
    tag: Annotated[str, says("The kind of the message, by which consumers filter.", "paid", left_out=True)] | None = (
        None
    )
    order_key: (
        Annotated[str, says("Messages of one key come to a group one after the other.", "customer-42", left_out=True)]
        | None
    ) = None


class ReadMessage(StoredMessage, frozen=True):
    """One message of a subject, read at its ``position`` without a group and without a lease."""


READ_BYTES: Final = 8 << 20
"""Bytes of bodies after which a read takes no further message, if the request does not say."""
_I64_MAX: Final = (1 << 63) - 1


class ReadMessages(Request, frozen=True):
    """The messages of a subject from a position on. If none stand there yet, it waits for ``wait_ms``."""

    subject: Subject
    position: Annotated[int, says("Where to begin.", 41, ge=-_I64_MAX, le=_I64_MAX)]
    max_messages: Annotated[
        int,
        says("At most so many messages: 1 (the default) to `pull_messages_max`.", 100, expected=_AT_LEAST_1, ge=1),
    ] = 1
    max_bytes: Annotated[int, says("As for `pull`.", READ_BYTES, ge=1, le=1 << 62)] = READ_BYTES
    wait_ms: Annotated[
        int,
        says(
            "So long it waits at the end for the next message: 0 (the default) to `wait_ms_max`.",
            20_000,
            expected="an integer of at least 0",
            ge=0,
        ),
    ] = 0
    columns: Annotated[bool, says("True: the messages are in columns, as for `pull`.", True)] = False


class ReadPage(Reply, frozen=True):
    """The answer of a read. ``status`` says of the position: ``found`` (messages stand there, though the disk may have lost
    all of them), ``nothing_yet`` (the next message goes there), ``too_large`` (it is behind that), ``retired`` (retention
    removed it), ``too_small`` (it is below 0).

    The subject keeps the positions from ``first`` to ``end``. Go on at ``next``.
    """

    status: Annotated[str, says("What is at the position.", "found")]
    first: Annotated[int, says("The first position that this node keeps of the subject.", 0)]
    end: Annotated[int, says("Where the next message of the subject goes.", 1_000)]
    next: Annotated[int, says("Go on here.", 42)]
    messages: Annotated[
        list[ReadMessage], says("The messages. In rows or columns as for `pull`, without `attempt` and `delivery`.")
    ]


class FoundMessage(StoredMessage, frozen=True):
    """A message that is stored on a node. ``position`` counts the messages of its subject there. ``dispatched_us`` is when
    the server handed it to the node."""

    @property
    def receipt(self) -> str:
        """The receipt, which `lookup` and `delayserver recover trace` take. A published message is not known by it."""
        return format_receipt(self.server_id, self.due_ms, self.sequence)


class FindPage(Reply, frozen=True):
    """Some found messages. The search goes on behind ``next``; None if it is complete."""

    messages: Annotated[list[FoundMessage], says("The messages, in the order in which the node stored them.")]
    next: Annotated[tuple[int, int], says("Where the search goes on. It is complete without.", [41, 0])] | None
