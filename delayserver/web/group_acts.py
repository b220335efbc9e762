"""Endpoints about one consumer group: progress, seek, removal, policy, dead letters, waiting keys; and reads without one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from delayserver.config.units import parse_instant_ms
from delayserver.protocol.schema.dead_letters import DeadLetter
from delayserver.protocol.schema.stored import ReadMessage
from delayserver.web.answers import json_answer, read_json, read_query
from delayserver.web.bodies import BodyForm, BodyReader, shown_body
from delayserver.web.clients import Clients, TokenClient, at_shard
from delayserver.web.due_times import TEXT_MAX
from delayserver.web.http_consuming import REQUEST_BYTES_MAX, unless_gone
from delayserver.web.problems import Problem, invalid
from delayserver.web.queries import LettersQuery, ReadQuery, WaitingKeysQuery
from delayserver.web.schemas import (
    ChosenLetters,
    Letter,
    Letters,
    PolicyChange,
    ReadReply,
    ResendRequest,
    Resent,
    RetryRequest,
    Seek,
    SkipRequest,
    Stored,
    WaitingKeyShown,
    WaitingKeysShown,
)

_seek_decoder = msgspec.json.Decoder(Seek)
_policy_decoder = msgspec.json.Decoder(PolicyChange)
_resend_decoder = msgspec.json.Decoder(ResendRequest)
_skip_decoder = msgspec.json.Decoder(SkipRequest)
_retry_decoder = msgspec.json.Decoder(RetryRequest)
_drop_decoder = msgspec.json.Decoder(ChosenLetters)
OUT_OF_RANGE: Final = ("too_large", "retired", "too_small")


class GroupActs:
    """Looks after consumer groups of the node behind this gateway."""

    def __init__(self, clients: Clients, bodies: BodyReader) -> None:
        self._clients = clients
        self._bodies = bodies

    async def group(self, request: Request, names: Mapping[str, str]) -> Response:
        """The progress of one group."""
        client = await self._clients.of_request(request.scope)
        return json_answer(await client.calls.group(names["subject"], names["group"]))

    async def seek(self, request: Request, names: Mapping[str, str]) -> Response:
        """Let the group go on at another position."""
        client, asked = await self._asked(request, _seek_decoder)
        return json_answer(await client.calls.seek(names["subject"], names["group"], _goal(asked)))

    async def remove(self, request: Request, names: Mapping[str, str]) -> Response:
        """Forget the group. Its messages are kept for other groups."""
        client = await self._clients.of_request(request.scope)
        await client.calls.remove_group(names["subject"], names["group"])
        return Response(status_code=204)

    async def policy(self, request: Request, names: Mapping[str, str]) -> Response:
        """The policy of the group, also before its first pull."""
        client = await self._clients.of_request(request.scope)
        await _require_here(client, names)
        return json_answer(await client.calls.policy(names["subject"], names["group"]))

    async def set_policy(self, request: Request, names: Mapping[str, str]) -> Response:
        """Change fields of the policy. A field that is null goes back to the default."""
        client, asked = await self._asked(request, _policy_decoder)
        await _require_here(client, names)
        changes = {
            name: value
            for name, value in msgspec.structs.asdict(asked).items()
            if value is not msgspec.UNSET and name != "reset"
        }
        return json_answer(
            await client.calls.set_policy(names["subject"], names["group"], reset=asked.reset, **changes)
        )

    async def dead_letters(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages that the group gave up, oldest first."""
        query = read_query(request.query_params.multi_items(), LettersQuery)
        client = await self._clients.of_request(request.scope)
        found = await client.calls.dead_letters(
            names["subject"], names["group"], query.max, after=query.after, bodies=query.body_as is not None
        )
        return json_answer(Letters([_letter(each, query.body_as) for each in found]))

    async def resend(self, request: Request, names: Mapping[str, str]) -> Response:
        """Send dead letters to the group again, oldest first."""
        client, asked = await self._asked(request, _resend_decoder)
        done = await client.calls.resend_dead_letters(
            names["subject"], names["group"], asked.max, positions=asked.positions, rate=asked.rate
        )
        if not done.resent and (asked.positions or done.unreadable):
            raise _no_letter(resent=0, left=done.left, unreadable=done.unreadable)
        return json_answer(Resent(done.resent, done.left, done.unreadable))

    async def drop(self, request: Request, names: Mapping[str, str]) -> Response:
        """Remove dead letters for good, oldest first."""
        client, asked = await self._asked(request, _drop_decoder)
        done = await client.calls.drop_dead_letters(
            names["subject"], names["group"], asked.max, positions=asked.positions
        )
        if not done.dropped and asked.positions:
            raise _no_letter(dropped=0, left=done.left)
        return json_answer(done)

    async def waiting_keys(self, request: Request, names: Mapping[str, str]) -> Response:
        """Order keys that wait for a message that has failed."""
        query = read_query(request.query_params.multi_items(), WaitingKeysQuery)
        client = await self._clients.of_request(request.scope)
        found = await client.calls.waiting_keys(names["subject"], names["group"], query.max, after=query.after)
        return json_answer(WaitingKeysShown([WaitingKeyShown(**msgspec.structs.asdict(each)) for each in found]))

    async def skip(self, request: Request, names: Mapping[str, str]) -> Response:
        """Make dead letters of the messages for which keys wait."""
        client, asked = await self._asked(request, _skip_decoder)
        done = await client.calls.skip_waiting_keys(
            names["subject"], names["group"], asked.max, positions=asked.positions, reason=asked.reason
        )
        if not done.skipped and asked.positions:
            raise _no_key(skipped=0, left=done.left)
        return json_answer(done)

    async def retry(self, request: Request, names: Mapping[str, str]) -> Response:
        """End the pauses of the messages for which keys wait."""
        client, asked = await self._asked(request, _retry_decoder)
        done = await client.calls.retry_waiting_keys(names["subject"], names["group"], positions=asked.positions)
        if not done.retried and asked.positions:
            raise _no_key(retried=0, left=done.left)
        return json_answer(done)

    async def read(self, request: Request, names: Mapping[str, str]) -> Response:
        """Messages of a subject from a position on. No group notices it."""
        query = read_query(request.query_params.multi_items(), ReadQuery)
        client = await self._clients.of_request(request.scope)
        ask = (await at_shard(client.pulls, query.shard)).read

        page = await unless_gone(
            request, lambda: ask(names["subject"], query.position, query.max, query.wait_ms / 1000)
        )
        if not page.end:
            await client.routes.require_here(names["subject"])
        if page.status in OUT_OF_RANGE:
            detail = f"position {query.position} is {page.status}: this node keeps {page.first} to {page.end}"
            raise Problem(416, "position_out_of_range", detail, fields={"first": page.first, "end": page.end})
        return json_answer(
            ReadReply([_stored(each, query.body_as) for each in page.messages], page.first, page.end, page.next)
        )

    async def _asked(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> tuple[TokenClient, Any]:
        client = await self._clients.of_request(request.scope)
        body = await self._bodies.read(request.scope, request.receive, REQUEST_BYTES_MAX)
        return client, read_json(body or b"{}", decoder)


async def _require_here(client: TokenClient, names: Mapping[str, str]) -> None:
    """Raises `Problem` for a group that this server does not have, of a subject that goes to other nodes: a policy of it
    would have no effect."""
    if await client.routes.elsewhere(names["subject"]):
        await client.calls.group(names["subject"], names["group"])  # The gateway adds the nodes to `group_unknown`.


def _goal(asked: Seek) -> str | int | datetime:
    given = [each for each in (asked.to, asked.position, asked.at, asked.time_ms) if each is not None]
    if len(given) != 1:
        raise invalid("give exactly one of to, position, at and time_ms")
    if asked.time_ms is not None:
        return _instant(asked.time_ms)
    if asked.at is None:
        return given[0]
    if len(asked.at) > TEXT_MAX:
        raise invalid(f"at has at most {TEXT_MAX} characters")
    try:
        return _instant(parse_instant_ms(asked.at))
    except (ValueError, OverflowError) as error:
        raise invalid(f"at: {error}") from None


def _instant(time_ms: int) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        raise invalid(f"{time_ms} ms are beyond the calendar") from None


def _letter(letter: DeadLetter, form: BodyForm | None) -> Letter:
    fields = msgspec.structs.asdict(letter)
    body = fields.pop("body")
    if form is None or body is None:
        return Letter(**fields)
    shown, encoding = shown_body(body, form)
    return Letter(**fields, body=shown, body_encoding=encoding)


def _stored(message: ReadMessage, form: BodyForm) -> Stored:
    fields = msgspec.structs.asdict(message)
    shown, encoding = shown_body(fields.pop("body"), form)
    return Stored(**fields, body=shown, body_encoding=encoding)


def _no_letter(**counts: int) -> Problem:
    return Problem(404, "letter_unknown", "no dead letter is at these positions that can be read", fields=counts)


def _no_key(**counts: int) -> Problem:
    return Problem(404, "waiting_key_unknown", "no key waits like that for a message at these positions", fields=counts)
