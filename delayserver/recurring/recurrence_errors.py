"""What is wrong with a recurrence, in one sentence that names the field."""

from __future__ import annotations


class RecurrenceInvalid(ValueError):
    """A text is no recurrence. `field` names the part that is wrong, as `cron`, `zone` or `rrule`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


class NeverFires(RecurrenceInvalid):
    """A rule is well formed, and no moment fits it."""
