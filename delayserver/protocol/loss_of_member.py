"""What happens if a member of a cluster dies, as far as its shard is known."""

from __future__ import annotations

from collections.abc import Sequence


def if_it_dies(role: str, others: Sequence[str]) -> str:
    """A clause for people. `role` is that of the member, and `others` are the other members of its shard that answer."""
    if role == "standby":
        return "nothing stops, but the primary has no standby then" if len(others) == 1 else "nothing stops"
    if not others:
        return "NOTHING IS SERVED until it, or another member, is back: it has no standby"
    return f"{' or '.join(others)} goes on, some two seconds later"
