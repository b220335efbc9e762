"""Calls about the policies of consumer groups. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from msgspec import UNSET, Struct, field
from msgspec.structs import asdict

from delayserver.client.calls.core import Call
from delayserver.client.values.timing import Span, timedelta_to_ms
from delayserver.protocol.operation_names import POLICY
from delayserver.protocol.schema.policies import Attempts, CapMs, Factor, FirstMs, LevelsMs, PolicyOfGroup, ShowPolicy
from delayserver.protocol.schema.structs import arguments_of, read_reply, says
from delayserver.protocol.schema.words import Group, Subject


class GroupPolicy(Struct, frozen=True):
    """The policy of a consumer group at one node.

    ``settings`` has every field of the policy by name, None where nothing is set. ``attempts``: how often a message is
    handed out before it becomes a dead letter, 0 for without end. ``first_ms``, ``factor`` and ``cap_ms`` are the
    pauses that apply; None if the pauses are ``levels_ms``.
    """

    subject: Subject
    group: Group
    settings: Annotated[
        dict[str, Any], says("The fields of the policy; null where nothing is set for this group.", {"attempts": 5})
    ] = field(name="policy")
    attempts: Attempts
    first_ms: FirstMs | None
    factor: Factor | None
    cap_ms: CapMs | None
    levels_ms: LevelsMs


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
    values = None
    if changes is not None:
        values = {
            name: timedelta_to_ms(value) if isinstance(value, timedelta) else value for name, value in changes.items()
        }
    asked = ShowPolicy(subject=subject, group=group, set=values, reset=reset)
    return Call(POLICY, arguments_of(asked), lambda result, _: _read(result))


def _read(result: dict[str, Any]) -> GroupPolicy:
    found = read_reply(result, PolicyOfGroup)
    # A field that an older node does not know is not there.
    settings = {name: value for name, value in asdict(found.policy).items() if value is not UNSET}
    applies = found.applies
    pauses = (applies.first_ms, applies.factor, applies.cap_ms, applies.levels_ms)
    return GroupPolicy(found.subject, found.group, settings, applies.attempts, *pauses)
