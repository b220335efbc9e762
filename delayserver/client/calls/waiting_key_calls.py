"""Calls about order keys of consumer groups that wait for a message that has failed. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from delayserver.client.calls.core import Call
from delayserver.protocol.operations import WAITING_KEYS

LIST_AT_ONCE: Final = 256
SKIP_AT_ONCE: Final = 1024
RETRY_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class WaitingKey:
    """An order key that waits for a message that has failed.

    ``position`` names the message, for `skip_waiting_keys` and `retry_waiting_keys`. ``state`` is ``paused`` (it comes again
    at ``next_ms``), ``ready`` (a pull brings it; ``next_ms`` is None) or ``leased`` (a consumer has it until ``next_ms``).
    It came ``attempts`` times. It has failed since ``since_ms``, as far as the node knows since its start. ``behind``
    later messages of the key wait, of those that the group has looked at.
    """

    position: int
    order_key: str
    message_id: str
    state: str
    attempts: int
    since_ms: int
    next_ms: int | None
    behind: int
    due_ms: int
    sequence: int
    server_id: str


@dataclass(frozen=True, slots=True)
class WaitingKeysPage:
    """Some waiting keys. ``next`` names the next page; None on the last one. ``left`` counts all keys that wait."""

    keys: list[WaitingKey]
    next: int | None
    left: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class SkipResult:
    """How many messages became dead letters, so that their keys go on, and how many keys are ``left`` waiting. A message
    that had expired counts, and leaves no letter."""

    skipped: int
    left: int


@dataclass(frozen=True, slots=True)
class RetryKeysResult:
    """How many messages a pull brings at once now, and how many keys are ``left`` waiting."""

    retried: int
    left: int


_FIELDS: Final = tuple([each.name for each in fields(WaitingKey)])


def list_call(subject: str, group: str, *, after: int | None, keys_max: int) -> Call[WaitingKeysPage]:
    """A page of waiting keys."""
    arguments: dict[str, Any] = {"max": keys_max}
    if after is not None:
        arguments["after"] = after

    def read(result: dict[str, Any], _: object) -> WaitingKeysPage:
        rows = [{name: row[name] for name in _FIELDS} for row in result["keys"]]
        return WaitingKeysPage(
            [WaitingKey(**row) for row in rows], result["next"], result["left"], result["unreadable"]
        )

    return _call("list", subject, group, arguments, read, repeatable=True)


def skip_call(
    subject: str, group: str, *, keys_max: int, positions: Sequence[int] | None, reason: str
) -> Call[SkipResult]:
    """Skip the messages for which keys wait. Repeatable by position: those that were skipped are done."""

    def read(result: dict[str, Any], _: object) -> SkipResult:
        return SkipResult(result["skipped"], result["left"])

    arguments = {"max": min(keys_max, SKIP_AT_ONCE), "reason": reason} | _chosen(positions)
    return _call("skip", subject, group, arguments, read, repeatable=positions is not None)


def retry_call(subject: str, group: str, *, positions: Sequence[int] | None) -> Call[RetryKeysResult]:
    """End the pauses of these messages. Repeatable: it ends nothing twice."""

    def read(result: dict[str, Any], _: object) -> RetryKeysResult:
        return RetryKeysResult(result["retried"], result["left"])

    return _call("retry", subject, group, _chosen(positions), read, repeatable=True)


def _chosen(positions: Sequence[int] | None) -> dict[str, Any]:
    return {} if positions is None else {"positions": list(positions)}


def _call(
    action: str, subject: str, group: str, arguments: dict[str, Any], read: Any, *, repeatable: bool
) -> Call[Any]:
    names = {"action": action, "subject": subject, "group": group}
    return Call(WAITING_KEYS, names | arguments, read, repeatable=repeatable)
