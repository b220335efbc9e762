"""The documents of the API as types. They check requests, write answers, and are the schemas of the API document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from delayserver.protocol.schema.dead_letters import DeadLetter
from delayserver.protocol.schema.fates import LookupResult, RescheduleResult
from delayserver.protocol.schema.groups import ConsumerGroup, SeekTo
from delayserver.protocol.schema.pending import PendingBucket, PendingSubject
from delayserver.protocol.schema.policies import PolicyFields, Reset
from delayserver.protocol.schema.stored import StoredMessage
from delayserver.protocol.schema.waiting_keys import NextMs, WaitingKey
from delayserver.web.bodies import Encoding, PullEncoding, PullForm

I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Due(Struct, kw_only=True):
    """When a message is due: exactly one of the five. `delay` is a duration such as `10s`, `at` a time of ISO 8601 with a
    zone, `delay_level` the number or the name of a delay level of the server: `3` or `30s`.
    """

    due_ms: I64 | None = None
    delay_ms: Milliseconds | None = None
    delay: str | None = None
    at: str | None = None
    delay_level: Annotated[int, Meta(ge=1, le=100)] | Annotated[str, Meta(max_length=100)] | None = None


class SendRequest(Due, kw_only=True, forbid_unknown_fields=True):
    """One message to send. `body` is a text, or any other JSON value, which is stored as JSON. `body_base64` is bytes."""

    subject: str
    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    message_id: str | None = None
    properties: dict[str, str] | None = None
    expires_ms: Milliseconds | None = None
    tag: str | None = None
    order_key: str | None = None


class Sent(Struct, omit_defaults=True):
    """An accepted message. It is on the server's disk. `duplicate` is there if the request gave an id: whether the server
    had a message with this id, subject and due time before. It delivers that one, whose receipt is `original_receipt`.
    `outcome` is what became of that one.
    """

    receipt: str
    message_id: str
    subject: str
    due_ms: int
    sequence: int
    duplicate: bool | None = None
    original_receipt: str | None = None
    outcome: str | None = None


class Fate(LookupResult, frozen=True, kw_only=True, omit_defaults=True):
    """The fate of a message. The body and the fields beside it are there if the server still has them."""

    body: Any = None
    body_encoding: Encoding | None = None


class MoveRequest(Due, kw_only=True, forbid_unknown_fields=True):
    """Another due time for a message, and perhaps other content. Fields that are not given stay as they are."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    properties: dict[str, str] | None = None
    expires_ms: Milliseconds | None = None


