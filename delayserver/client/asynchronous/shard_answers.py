"""Questions to all shards of a cluster, whose answers become one reply.

A shard that does not answer is an error that names it: a reply never tells a part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import anyio
from msgspec.structs import replace as changed

from delayserver.client.calls.core import Call
from delayserver.client.calls.dead_letter_calls import list_call as letters_call
from delayserver.client.calls.shard_lists import lists_messages, merged_list, parts_of_list
from delayserver.client.calls.shard_places import SHARD_CURSORS, positions_by_shard, with_positions
from delayserver.client.calls.shard_sums import (
    NAMED_ROWS,
    added_acts,
    added_buckets,
    added_groups,
    bucket_max,
    counts_times,
)
from delayserver.client.calls.waiting_key_calls import list_call as keys_call
from delayserver.protocol.errors import DelayServerError, GroupUnknown, InvalidArgument, NotPrimary
from delayserver.protocol.operation_names import (
    DEAD_LETTERS,
    FIND,
    GROUP,
    GROUPS,
    PENDING,
    POLICY,
    READ,
    REMOVE_GROUP,
    SEEK,
    SUBJECTS,
    TRANSACTIONS,
    WAITING_KEYS,
)
from delayserver.protocol.schema.words import POSITION_MAX

T = TypeVar("T")

EVERYWHERE: Final = frozenset({POLICY, SEEK, REMOVE_GROUP})
SUMMED: Final = frozenset({PENDING, SUBJECTS, GROUPS, GROUP})
MERGED: Final = SUMMED | {FIND, TRANSACTIONS, DEAD_LETTERS, WAITING_KEYS} | EVERYWHERE | {READ}
"""The operations about what all shards have."""

_ROWS: Final = {DEAD_LETTERS: "letters", WAITING_KEYS: "keys"}
_DONE: Final = {"resend": "resent", "drop": "dropped", "skip": "skipped", "retry": "retried"}


class ShardAnswers:
    """Asks all shards. ``at`` asks one of them, and ``shards`` are those that have messages, in their order."""

    def __init__(self, at: Callable[[int, Call[Any]], Awaitable[Any]], shards: Callable[[], list[int]]) -> None:
        self._ask = at
        self._shards = shards

    async def run(self, call: Call[Any]) -> Any:
        """The result of a call of `MERGED`."""
        operation = call.operation
        if not self._shards():
            raise NotPrimary("the cluster has no shard", retry_after_ms=1_000)
        if operation == READ or (operation == SEEK and "position" in call.arguments):
            raise InvalidArgument("a position is one of a single shard: ask a client of one shard, or give a time")
        if lists_messages(call):
            return await self._messages(call)
        if operation == PENDING and counts_times(call):
            return added_buckets(await self._all(call), bucket_max(call.arguments))
        if operation in NAMED_ROWS:
            return await self._named_rows(call)
        if operation == GROUP:
            return await self._group(call)
        if operation in EVERYWHERE:
            return next(iter((await self._knowing(dict.fromkeys(self._shards(), call))).values()))
        if operation in _ROWS and call.arguments["action"] != "list":
            return await self._act(call)
        return await self._page(call)

    async def _messages(self, call: Call[Any]) -> Any:
        """A page of pending messages of all shards."""
        shards = self._shards()
        arguments = {name: value for name, value in call.arguments.items() if name != "after"} | {"places": True}
        parts = parts_of_list(call.arguments, shards)

        async def of_shard(shard: int) -> Any:
            own = parts[shard]
            return await self._at(
                shard, replace(call, arguments=arguments if own is None else arguments | {"after": own})
            )

        return merged_list(await gathered(parts, of_shard), call.arguments, shards)

    async def _named_rows(self, call: Call[Any]) -> Any:
        """A page of all rows. Each shard gives all of its rows, since its order is not that of the names."""
        rows = NAMED_ROWS[call.operation]
        asked = {name: value for name, value in call.arguments.items() if name not in ("after", "max")}

        async def of_shard(shard: int) -> list[Any]:
            found: list[Any] = []
            after: Any = None
            while True:
                own = replace(call, arguments=asked if after is None else asked | {"after": after})
                page = await self._at(shard, own)
                found += rows.rows(page)
                after = rows.next(page)
                if after is None:
                    return found

        all_rows = await gathered(self._shards(), of_shard)
        return rows.merged(list(all_rows.values()), call.arguments)

    async def _group(self, call: Call[Any]) -> Any:
        first, *others = (await self._knowing(dict.fromkeys(self._shards(), call))).values()
        for other in others:
            first = added_groups(first, other)
        return first

    async def _page(self, call: Call[Any]) -> Any:
        """A page of rows that are at one shard each."""
        cursor, shards = SHARD_CURSORS[call.operation], self._shards()
        shard, own = cursor.place(call.arguments.get("after"), shards)
        arguments = {name: value for name, value in call.arguments.items() if name != "after"}
        here = replace(call, arguments=arguments if own is None else arguments | {"after": own})
        rows = _ROWS.get(call.operation)
        if rows is None:
            return cursor.led_on(await self._at(shard, here), shard, shards)
        # The others say what is left there. One that does not know the group has nothing.
        answers = await self._knowing(dict.fromkeys(shards, _left_call(call)) | {shard: here})
        page = answers.get(shard) or changed(next(iter(answers.values())), **{rows: []}, next=None, unreadable=0)
        page = cursor.led_on(with_positions(page, shard, rows), shard, shards)
        return changed(page, left=sum(each.left for each in answers.values()))

    async def _act(self, call: Call[Any]) -> Any:
        """What is done to letters or keys: to those at `positions`, which name their shards, or to the first ones. Nothing
        is done if a shard does not say what it has.
        """
        done = _DONE[call.arguments["action"]]
        pages = await self._knowing(dict.fromkeys(self._shards(), _left_call(call)))
        left = {shard: page.left for shard, page in pages.items()}
        acted: list[Any] = []
        for shard, own in self._parts(call, left).items():
            if acted and "rate" in own.arguments:
                own = replace(own, arguments=own.arguments | {"first_ms": acted[-1].next_ms})  # noqa: PLW2901 - goes on
            acted.append(await self._at(shard, own))
            left[shard] = acted[-1].left
            if "positions" not in own.arguments and done != "retried" and getattr(acted[-1], done):
                break
        return added_acts(acted, done, sum(left.values()))

    def _parts(self, call: Call[Any], left: dict[int, int]) -> dict[int, Call[Any]]:
        """The calls of the shards that may have to do something; of one at least. Raises InvalidArgument."""
        positions = call.arguments.get("positions")
        if positions is None:
            return dict.fromkeys([shard for shard in left if left[shard]] or [min(left)], call)
        of_shard = positions_by_shard(positions)
        unknown = of_shard.keys() - set(self._shards())
        if unknown:
            raise InvalidArgument(f"the cluster has no shard {min(unknown)}: give positions as they were listed")
        known = {shard: own for shard, own in of_shard.items() if shard in left} or of_shard
        return {shard: replace(call, arguments=call.arguments | {"positions": own}) for shard, own in known.items()}

    async def _knowing(self, calls: dict[int, Call[T]]) -> dict[int, T]:
        """The answers of the shards that know a group. Raises GroupUnknown if none does."""
        unknown: list[GroupUnknown] = []

        async def at(shard: int) -> T | GroupUnknown:
            try:
                return await self._at(shard, calls[shard])
            except GroupUnknown as error:
                unknown.append(error)
                return error

        answers = await gathered(calls, at)
        known = {shard: each for shard, each in answers.items() if not isinstance(each, GroupUnknown)}
        if not known:
            raise unknown[0]
        return known

    async def _all(self, call: Call[T]) -> list[T]:
        async def at(shard: int) -> T:
            return await self._at(shard, call)

        return list((await gathered(self._shards(), at)).values())

    async def _at(self, shard: int, call: Call[T]) -> T:
        try:
            result: T = await self._ask(shard, call)
        except DelayServerError as error:
            raise _of_shard(shard, error) from error
        return result


def _left_call(call: Call[Any]) -> Call[Any]:
    """A list of no rows, which says how many there are."""
    subject, group = call.arguments["subject"], call.arguments["group"]
    if call.operation == DEAD_LETTERS:
        return letters_call(subject, group, after=POSITION_MAX, letters_max=1, bodies=False)
    return keys_call(subject, group, after=POSITION_MAX, keys_max=1)


def _of_shard(shard: int, error: DelayServerError) -> DelayServerError:
    """An error that names its shard."""
    message = f"shard {shard}: {error.message}"
    return type(error)(message, retry_after_ms=error.retry_after_ms, name=error.name, details=error.details)


async def gathered(shards: Iterable[int], ask: Callable[[int], Awaitable[T]]) -> dict[int, T]:
    """What all shards answer, asked at the same time, in their order. Raises the error of the first one that has one."""
    results: dict[int, T] = {}
    errors: dict[int, DelayServerError] = {}

    async def one(shard: int) -> None:
        try:
            results[shard] = await ask(shard)
        except DelayServerError as error:
            errors[shard] = error

    async with anyio.create_task_group() as tasks:
        for shard in shards:
            tasks.start_soon(one, shard)
    if errors:
        raise errors[min(errors)]
    return {shard: results[shard] for shard in sorted(results)}
