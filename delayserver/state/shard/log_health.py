"""How the shared log answers a member, as of its last look."""

from __future__ import annotations

from delayserver.runtime.shared_log import LogDescription


class LogHealth:
    """What was seen of the log itself. Writer: `LogWatch`."""

    __slots__ = ("answers", "described", "end", "unanswered")

    def __init__(self) -> None:
        # Whether the log answered the last look.
        self.answers = False
        # The position behind its last record, when it answered last.
        self.end = 0
        # How many looks got no answer.
        self.unanswered = 0
        # Copies and settings, when the log told them last; None: not yet.
        self.described: LogDescription | None = None

    def answer(self, end: int) -> None:
        """The log answered, and ends there."""
        self.answers, self.end = True, end

    def describe(self, description: LogDescription) -> None:
        """The log told its copies and settings."""
        self.described = description

    def miss(self) -> None:
        """The log gave no answer."""
        self.answers = False
        self.unanswered += 1
