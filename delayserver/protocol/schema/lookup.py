"""The rows of a reply to `lookup`: what became of messages. Rows of the server are made by hand, for thousands at a time."""

from __future__ import annotations

from typing import Annotated, Any, Final

from delayserver.protocol.schema.structs import Reply, says
from delayserver.protocol.schema.words import DUE_MS

_RECEIPT: Final = "5f3a9c0d2b71-01a3185c5000-00000000002e"
_LATER_US: Final = DUE_MS * 1000 + 4_000
_DISPATCHED: Final = "When it was handed to the node that has it, in microseconds since 1970."
_EXPIRES: Final = "From this time on no consumer gets the message, in milliseconds since 1970; 0: never."
_ORDER_KEY: Final = "Messages of one key come to a group one after the other."
_ELSEWHERE: Final = "Up to 255: hand-overs without an answer, where another node can have the message too."
_ORIGINAL: Final = "Of a copy: the receipt of the message that counts."
_RESCHEDULED: Final = "Of a message that was moved: the receipt of the new one. Its own outcome is `cancelled`."
_TIMES: Final = "When the message passed each stage, in microseconds since 1970."
_CONSUMED: Final = "The hand-outs to consumers: when a group pulled and acked the message, in microseconds since 1970."


class LookupRow(Reply, frozen=True, kw_only=True):
    """The fate of a message. A field that the server does not know (any more) is missing."""

    outcome: Annotated[str, says("What became of the message.", "pending")]
    receipt: (
        Annotated[str, says("Names the message, for look-up, cancel and move.", _RECEIPT, left_out=True)] | None
    ) = None
    subject: Annotated[str, says("The name by which consumers pull.", "orders", left_out=True)] | None = None
    due_ms: Annotated[int, says("When it is due, in milliseconds since 1970.", DUE_MS, left_out=True)] | None = None
    dispatched_us: Annotated[int, says(_DISPATCHED, _LATER_US, left_out=True)] | None = None
    attempts: (
        Annotated[int, says("Hand-overs to a node. `attempt` counts those to a consumer.", 1, left_out=True)] | None
    ) = None
    broker_group: Annotated[str, says("The group of nodes that has it.", "default", left_out=True)] | None = None
    original_receipt: Annotated[str, says(_ORIGINAL, _RECEIPT, left_out=True)] | None = None
    rescheduled_to: Annotated[str, says(_RESCHEDULED, _RECEIPT, left_out=True)] | None = None
    unanswered_elsewhere: Annotated[int, says(_ELSEWHERE, 0, left_out=True)] | None = None
    message_id: Annotated[str, says("The id of the message.", "order-7", left_out=True)] | None = None
    body: Annotated[bytes, says("The body of the message.", left_out=True)] | None = None
    body_left_out: Annotated[
        bool, says("True: the answer has no room for the body. Look it up again.", False, left_out=True)
    ] = False
    properties: Annotated[dict[str, str], says("A map from text to text.", {"trace": "7"}, left_out=True)] | None = None
    expires_ms: Annotated[int, says(_EXPIRES, DUE_MS + 60_000, left_out=True)] | None = None
    tag: Annotated[str, says("The kind of the message, by which consumers filter.", "paid", left_out=True)] | None = (
        None
    )
    order_key: Annotated[str, says(_ORDER_KEY, "customer-42", left_out=True)] | None = None
    times: Annotated[dict[str, int], says(_TIMES, {"accepted_us": _LATER_US}, left_out=True)] | None = None
    consumed: Annotated[list[dict[str, Any]], says(_CONSUMED, left_out=True)] | None = None
