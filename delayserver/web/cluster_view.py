"""`GET /v1/cluster`: all shards and members of the cluster, as the map has them and as each member says now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import anyio
from msgspec import convert
from starlette.requests import Request
from starlette.responses import Response

from delayserver.protocol.errors import ConnectionLost, DelayServerError, RequestTimedOut
from delayserver.protocol.loss_of_member import hears_log, if_it_dies
from delayserver.protocol.schema.shard_map import ShardPlace
from delayserver.web.answers import json_answer
from delayserver.web.clients import Clients, TokenClient
from delayserver.web.schemas import ClusterShown, LogShown, MemberShown, ShardShown

ANSWER_S: Final = 2.0
"""A member that does not answer within this time is shown as one that does not."""
ASKING_S: Final = 5.0
"""After this time no further member is asked."""
AT_ONCE_MAX: Final = 16
"""Members that a gateway asks at the same time, for all its callers."""
UNASKED: Final = "not asked"
NO_ANSWER: Final = "no answer"

Status = Mapping[str, Any]


class ClusterView:
    """Asks the members of the map for their figures."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._places = anyio.Semaphore(AT_ONCE_MAX)

    async def cluster(self, request: Request, names: Mapping[str, str]) -> Response:
        """The map with the figures of all members."""
        await self._clients.require_look(request.scope)
        client = await self._clients.of_request(request.scope)
        map_ = await client.calls.shard_map()
        answers: dict[str, Status | str] = {}
        end_s = anyio.current_time() + ASKING_S

        async def ask(address: str) -> None:
            async with self._places:
                if anyio.current_time() < end_s:
                    answers[address] = await self._status(client, address)

        async with anyio.create_task_group() as tasks:
            for address in {each for place in map_.shards for each in _addresses(place)}:
                tasks.start_soon(ask, address)
        return json_answer(ClusterShown(map_.version, [shard_shown(place, answers) for place in map_.shards]))

    async def _status(self, client: TokenClient, address: str) -> Status | str:
        """The status of whoever is at an address; or why there is none."""
        try:
            with anyio.fail_after(ANSWER_S):
                async with self._clients.of_member(client, address, ANSWER_S) as member:
                    return await member.status()
        except (TimeoutError, ConnectionLost, RequestTimedOut):
            return NO_ANSWER
        except DelayServerError as error:
            return error.message


def _addresses(place: ShardPlace) -> list[str]:
    return [each for each in (place.primary, *place.standbys) if each]


def shard_shown(place: ShardPlace, answers: Mapping[str, Status | str]) -> ShardShown:
    """A shard of the map. `answers` has the status of the members that were asked, by address, or why there is none."""
    told = {address: _answer(place, answers.get(address, UNASKED)) for address in _addresses(place)}
    statuses = [each for each in told.values() if not isinstance(each, str)]
    leading = next((each for each in statuses if each["cluster"][0]["role"] == "primary"), None)
    source = leading or next(iter(statuses), None)
    return ShardShown(
        place.shard, place.server_id, convert(place.state, Any), place.epoch,
        None if leading is None else leading["pending"],
        [_member(place, address, answer, statuses) for address, answer in told.items()],
        None if source is None else _log(source["cluster"][0]),
    )  # fmt: skip


def _answer(place: ShardPlace, answer: Status | str) -> Status | str:
    if isinstance(answer, str) or (answer.get("server_id") == place.server_id and answer.get("cluster")):
        return answer
    return "another server is at this address"


def _member(place: ShardPlace, address: str, answer: Status | str, statuses: list[Status]) -> MemberShown:
    announced: Literal["primary", "standby"] = "primary" if address == place.primary else "standby"
    if isinstance(answer, str):
        return MemberShown(address, announced, answer)
    figures = answer["cluster"][0]
    others = [each["cluster"][0] for each in statuses if each is not answer]
    heirs = [each["member"] for each in others if not each.get("damaged")]
    log_answers = any(hears_log(each["cluster"][0]["lag_records"], each["cluster"][0]["lag_ms"]) for each in statuses)
    return MemberShown(
        address, announced, None, figures["member"], figures["role"], figures["epoch"], figures["lag_records"],
        figures["lag_ms"], if_it_dies(figures["role"], heirs, log_answers=log_answers),
        figures.get("front", ""), figures.get("damaged", False),
    )  # fmt: skip


def _log(figures: Status) -> LogShown:
    return LogShown(
        figures["log_answers"], figures["log_copies"], figures["log_in_sync"], figures["log_in_sync_min"],
        figures["log_kept"], figures["log_faults"],
    )  # fmt: skip
