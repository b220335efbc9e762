"""Calls about dead letters of consumer groups. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delayserver.client.calls.core import Call, described_call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import DEAD_LETTERS
from delayserver.protocol.schema.dead_letters import (
    DROP_MAX,
    RESEND_MAX,
    DeadLetterPage,
    DropDeadLetters,
    DropResult,
    ListDeadLetters,
    ResendDeadLetters,
    ResendResult,
)


def list_call(subject: str, group: str, *, after: int | None, letters_max: int, bodies: bool) -> Call[DeadLetterPage]:
    """A page of dead letters."""
    start = -1 if after is None else after
    asked = ListDeadLetters(subject=subject, group=group, bodies=bodies, after=start, max=letters_max)
    return described_call(DEAD_LETTERS, asked, DeadLetterPage)


def resend_call(
    subject: str, group: str, *, letters_max: int, positions: Sequence[int] | None, rate: float | None, first_ms: int
) -> Call[ResendResult]:
    """Send letters again. Repeatable by position: those that were sent again are done."""
    asked = ResendDeadLetters(
        subject=subject,
        group=group,
        positions=chosen_positions(positions),
        max=min(letters_max, RESEND_MAX),
        rate=rate,
        first_ms=first_ms,
    )
    return described_call(DEAD_LETTERS, asked, ResendResult, repeatable=positions is not None)


def drop_call(subject: str, group: str, *, letters_max: int, positions: Sequence[int] | None) -> Call[DropResult]:
    """Drop letters. Repeatable by position."""
    chosen, count_max = chosen_positions(positions), min(letters_max, DROP_MAX)
    asked = DropDeadLetters(subject=subject, group=group, positions=chosen, max=count_max)
    return described_call(DEAD_LETTERS, asked, DropResult, repeatable=positions is not None)


def chosen_positions(positions: Sequence[int] | None) -> list[int] | None:
    """Positions as a request has them."""
    return None if positions is None else list(positions)


def parts_of(letters_max: int | None, positions: Sequence[int] | None) -> Iterator[tuple[int, Sequence[int] | None]]:
    """The letters that are meant, in parts of one kind of request: how many, and their positions if they are chosen.

    Raises InvalidArgument."""
    if letters_max is not None and letters_max < 1:
        raise InvalidArgument("letters_max must be at least 1")
    if positions is None:
        yield (1 << 62 if letters_max is None else letters_max), None
        return
    chosen = sorted(set(positions))[:letters_max]
    for start in range(0, len(chosen), RESEND_MAX):
        part = chosen[start : start + RESEND_MAX]
        yield len(part), part