class Moved(RescheduleResult, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was moved: `outcome` is `rescheduled`, and it has the new receipt."""


class PublishRequest(Struct, forbid_unknown_fields=True):
    """One message for now. It goes to consumers without the delay pipeline, and has no receipt."""

    body: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    body_base64: str | None = None
    message_id: str | None = None
    properties: dict[str, str] | None = None
    expires_ms: Milliseconds | None = None
    tag: str | None = None
    order_key: str | None = None


class Published(Struct):
    """A stored message. `position` is its place in the queue of its subject."""

    message_id: str
    subject: str
    position: int


class Groups(Struct, omit_defaults=True):
    """Consumer groups. A page of them may be empty; the last one has no `next`."""

    groups: list[ConsumerGroup]
    next: str | None = None


class PullRequest(Struct, forbid_unknown_fields=True):
    """`ack`: the messages count as done when they are handed out. `body_as`: how bodies are written."""

    max_messages: Annotated[int, Meta(ge=1, le=16_384)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    ack: bool = False
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    start: Literal["earliest", "latest"] | Milliseconds | None = None
    tags: str | None = None
    where: str | None = None
    body_as: PullForm = "auto"


class DeliveriesRequest(Struct, forbid_unknown_fields=True):
    """`ack`: the messages count as done when they are sent. Otherwise each of them needs an ack, by a request of its own.
    At most `max_messages` are sent at a time.
    """

    ack: bool = False
    max_messages: Annotated[int, Meta(ge=1, le=16_384)] = 100
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    start: Literal["earliest", "latest"] | Milliseconds | None = None
    tags: str | None = None
    where: str | None = None
    body_as: PullForm = "auto"


class Pulled(Struct, omit_defaults=True):
    """One message handed to a consumer. `delivery` names this delivery for ack and nack."""

    message_id: str
    subject: str
    body: Any
    body_encoding: PullEncoding
    due_ms: int
    dispatched_ms: int
    attempt: int
    delivery: str
    sequence: int
    server_id: str
    accepted_us: int
    dispatched_us: int
    properties: dict[str, str] = {}
    expires_ms: int = 0
    tag: str | None = None
    order_key: str | None = None
    position: int | None = None


class PullReply(Struct):
    """The messages of a pull; none if the wait was over before one came."""

    messages: list[Pulled]


DeliveryName = Annotated[str, Meta(pattern="^[0-9]{1,22}$")] | Annotated[int, Meta(ge=0, le=2**63 - 1)]


class AckRequest(Struct, forbid_unknown_fields=True):
    """Deliveries that are done."""

    deliveries: Annotated[list[DeliveryName], Meta(max_length=16_384)]


class AckReply(Struct):
    """How many deliveries ended now, and how many had ended before."""

    acked: int
    unknown: int


class NackRequest(Struct, forbid_unknown_fields=True):
    """Deliveries to give back. They come again after `delay_ms`, or after the pause of their group. `snooze`: nothing has
    failed, and it counts as no attempt."""

    deliveries: Annotated[list[DeliveryName], Meta(max_length=16_384)]
    delay_ms: Milliseconds | None = None
    snooze: bool = False


class NackReply(Struct):
    """How many deliveries were given back. `expired` and `dead_lettered` ones of them do not come again."""

    nacked: int
    unknown: int
    expired: int
    dead_lettered: int


class ExtendRequest(Struct, forbid_unknown_fields=True):
    """Deliveries whose leases go on, for `ack_timeout_ms` from now."""

    deliveries: Annotated[list[DeliveryName], Meta(max_length=16_384)]
    ack_timeout_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class ExtendReply(Struct):
    """How many leases go on, and how many had ended."""

    extended: int
    unknown: int


class Seek(Struct, forbid_unknown_fields=True):
    """Where a group goes on: exactly one of the four."""

    to: SeekTo | None = None
    position: Milliseconds | None = None
    at: str | None = None
    time_ms: I64 | None = None


class PolicyChange(PolicyFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fields to change. One that is null goes back to the default."""

    reset: Reset = False


class Letter(DeadLetter, frozen=True, omit_defaults=True):
    """A message that a group gave up."""

    body: Any = None
    body_encoding: Encoding | None = None


class Letters(Struct):
    """Dead letters, oldest first."""

    letters: list[Letter]


Positions = Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(min_length=1, max_length=16_384)]
LettersMax = Annotated[int, Meta(ge=1, le=2**31)]


class ChosenLetters(Struct, forbid_unknown_fields=True):
    """The oldest letters, or those at `positions`; all without both."""

    max: LettersMax | None = None
    positions: Positions | None = None


class WaitingKeyShown(WaitingKey, frozen=True, kw_only=True, omit_defaults=True):
    """An order key that waits for a message that has failed."""

    next_ms: NextMs | None = None


class WaitingKeysShown(Struct):
    """Waiting keys, in the order of their positions."""

    keys: list[WaitingKeyShown]


class SkipRequest(Struct, forbid_unknown_fields=True):
    """The first waiting keys, or those of messages at `positions`; all without both."""

    max: LettersMax | None = None
    positions: Positions | None = None
    reason: Annotated[str, Meta(max_length=1024)] = ""


class RetryRequest(Struct, forbid_unknown_fields=True):
    """The waiting keys of messages at `positions`; all without."""

    positions: Positions | None = None


class ResendRequest(ChosenLetters, forbid_unknown_fields=True):
    """Letters to send again."""

    rate: Annotated[float, Meta(gt=0, le=1e6)] | None = None


class Resent(Struct):
    """Letters that were sent to their group again."""

    resent: int
    left: int
    unreadable: int


