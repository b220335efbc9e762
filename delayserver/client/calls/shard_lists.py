"""Lists of pending messages of several shards, merged by due time. One cursor holds those of all shards. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from delayserver.client.calls.core import Call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import PENDING
from delayserver.protocol.schema.pending import MESSAGES_AT_ONCE, PendingMessage, PendingMessagesPage

_END: Final = "end"
_PART: Final = re.compile(r"(\d{1,6})-([0-9a-f.]{1,256}|end)?", re.ASCII)


def lists_messages(call: Call[Any]) -> bool:
    """Whether the call is `pending` by message."""
    return call.operation == PENDING and call.arguments["by"] == "message"


def parts_of_list(arguments: Mapping[str, Any], shards: Sequence[int]) -> dict[int, str | None]:
    """The shards that have more messages behind the `after` of a request, each with its own cursor; None: from its begin.
    Raises InvalidArgument."""
    after = arguments.get("after")
    if after is None:
        return dict.fromkeys(shards)
    found = [_PART.fullmatch(part) for part in after.split("~")] if isinstance(after, str) else [None]
    own: dict[int, str | None] = {}
    for match in found:
        if match is None:
            raise InvalidArgument("after is not the `next` of a page of all shards")
        own[int(match[1])] = match[2]
    # A shard that was added meanwhile has new messages alone.
    return {shard: own[shard] for shard in shards if own.get(shard, _END) != _END}


def merged_list(
    pages: Mapping[int, PendingMessagesPage], arguments: Mapping[str, Any], shards: Sequence[int]
) -> PendingMessagesPage:
    """The first messages of pages of shards, in the order of the list. `pages` is of the shards in `parts_of_list`."""
    latest = arguments.get("latest_first", False)
    ends: dict[int, str | None] = dict.fromkeys(shards, _END)
    merging = _Merging(pages, ends | parts_of_list(arguments, shards))
    messages: list[PendingMessage] = []
    while len(messages) < arguments.get("max", MESSAGES_AT_ONCE) and (waiting := merging.waiting()):
        messages.append(merging.take(min(waiting, key=lambda shard: (merging.due_ms(shard, latest), shard))))
    counted = [page.matching for page in pages.values() if page.matching is not None]
    return PendingMessagesPage(
        messages,
        merging.next(),
        sum(counted) if arguments.get("count") else None,
        any(page.at_least for page in pages.values()),
        sum(page.unreadable for page in pages.values()),
    )


class _Merging:
    """Takes messages from pages. `ends` has the cursor of each shard behind what was taken of it."""

    def __init__(self, pages: Mapping[int, PendingMessagesPage], ends: dict[int, str | None]) -> None:
        self._pages = pages
        self._ends = ends
        self._rest = {shard: list(reversed(page.messages)) for shard, page in pages.items()}
        # A shard whose page is used up may have messages that come before what the others have.
        self._is_over = False
        for shard in pages:
            self._look(shard)

    def waiting(self) -> list[int]:
        """The shards that have a message left; none where the order of the rest is not known."""
        return [] if self._is_over else [shard for shard, rest in self._rest.items() if rest]

    def due_ms(self, shard: int, latest: bool) -> int:
        """The rank of the next message of a shard."""
        due_ms = self._rest[shard][-1].due_ms
        return -due_ms if latest else due_ms

    def take(self, shard: int) -> PendingMessage:
        """The next message of a shard."""
        message = self._rest[shard].pop()
        self._ends[shard] = message.place
        self._look(shard)
        return replace(message, place="")

    def _look(self, shard: int) -> None:
        if not self._rest[shard]:
            following = self._pages[shard].next
            self._ends[shard] = _END if following is None else following
            self._is_over |= following is not None

    def next(self) -> str | None:
        """The cursor behind all that was taken; None if nothing is left."""
        if all(own == _END for own in self._ends.values()):
            return None
        return "~".join([f"{shard}-{own or ''}" for shard, own in self._ends.items()])
