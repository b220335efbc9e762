"""Words for the codes that files hold: kinds of files, kinds of records, outcomes."""

from __future__ import annotations

from typing import Final

from delayserver.protocol.outcomes import Outcome

FILE_KINDS: Final = {
    1: "message_log", 2: "schedule_log", 3: "dispatch_log", 4: "names", 5: "broker store", 6: "broker queue",
    7: "broker progress", 8: "ledger", 9: "broker index",
}  # fmt: skip
RECORD_KINDS: Final = {
    1: "messages", 2: "cancels", 3: "outcomes", 4: "names", 5: "stored", 6: "progress", 7: "runs", 8: "ledger", 9: "index",
    10: "followed", 11: "table", 12: "kept",
}  # fmt: skip


def outcome_name(code: int) -> str:
    """The label of an outcome code, or the number of one that is none."""
    try:
        return Outcome(code).label
    except ValueError:
        return str(code)