class Stored(StoredMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A message that is stored, read without a group."""

    body: Any
    body_encoding: Encoding


class ReadReply(Struct):
    """Messages in the order in which the node stored them. Ask again from `next` on."""

    messages: list[Stored]
    first: int
    end: int
    next: int


class PrepareRequest(SendRequest, kw_only=True, forbid_unknown_fields=True):
    """A message of a transaction. Without a due time it is due when it is committed."""

    group: str
    check_after_ms: Annotated[int, Meta(ge=1, le=2**40)] | None = None
    checks_max: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    policy: Literal["commit", "rollback"] | None = None


class CommitRequest(Due, kw_only=True, forbid_unknown_fields=True):
    """Another due time than that of the prepare, if any."""


class Health(Struct):
    """Whether the server answers, or is ready. A standby of a cluster follows."""

    status: Literal["ok", "ready", "follows"]


class MemberShown(Struct):
    """A member of a cluster. `announced` is its role by the map. The other fields are its own answer of this moment. Without
    one they are null, and `unanswered` says why: `no answer`, `not asked`, or a sentence. `front` says what is wrong with
    addresses of members. `damaged`: it knows of damage in its directory, and never leads again.
    """

    address: str
    announced: Literal["primary", "standby"]
    unanswered: str | None = None
    member: str | None = None
    role: Literal["primary", "standby", "taking_over"] | None = None
    epoch: int | None = None
    lag_records: int | None = None
    lag_ms: int | None = None
    if_it_dies: str | None = None
    front: str | None = None
    damaged: bool | None = None


class LogShown(Struct):
    """The log of a shard in Kafka, by the last look of a member. `in_sync_min` copies have a record before it counts. `kept`
    counts positions. `faults` has a sentence for each wrong setting. Null: the log has not said it yet.
    """

    answers: bool
    copies: int | None
    in_sync: int | None
    in_sync_min: int | None
    kept: int | None
    faults: list[str]


class ShardShown(Struct):
    """A shard of a cluster. `epoch` is that of the map. `pending` counts the messages of the primary that are not due, and
    `log` is what it knows of its log, or another member if it does not answer. Null: nobody has said it.
    """

    shard: int
    server_id: str
    state: Literal["open", "draining", "closed"]
    epoch: int
    pending: int | None
    members: list[MemberShown]
    log: LogShown | None


class ClusterShown(Struct):
    """The shards of a cluster, by the map that the asked member has read. Without a cluster there are none."""

    version: int
    shards: list[ShardShown]


class RowProblem(Struct, omit_defaults=True):
    """Why a row of a request was refused. `row` counts the rows from 0."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    row: int
    retry_after_ms: int | None = None
    outcome: str | None = None
    receipt: str | None = None
    duplicate: bool | None = None
    original_receipt: str | None = None
    message_id: str | None = None


class RowsDone(Struct):
    """The last line of an answer to lines with `results=errors`: how many rows were accepted, and how many refused."""

    accepted: int
    refused: int


class ProblemDocument(Struct, omit_defaults=True):
    """An error, by RFC 9457. `error` is its name."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    retry_after_ms: int | None = None
    outcome: str | None = None
    receipt: str | None = None
    duplicate: bool | None = None
    original_receipt: str | None = None
    message_id: str | None = None
    acked: int | None = None
    nacked: int | None = None
    extended: int | None = None
    unknown: int | None = None
    nodes: list[str] | None = None
    first: int | None = None
    end: int | None = None
    resent: int | None = None
    dropped: int | None = None
    left: int | None = None
    unreadable: int | None = None


class Pending(Struct):
    """The times at which messages are due, or their subjects. A day far ahead is one bucket with its own width."""

    buckets: list[PendingBucket] | UnsetType = UNSET
    subjects: list[PendingSubject] | UnsetType = UNSET


class LoginRequest(Struct):
    """A token that a person signs in with."""

    token: str


class SessionState(Struct):
    """The caller as the server sees it. `needs_token`: the server asks for a token, and this request has none that is
    valid."""

    needs_token: bool
    token_id: str
    roles: list[str]
    subjects: list[str]
