"""Calls of consumers: pull, ack, nack. The wire carries columns, and the client makes rows of them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from delayserver.client.core import Call
from delayserver.client.messages import AckResult, Delivery, NackResult, ServerInfo
from delayserver.client.pulled import PulledColumns, read_pulled
from delayserver.client.timing import timedelta_to_ms
from delayserver.protocol.columns import I64, pack_column
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operations import ACK, CANCEL_WAIT, NACK, PULL

Deliveries: TypeAlias = PulledColumns | NDArray[np.int64] | Iterable[Delivery | int]
"""Deliveries to ack or nack: pulled columns, an i64 array, or rows or their ``delivery`` numbers."""

NO_DELAY: Final = timedelta(0)


def pull_call(
    subject: str,
    group: str,
    *,
    max_messages: int,
    wait_ms: int,
    ack_timeout_ms: int | None,
    max_bytes: int | None,
    ack: Deliveries | None,
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
    if max_bytes is not None:
        arguments["max_bytes"] = max_bytes
    if ack is not None:
        numbers = delivery_numbers(ack)
        if len(numbers):
            arguments["ack"] = {"count": len(numbers), "deliveries": pack_column(numbers, I64)}

    def read(result: dict[str, Any], _: ServerInfo) -> PulledColumns:
        return read_pulled(result, max_messages)

    return Call(PULL, arguments, read, wait_s=wait_ms / 1000)


def cancel_wait_call(request_id: int) -> Call[bool]:
    """End a waiting pull of the same connection. The result says whether there was one."""
    return Call(CANCEL_WAIT, {"id": request_id}, lambda result, _: bool(result["ended"]))


def ack_call(subject: str, group: str, deliveries: Deliveries) -> Call[AckResult]:
    """Settle deliveries. A repeated ack only counts them as unknown."""
    return Call(
        ACK,
        _delivery_arguments(subject, group, deliveries),
        lambda result, _: AckResult(int(result["acked"]), int(result["unknown"])),
    )


def nack_call(subject: str, group: str, deliveries: Deliveries, delay: timedelta | None) -> Call[NackResult]:
    """Hand deliveries back, to come again after ``delay``; None: after the server's growing pauses. A repeated nack only
    counts them as unknown.
    """
    delay_ms = {} if delay is None else {"delay_ms": timedelta_to_ms(delay)}
    return Call(
        NACK,
        {**_delivery_arguments(subject, group, deliveries), **delay_ms},
        lambda result, _: NackResult(int(result["nacked"]), int(result["unknown"]), int(result.get("expired", 0))),
    )


def delivery_numbers(deliveries: Deliveries) -> NDArray[np.int64]:
    """The delivery numbers, i64[n]. Raises `InvalidArgument`."""
    if isinstance(deliveries, PulledColumns):
        return deliveries.delivery
    if isinstance(deliveries, np.ndarray):
        if deliveries.dtype != I64 or deliveries.ndim != 1:
            raise InvalidArgument("deliveries as an array must be i64 of one dimension")
        return deliveries
    numbers = [entry.delivery if isinstance(entry, Delivery) else entry for entry in deliveries]
    if not all(type(number) is int for number in numbers):
        raise InvalidArgument("deliveries must be Delivery objects or their numbers")
    return np.array(numbers, I64)


def _delivery_arguments(subject: str, group: str, deliveries: Deliveries) -> dict[str, Any]:
    numbers = delivery_numbers(deliveries)
    return {"subject": subject, "group": group, "count": len(numbers), "deliveries": pack_column(numbers, I64)}
