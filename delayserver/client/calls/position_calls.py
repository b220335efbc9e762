"""Calls about consumer groups and their positions, and reads without a group. No I/O."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from delayserver.client.calls.core import Call, described_call
from delayserver.client.values.pulled_columns import read_pulled
from delayserver.client.values.timing import datetime_to_ms
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import GROUP, GROUPS, READ, REMOVE_GROUP, SEEK
from delayserver.protocol.schema.greetings import ServerInfo
from delayserver.protocol.schema.groups import (
    GROUPS_AT_ONCE_MAX,
    ConsumerGroup,
    GroupCursor,
    GroupRemoved,
    GroupsPage,
    ListGroups,
    RemoveGroup,
    SeekGroup,
    ShowGroup,
    Sought,
)
from delayserver.protocol.schema.stored import READ_BYTES, ReadMessage, ReadMessages, ReadPage
from delayserver.protocol.schema.structs import arguments_of


def start_argument(start: str | int | datetime | None) -> str | int | None:
    """Where a pull lets a new group begin, as the wire has it. Raises `InvalidArgument`."""
    return datetime_to_ms(start) if isinstance(start, datetime) else start


def groups_call(subject: str | None, after: GroupCursor | None, max_groups: int | None) -> Call[GroupsPage]:
    """A page of the consumer groups of a node, or of those of one subject."""
    count_max = GROUPS_AT_ONCE_MAX if max_groups is None else max_groups
    asked = ListGroups(subject=subject, after=after, max=count_max)  # type: ignore[arg-type]  # no server gets names
    return described_call(GROUPS, asked, GroupsPage)


def group_call(subject: str, group: str) -> Call[ConsumerGroup]:
    """One consumer group."""
    return described_call(GROUP, ShowGroup(subject=subject, group=group), ConsumerGroup)


def seek_call(subject: str, group: str, to: str | int | datetime) -> Call[Sought]:
    """Move a group. Repeatable, though consumers that pull between two attempts begin anew at the second one."""
    if isinstance(to, datetime):
        goal: dict[str, Any] = {"time_ms": datetime_to_ms(to)}
    elif isinstance(to, str):
        goal = {"to": to}
    elif type(to) is int:
        goal = {"position": to}
    else:
        raise InvalidArgument(f"seek to earliest, latest, a datetime or a position, not to {to!r}")
    return described_call(SEEK, SeekGroup(subject=subject, group=group, **goal), Sought)


def remove_group_call(subject: str, group: str) -> Call[GroupRemoved]:
    """Remove a group. Not repeatable: a second attempt would say that there is no such group, or remove a new one."""
    return described_call(REMOVE_GROUP, RemoveGroup(subject=subject, group=group), GroupRemoved, repeatable=False)


def read_call(subject: str, position: int, max_messages: int, wait_ms: int, max_bytes: int | None) -> Call[ReadPage]:
    """Read messages from a position on."""
    asked = ReadMessages(
        subject=subject,
        position=position,
        max_messages=max_messages,
        max_bytes=READ_BYTES if max_bytes is None else max_bytes,
        wait_ms=wait_ms,
        columns=True,
    )

    def read(result: dict[str, Any], _: ServerInfo) -> ReadPage:
        messages = _messages(result, max_messages)
        return ReadPage(str(result["status"]), int(result["first"]), int(result["end"]), int(result["next"]), messages)

    return Call(READ, arguments_of(asked), read, wait_s=wait_ms / 1000)


def _messages(result: dict[str, Any], count_max: int) -> list[ReadMessage]:
    columns = read_pulled({**result, "attempt": 0, "delivery": 0}, count_max)
    return [
        ReadMessage(
            message_id=row.message_id,
            subject=row.subject,
            position=position,
            sequence=row.sequence,
            server_id=row.server_id,
            due_ms=row.due_ms,
            accepted_us=row.accepted_us,
            dispatched_us=row.dispatched_us,
            body=row.body,
            properties=row.properties,
            expires_ms=row.expires_ms,
            tag=row.tag,
            order_key=row.order_key,
        )
        for row, position in zip(columns.deliveries(), columns.position.tolist(), strict=True)
    ]
