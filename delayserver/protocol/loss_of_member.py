"""What happens if a member of a cluster dies, as far as its shard is known."""

from __future__ import annotations

from collections.abc import Sequence

SILENT_MS = 2_000
"""A member whose log does not say where it ends is cut off from it, if no record has come for so long either."""


def hears_log(lag_records: int | None, lag_ms: int) -> bool:
    """Whether the log of a member answers, by what the member says of its lag."""
    return lag_records is not None or lag_ms < SILENT_MS


def if_it_dies(role: str, others: Sequence[str], *, log_answers: bool) -> str:
    """A clause for people. `role` is that of the member, and `others` are the other members of its shard that answer.
    `log_answers`: at least one of all these hears its log."""
    if not log_answers:
        return "nothing is served now, and nothing will be until the log answers"
    if role == "standby":
        return "nothing stops, but the primary has no standby then" if len(others) == 1 else "nothing stops"
    if not others:
        return "NOTHING IS SERVED until it, or another member, is back: it has no standby"
    return f"{' or '.join(others)} goes on, some two seconds later"
