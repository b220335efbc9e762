"""The parameters of queries, as types."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from delayserver.protocol.schema.groups import GROUPS_AT_ONCE_MAX
from delayserver.protocol.slots import SLOTS
from delayserver.web.bodies import BodyForm
from delayserver.web.cursor_text import CURSOR
from delayserver.web.schemas import I64, Due, Milliseconds


class ShardQuery(Struct, forbid_unknown_fields=True):
    """`shard`: what this shard has alone, at a gateway of several."""

    shard: Annotated[int, Meta(ge=0, le=SLOTS)] | None = None


class LookupQuery(Struct, forbid_unknown_fields=True):
    """`body_as`: how the body is written. `times`: also when the message passed each stage."""

    body_as: BodyForm = "auto"
    times: bool = False


class ReadyQuery(Struct, forbid_unknown_fields=True):
    """`role`: with `primary` a standby is not ready."""

    role: Annotated[
        Literal["any", "primary"], Meta(description="With `primary` a standby is not ready.", examples=["primary"])
    ] = "any"


class KeyQuery(Struct, forbid_unknown_fields=True):
    """A message by what its sender chose: subject, id and due time."""

    subject: str
    message_id: str
    due_ms: I64
    body_as: BodyForm = "auto"
    times: bool = False


class SendQuery(Due, kw_only=True, forbid_unknown_fields=True):
    """`results`: with `errors` only rows that were refused are answered, and a last line with the counts. The other
    parameters are for a CloudEvent, which has no place of its own for them. `subject` is the type of the event by default.
    """

    results: Literal["all", "errors"] = "all"
    subject: str | None = None
    expires_ms: Milliseconds | None = None
    tag: str | None = None
    order_key: str | None = None


class PendingQuery(ShardQuery, kw_only=True, forbid_unknown_fields=True):
    """Minutes or hours that begin from `from` on and before `to`, in milliseconds since 1970. By subject all times are
    counted together.
    """

    by: Literal["minute", "hour", "subject"] = "minute"
    from_ms: I64 | None = msgspec.field(default=None, name="from")
    to_ms: I64 | None = msgspec.field(default=None, name="to")


class LettersQuery(Struct, forbid_unknown_fields=True):
    """Dead letters behind the position `after`. Bodies come only with `body_as`."""

    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Milliseconds | None = None
    body_as: BodyForm | None = None


class TransactionsQuery(ShardQuery, kw_only=True, forbid_unknown_fields=True):
    """Open transactions behind the `next` of another page."""

    after: str | None = None
    max: Annotated[int, Meta(ge=1, le=1024)] = 100


class WaitingKeysQuery(Struct, forbid_unknown_fields=True):
    """Waiting keys behind the position `after`."""

    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Milliseconds | None = None


class ReadQuery(ShardQuery, kw_only=True, forbid_unknown_fields=True):
    """Messages from `position` on."""

    position: Milliseconds = 0
    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    body_as: BodyForm = "auto"


class GroupsQuery(ShardQuery, kw_only=True, forbid_unknown_fields=True):
    """`subject`: only the groups of this subject. With `max` or `after` a page of them, else all."""

    subject: str | None = None
    max: Annotated[int, Meta(ge=1, le=GROUPS_AT_ONCE_MAX)] | None = None
    after: Annotated[str, Meta(pattern=CURSOR)] | None = None
