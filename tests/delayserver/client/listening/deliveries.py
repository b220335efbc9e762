"""Deliveries for tests of what needs no server."""

from __future__ import annotations

from delayserver.client import Delivery


def delivery(
    number: int, *, subject: str = "orders", body: bytes = b"", message_id: str = "", order_key: str | None = None
) -> Delivery:
    """One with this delivery number. It counts as 64 bytes with its body and id."""
    return Delivery(
        message_id=message_id,
        subject=subject,
        sequence=number,
        server_id="0" * 12,
        due_ms=1,
        accepted_us=1000,
        dispatched_us=1000,
        attempt=1,
        body=body,
        properties={},
        delivery=number,
        order_key=order_key,
    )
