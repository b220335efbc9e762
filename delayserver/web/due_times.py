"""When a message of a request is due. The gateway resolves delays by the server's clock, once."""

from __future__ import annotations

from typing import Final

from delayserver.client import AsyncClient
from delayserver.client.calls.send_calls import delay_of_level
from delayserver.config.units import format_duration, parse_duration_ms, parse_instant_ms
from delayserver.web.problems import invalid
from delayserver.web.schemas import Due

TEXT_MAX: Final = 100
"""Far more than any duration or time has. To read megabytes of one would take seconds."""


async def due_ms_of(due: Due, client: AsyncClient) -> int:
    """The due time of a request. Raises `Problem` unless exactly one of its five fields is given and makes sense."""
    given = [value for value in (due.due_ms, due.delay_ms, due.delay, due.at, due.delay_level) if value is not None]
    if len(given) != 1:
        raise invalid("give exactly one of due_ms, delay_ms, delay, at and delay_level")
    if due.due_ms is not None:
        return due.due_ms
    if len(due.delay or due.at or "") > TEXT_MAX:
        raise invalid(f"delay and at have at most {TEXT_MAX} characters")
    try:
        if due.at is not None:
            return parse_instant_ms(due.at)
        delay_ms = due.delay_ms if due.delay is None else parse_duration_ms(due.delay)
    except (ValueError, OverflowError) as error:
        raise invalid(f"{'delay' if due.at is None else 'at'}: {error}") from None
    if due.delay_level is not None:
        delay_ms = delay_of_level(await client.connect(), await _level_number(due.delay_level, client))
    return await client.resolve_due_ms(None, delay_ms, None, None)


def has_due(due: Due) -> bool:
    """Whether a request says when its message is due."""
    given = (due.due_ms, due.delay_ms, due.delay, due.at, due.delay_level)
    return any(value is not None for value in given)


async def _level_number(level: int | str, client: AsyncClient) -> int:
    """The number of a delay level, which a query gives as a text. Raises `Problem` for a name that no level has."""
    if isinstance(level, int) or level.isdecimal():
        return int(level)
    try:
        delay_ms = parse_duration_ms(level)
    except (ValueError, OverflowError) as error:
        raise invalid(f"delay_level: {error}") from None
    levels_ms = (await client.connect()).delay_levels_ms
    if delay_ms not in levels_ms:
        known = ", ".join(map(format_duration, levels_ms)) or "none"
        raise invalid(f"delay_level: {level} is no delay level of this server; it has: {known}")
    return levels_ms.index(delay_ms) + 1
