"""Requests that get no reply: refusals are counted, and stand in the next reply of their connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from delayserver.front.connection import Connection, is_one_way
from delayserver.protocol.arguments import boolean
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.frames import RequestFrame


class Refusal(Protocol):
    """One rejected message."""

    @property
    def error(self) -> DelayServerError: ...


class Answered(Protocol):
    """The answer of an operation that accepts some messages and rejects others."""

    @property
    def rejections(self) -> Sequence[Refusal]: ...


T = TypeVar("T", bound=Answered)


def unless_one_way(
    connection: Connection, request: RequestFrame, messages: int, answer: Callable[[T | DelayServerError], None]
) -> Callable[[T | DelayServerError], None]:
    """`answer` for a request that gets a reply. For one without, a callback that counts what was refused of its
    `messages`. Raises InvalidArgument."""
    if "one_way" not in request.arguments:
        return answer
    boolean(request.arguments, "one_way")
    if not is_one_way(request):
        return answer

    number = connection.begin_one_way()

    def count(answered: T | DelayServerError) -> None:
        if isinstance(answered, DelayServerError):
            connection.refuse_one_way(messages, answered)
        elif answered.rejections:
            connection.refuse_one_way(len(answered.rejections), answered.rejections[0].error)
        connection.end_one_way(number)

    return count
