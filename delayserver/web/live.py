"""`GET /v1/live`: the server's figures as server-sent events, for the console. They are read once for all listeners.

An event `past` comes first, with samples of the last hour. An event `live` comes each second and has `metrics` and the
pending messages of the next hour by minute. At a gateway of several shards the pending messages are those of all, and
`metrics` those of one: `shards` says how many there are. An event `coming`
has the pending messages by hour, and by day where a day is not split yet. It comes first, and then when it has changed.
Windows longer than a minute or an hour are buckets of their own width; one that began before may last on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from delayserver.client import AsyncClient
from delayserver.protocol.errors import DelayServerError, Refused
from delayserver.web.answers import event, event_stream
from delayserver.web.bodies import TOKEN
from delayserver.web.clients import Clients
from delayserver.web.past import PAST_PERIOD_S, Past
from delayserver.web.problems import problem_of
from delayserver.web.sessions import LASTS
from delayserver.web.streams import Streams

PERIOD_S: Final = 1.0
COMING_PERIODS: Final = 10
"""The counts of coming days change slowly, and they cost the server a look at each window that is not complete."""
ROWS_MAX: Final = 100
"""Rows of a list in `metrics`, those with the most messages. A page with thousands of rows is of no use to a person."""
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
MINUTES_AHEAD_MS: Final = HOUR_MS
COMING_AHEAD_MS: Final = 400 * DAY_MS
"""All that is due later is one bucket: `message.delay_ms_max` may be a century."""

RETRY: Final = b"retry: 2000\n\n"
_LISTS: Final[Mapping[str, Callable[[Mapping[str, Any]], int]]] = {
    "subjects": lambda row: row["pending"],
    "consumer_groups": lambda row: row["lag"] + row.get("dead_letters", 0),
}

_encode = msgspec.json.Encoder().encode


class Live:
    """Reads the figures each second while a page listens, else now and then for the past. All pages get the same bytes."""

    def __init__(self, clients: Clients, streams: Streams) -> None:
        self._clients = clients
        self._streams = streams
        self._past = Past()
        self._listeners = 0
        self._wanted = anyio.Event()
        self._arrived = anyio.Event()
        # The events of the last reading; empty while no page listens.
        self._live = b""
        self._coming = b""
        # The longest window that was seen: one that began so long ago may last on.
        self._window_ms = MINUTE_MS

    async def run(self) -> None:
        """Read the figures until cancelled."""
        periods = 0
        await self._remember()
        while True:
            with anyio.move_on_after(PAST_PERIOD_S):
                await self._wanted.wait()
            if not self._wanted.is_set():
                await self._remember()
                continue
            await self._read(with_coming=periods % COMING_PERIODS == 0)
            periods += 1
            self._arrived.set()
            self._arrived = anyio.Event()
            await anyio.sleep(PERIOD_S)
            if not self._listeners:
                self._wanted = anyio.Event()
                self._live, self._coming, periods = b"", b"", 0

    async def live(self, request: Request, names: Mapping[str, str]) -> Response:
        """The stream of a listener."""
        await self._clients.require_look(request.scope)
        self._streams.begin(request.scope)
        return event_stream(self._events(request.scope))

    async def _events(self, scope: Mapping[str, Any]) -> AsyncIterator[bytes]:
        self._listeners += 1
        self._wanted.set()
        try:
            yield RETRY
            yield event(_encode({"samples": self._past.samples()}), name="past")
            told = b""
            while True:
                arrived = self._arrived
                if self._coming != told:
                    told = self._coming
                    yield told
                if self._live:
                    yield self._live
                await arrived.wait()
                if not await self._may_look(scope):
                    return
        finally:
            self._listeners -= 1

    async def _may_look(self, scope: Mapping[str, Any]) -> bool:
        """False from the end of its token or its session on; without a token, from the first token of the server on."""
        session_lasts = scope.get(LASTS)
        if session_lasts is not None and not session_lasts():
            return False
        try:
            await self._clients.require_look(scope)
        except Refused:
            return False
        except DelayServerError:
            # A listener without a token goes on: the next event says that the server is away.
            return not scope.get(TOKEN)
        return True

    async def _remember(self) -> None:
        """One sample for the past, while nobody listens."""
        try:
            self._past.add(await (await self._clients.own()).calls.metrics())
        except DelayServerError:
            return  # The past has a gap.

    async def _read(self, *, with_coming: bool) -> None:
        calls = (await self._clients.own()).calls
        try:
            metrics = await calls.metrics()
            shards = await calls.shard_clients()
        except DelayServerError as error:
            self._live = event(_encode({"problem": problem_of(error).document()}), name="live")
            return
        self._past.add(metrics)
        now_ms = metrics["clock"]["server_us"] // 1000
        minute_ms, hour_ms = now_ms - now_ms % MINUTE_MS, now_ms - now_ms % HOUR_MS
        back_ms = DAY_MS if with_coming else self._window_ms
        minutes = await _pending(calls, "minute", minute_ms, back_ms, minute_ms + MINUTES_AHEAD_MS)
        self._window_ms = max(
            [self._window_ms, *[each["width_ms"] for each in minutes or () if each["width_ms"] < DAY_MS]]
        )
        if with_coming or not self._coming:
            hours = await _pending(calls, "hour", hour_ms, DAY_MS, None)
            if hours is not None:
                self._coming = event(_encode({"hours": _in_sight(hours, hour_ms + COMING_AHEAD_MS)}), name="coming")
        told = {"metrics": metrics | _longest(metrics), "minutes": minutes}
        several = {"shards": len(shards)} if len(shards) > 1 else {}
        self._live = event(_encode(told | several), name="live")


async def _pending(
    calls: AsyncClient, by: str, from_ms: int, back_ms: int, to_ms: int | None
) -> list[dict[str, int]] | None:
    """Buckets of pending messages that end behind `from_ms` and begin before `to_ms`, and at most `back_ms` before
    `from_ms`. None while the server does not count them, such as at its start."""
    try:
        buckets = await calls.pending(by, from_ms=from_ms - back_ms, to_ms=to_ms)
    except DelayServerError:
        return None
    return [
        {"start_ms": each.start_ms, "width_ms": each.width_ms, "pending": each.pending}
        for each in buckets
        if each.start_ms + each.width_ms > from_ms
    ]


def _in_sight(buckets: list[dict[str, int]], until_ms: int) -> list[dict[str, int]]:
    """The buckets, of which those that begin from `until_ms` on are one."""
    later = [each for each in buckets if each["start_ms"] >= until_ms]
    if not later:
        return buckets
    start_ms, end_ms = later[0]["start_ms"], later[-1]["start_ms"] + later[-1]["width_ms"]
    whole = {"start_ms": start_ms, "width_ms": end_ms - start_ms, "pending": sum([each["pending"] for each in later])}
    return [*buckets[: len(buckets) - len(later)], whole]


def _longest(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of `metrics` without their smaller rows."""
    return {
        name: sorted(metrics[name], key=size, reverse=True)[:ROWS_MAX]
        for name, size in _LISTS.items()
        if name in metrics
    }
