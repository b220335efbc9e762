"""Calls about dead letters of consumer groups. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from delayserver.client.calls.core import Call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operations import DEAD_LETTERS

LIST_AT_ONCE: Final = 256
RESEND_AT_ONCE: Final = 1024
DROP_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a consumer group gave up.

    ``position`` names it. ``reason`` is ``nacked``, ``ack_timeout`` or ``skipped``. ``text`` is what the consumer gave with
    the nack, or the operator who skipped it.
    It was given up at ``dead_ms``, after ``attempts``. ``sequence``, ``server_id``, ``due_ms`` and ``properties`` are
    those of the message. ``body`` is None if the bodies were not asked for.
    """

    position: int
    message_id: str
    reason: str
    text: str
    attempts: int
    dead_ms: int
    due_ms: int
    sequence: int
    server_id: str
    properties: dict[str, str]
    body_bytes: int
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters. ``next`` names the next page; None on the last one. ``left`` counts all letters of the group."""

    letters: list[DeadLetter]
    next: int | None
    left: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class ResendResult:
    """How many letters were sent again and how many are ``left``. The node could not read ``unreadable`` ones. At the
    same rate the next one is due in ``next_ms``."""

    resent: int
    left: int
    next_ms: int
    unreadable: int


@dataclass(frozen=True, slots=True)
class DropResult:
    """How many letters were dropped and how many are ``left``."""

    dropped: int
    left: int


_FIELDS: Final = tuple([each.name for each in fields(DeadLetter)])


def list_call(subject: str, group: str, *, after: int | None, letters_max: int, bodies: bool) -> Call[DeadLetterPage]:
    """A page of dead letters."""
    arguments: dict[str, Any] = {"max": letters_max, "bodies": bodies}
    if after is not None:
        arguments["after"] = after

    def read(result: dict[str, Any], _: object) -> DeadLetterPage:
        rows = [{name: row[name] for name in _FIELDS if name in row} for row in result["letters"]]
        return DeadLetterPage([DeadLetter(**row) for row in rows], result["next"], result["left"], result["unreadable"])

    return _call("list", subject, group, arguments, read, repeatable=True)


def resend_call(
    subject: str, group: str, *, letters_max: int, positions: Sequence[int] | None, rate: float | None, first_ms: int
) -> Call[ResendResult]:
    """Send letters again. Repeatable by position: those that were sent again are done."""
    arguments: dict[str, Any] = {"max": min(letters_max, RESEND_AT_ONCE), "first_ms": first_ms} | _chosen(positions)
    if rate is not None:
        arguments["rate"] = rate

    def read(result: dict[str, Any], _: object) -> ResendResult:
        return ResendResult(result["resent"], result["left"], result["next_ms"], result["unreadable"])

    return _call("resend", subject, group, arguments, read, repeatable=positions is not None)


def drop_call(subject: str, group: str, *, letters_max: int, positions: Sequence[int] | None) -> Call[DropResult]:
    """Drop letters. Repeatable by position."""

    def read(result: dict[str, Any], _: object) -> DropResult:
        return DropResult(result["dropped"], result["left"])

    arguments = {"max": min(letters_max, DROP_AT_ONCE)} | _chosen(positions)
    return _call("drop", subject, group, arguments, read, repeatable=positions is not None)


def parts_of(letters_max: int | None, positions: Sequence[int] | None) -> Iterator[tuple[int, Sequence[int] | None]]:
    """The letters that are meant, in parts of one kind of request: how many, and their positions if they are chosen.

    Raises InvalidArgument."""
    if letters_max is not None and letters_max < 1:
        raise InvalidArgument("letters_max must be at least 1")
    if positions is None:
        yield (1 << 62 if letters_max is None else letters_max), None
        return
    chosen = sorted(set(positions))[:letters_max]
    for start in range(0, len(chosen), RESEND_AT_ONCE):
        part = chosen[start : start + RESEND_AT_ONCE]
        yield len(part), part


def _chosen(positions: Sequence[int] | None) -> dict[str, Any]:
    return {} if positions is None else {"positions": list(positions)}


def _call(
    action: str, subject: str, group: str, arguments: dict[str, Any], read: Any, *, repeatable: bool
) -> Call[Any]:
    names = {"action": action, "subject": subject, "group": group}
    return Call(DEAD_LETTERS, names | arguments, read, repeatable=repeatable)
