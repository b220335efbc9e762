"""Calls of consumers: pull, ack, nack, extend. The wire carries columns, and the client makes rows of them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from delayserver.client.calls.core import Call
from delayserver.client.values.messages import AckResult, Delivery, ExtendResult, NackResult
from delayserver.client.values.pulled_columns import PulledColumns, read_pulled
from delayserver.client.values.timing import timedelta_to_ms
from delayserver.protocol.columns import I64, pack_column
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import ACK, CANCEL_WAIT, EXTEND, NACK, PULL
from delayserver.protocol.schema.greetings import ServerInfo

Deliveries: TypeAlias = PulledColumns | NDArray[np.int64] | Iterable[Delivery | int]
"""Deliveries to ack or nack: pulled columns, an i64 array, or rows or their ``delivery`` numbers."""

NO_DELAY: Final = timedelta(0)

_SHARD_BIT: Final = 63
_WIRE_MASK: Final = (1 << _SHARD_BIT) - 1

GIVE_BACK_S: Final = 1.0
"""So long a consumer that ends waits for its node when it gives deliveries back. If the node does not answer, they come
again when their leases end."""


class Only(TypedDict, total=False):
    """The filter of a group, as keywords."""

    tags: str | None
    where: str | None


@dataclass(frozen=True, slots=True)
class PullFilter:
    """The filter of a group: a tag subscription and a property expression. Both None: the one that the group has."""

    tags: str | None = None
    where: str | None = None


def pull_call(
    subject: str,
    group: str,
    *,
    max_messages: int,
    wait_ms: int,
    ack_timeout_ms: int | None,
    max_bytes: int | None,
    ack: Deliveries | None,
    start: str | int | None = None,
    broadcast: bool = False,
    tags: str | None = None,
    where: str | None = None,
    outlive_ms: int | None = None,
) -> Call[PulledColumns]:
    """Pull, and acknowledge earlier deliveries of the same subject and group in the same frame.

    Repeatable in the sense of at-least-once: the deliveries of a lost reply come again after the ack timeout.
    """
    arguments: dict[str, Any] = {
        "subject": subject,
        "group": group,
        "max_messages": max_messages,
        "wait_ms": wait_ms,
        "columns": True,
    }
    if ack_timeout_ms is not None:
        arguments["ack_timeout_ms"] = ack_timeout_ms
    if outlive_ms is not None:
        arguments["outlive_ms"] = outlive_ms
    if max_bytes is not None:
        arguments["max_bytes"] = max_bytes
    if start is not None:
        arguments["start"] = start
    if broadcast:
        arguments["broadcast"] = True
    if tags is not None:
        arguments["tags"] = tags
    if where is not None:
        arguments["where"] = where
    if ack is not None:
        named = _deliveries(ack)
        if named["count"]:
            arguments["ack"] = named

    def read(result: dict[str, Any], _: ServerInfo) -> PulledColumns:
        return read_pulled(result, max_messages)

    def give_back(pulled: PulledColumns) -> Call[NackResult] | None:
        return nack_call(subject, group, pulled, NO_DELAY, unseen=True) if pulled.count else None

    # What a broadcast group has got does not come again.
    return Call(PULL, arguments, read, wait_s=wait_ms / 1000, give_back=None if broadcast else give_back)


def cancel_wait_call(request_id: int) -> Call[bool]:
    """End a waiting pull of the same connection. The result says whether there was one."""
    return Call(CANCEL_WAIT, {"id": request_id}, lambda result, _: bool(result["ended"]))


def ack_call(subject: str, group: str, deliveries: Deliveries) -> Call[AckResult]:
    """Settle deliveries. A repeated ack only counts them as unknown."""
    return Call(ACK, _delivery_arguments(subject, group, deliveries), _read_acked)


def ack_call_of(arguments: dict[str, Any]) -> Call[AckResult]:
    """The ack in the arguments of a pull, as a call of its own."""
    return Call(ACK, {"subject": arguments["subject"], "group": arguments["group"], **arguments["ack"]}, _read_acked)


def _read_acked(result: dict[str, Any], _: ServerInfo) -> AckResult:
    return AckResult(int(result["acked"]), int(result["unknown"]))


def nack_call(
    subject: str,
    group: str,
    deliveries: Deliveries,
    delay: timedelta | None,
    *,
    level: int | None = None,
    reason: str = "",
    unseen: bool = False,
    snooze: bool = False,
) -> Call[NackResult]:
    """Hand deliveries back, to come again after ``delay`` or a delay level; without either after the growing pauses of the
    group. A repeated nack only counts them as unknown.
    """
    arguments = _delivery_arguments(subject, group, deliveries)
    if delay is not None:
        arguments["delay_ms"] = timedelta_to_ms(delay)
    if level is not None:
        arguments["delay_level"] = level
    if reason:
        arguments["reason"] = reason
    if unseen:
        arguments["unseen"] = True
    if snooze:
        arguments["snooze"] = True

    def read(result: dict[str, Any], _: ServerInfo) -> NackResult:
        counts = [int(result.get(name, 0)) for name in ("nacked", "unknown", "expired", "dead_lettered")]
        return NackResult(*counts)

    return Call(NACK, arguments, read)


def extend_call(
    subject: str, group: str, deliveries: Deliveries, ack_timeout_ms: int | None, outlive_ms: int | None = None
) -> Call[ExtendResult]:
    """Let leases last ``ack_timeout_ms`` from now on; None for the default of the server. With ``outlive_ms`` they belong to
    the connection of this call.
    """
    arguments = _delivery_arguments(subject, group, deliveries)
    if ack_timeout_ms is not None:
        arguments["ack_timeout_ms"] = ack_timeout_ms
    if outlive_ms is not None:
        arguments["outlive_ms"] = outlive_ms
    return Call(EXTEND, arguments, lambda result, _: ExtendResult(int(result["extended"]), int(result["unknown"])))


def of_shard(pulled: PulledColumns, shard: int) -> PulledColumns:
    """What a shard has handed out. Its number is in each delivery number above the 63 bits of the wire, so that an ack finds
    the way back. The numbers of shard 0 stay as they are.
    """
    if not shard or not pulled.count:
        return pulled
    return replace(pulled, delivery=pulled.delivery.astype(object) + (shard << _SHARD_BIT))


def deliveries_by_shard(arguments: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The arguments of an ack, nack or extension, for each shard that gave some of the deliveries."""
    deliveries = arguments["deliveries"]
    if not isinstance(deliveries, _OfShards):
        return {0: arguments}
    return {
        shard: arguments | {"count": len(numbers), "deliveries": pack_column(np.array(numbers, I64), I64)}
        for shard, numbers in deliveries.numbers.items()
    }


