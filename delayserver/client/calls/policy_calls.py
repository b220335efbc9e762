"""Calls about the policies of consumer groups. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypedDict

from delayserver.client.calls.core import Call
from delayserver.client.values.timing import Span, timedelta_to_ms
from delayserver.protocol.operations import POLICY


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The policy of a consumer group at one node.

    ``settings`` has every field of the policy by name, None where nothing is set. ``attempts``: how often a message is
    handed out before it becomes a dead letter, 0 for without end. ``first_ms``, ``factor`` and ``cap_ms`` are the
    pauses that apply; None if the pauses are ``levels_ms``.
    """

    subject: str
    group: str
    settings: Mapping[str, Any]
    attempts: int
    first_ms: int | None
    factor: float | None
    cap_ms: int | None
    levels_ms: list[int] = field(default_factory=list)


class PolicyChanges(TypedDict, total=False):
    """Fields of a policy, as keywords of `Client.set_policy`. A field that is left out stays as it is.

    ``attempts``: how often a message is handed out before it becomes a dead letter, 0 for without end. ``first_ms``,
    ``factor`` and ``cap_ms``: the first pause, its growth, and the longest pause. ``first_level``: pauses are the delay
    levels of the server from this one on. ``tags`` and ``where``: the filter. ``failed_key``: ``"skip"`` or ``"wait"``.
    """

    attempts: int | None
    first_ms: Span | None
    factor: float | None
    cap_ms: Span | None
    first_level: int | None
    tags: str | None
    where: str | None
    failed_key: str | None


def policy_call(subject: str, group: str, changes: Mapping[str, Any] | None, *, reset: bool) -> Call[GroupPolicy]:
    """Show a policy; with ``changes`` or ``reset`` change it before. Repeatable: it sets what it says."""
    arguments: dict[str, Any] = {"subject": subject, "group": group}
    if changes is not None:
        arguments["set"] = {
            name: timedelta_to_ms(value) if isinstance(value, timedelta) else value for name, value in changes.items()
        }
    if reset:
        arguments["reset"] = True
    return Call(POLICY, arguments, lambda result, _: _read(result))


def _read(result: dict[str, Any]) -> GroupPolicy:
    applies = result["applies"]
    return GroupPolicy(
        result["subject"],
        result["group"],
        result["policy"],
        int(applies["attempts"]),
        applies.get("first_ms"),
        applies.get("factor"),
        applies.get("cap_ms"),
        list(applies["levels_ms"]),
    )
