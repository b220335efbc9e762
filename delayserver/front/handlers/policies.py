"""`policy`."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.names import read_names
from delayserver.operations.groups.policies import GroupPolicyOf, Policies
from delayserver.protocol.arguments import boolean, invalid
from delayserver.protocol.frames import Request


class PolicyHandlers:
    """Requests about the policies of consumer groups."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    async def policy(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Shows the policy of a group, and before that changes it if the request says so."""
        arguments = request.arguments
        subject, group = read_names(arguments)
        changes, reset = arguments.get("set"), boolean(arguments, "reset")
        if changes is None and not reset:
            return _reply(self._policies.get(subject, group))
        if changes is not None and (type(changes) is not dict or any(type(name) is not str for name in changes)):
            raise invalid("set", "a map of the policy's fields", changes)
        return _reply(await self._policies.set(subject, group, changes or {}, reset=reset))


def _reply(found: GroupPolicyOf) -> dict[str, Any]:
    pauses = found.pauses
    applies = {"attempts": found.policy.attempts or 0, "levels_ms": list(pauses.levels_ms)}
    if not pauses.levels_ms:
        applies |= {"first_ms": pauses.first_ms, "factor": pauses.factor, "cap_ms": pauses.cap_ms}
    return {
        "subject": found.subject,
        "group": found.group,
        "policy": found.policy.to_full_map(),
        "applies": applies,
    }