@dataclass(frozen=True, slots=True)
class _OfShards:
    """Delivery numbers by shard. No server takes them as they are."""

    numbers: dict[int, list[int]]


def _deliveries(deliveries: Deliveries) -> dict[str, Any]:
    """The delivery numbers as arguments. Raises `InvalidArgument`."""
    if isinstance(deliveries, PulledColumns):
        deliveries = deliveries.delivery
    if isinstance(deliveries, np.ndarray) and deliveries.dtype != object:
        if deliveries.dtype != I64 or deliveries.ndim != 1:
            raise InvalidArgument("deliveries as an array must be i64 of one dimension")
        return {"count": len(deliveries), "deliveries": pack_column(deliveries, I64)}
    numbers = [entry.delivery if isinstance(entry, Delivery) else entry for entry in deliveries]
    if not all(type(number) is int for number in numbers):
        raise InvalidArgument("deliveries must be Delivery objects or their numbers")
    try:
        return {"count": len(numbers), "deliveries": pack_column(np.array(numbers, I64), I64)}
    except OverflowError:
        by_shard: dict[int, list[int]] = {}
        for number in numbers:
            by_shard.setdefault(number >> _SHARD_BIT, []).append(number & _WIRE_MASK)
        return {"count": len(numbers), "deliveries": _OfShards(by_shard)}


def _delivery_arguments(subject: str, group: str, deliveries: Deliveries) -> dict[str, Any]:
    return {"subject": subject, "group": group, **_deliveries(deliveries)}
