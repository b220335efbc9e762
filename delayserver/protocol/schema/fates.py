"""The rows of replies to `cancel`, `reschedule` and `lookup`. The server makes its rows by hand, for thousands at a time."""

from __future__ import annotations

from typing import Annotated, Any, Final

from delayserver.protocol.schema.structs import Request, says
from delayserver.protocol.schema.words import DUE_MS, RECEIPT, WithOutcome

_RECEIPT: Final = "Names the message, for look-up, cancel and move."
_LATER_US: Final = DUE_MS * 1000 + 4_000
_DISPATCHED: Final = "When it was handed to the node that has it, in microseconds since 1970."
_EXPIRES: Final = "From this time on no consumer gets the message, in milliseconds since 1970; 0: never."
_ORDER_KEY: Final = "Messages of one key come to a group one after the other."
_ELSEWHERE: Final = "Up to 255: hand-overs without an answer, where another node can have the message too."
_ORIGINAL: Final = "Of a copy: the receipt of the message that counts."
_RESCHEDULED: Final = "Of a message that was moved: the receipt of the new one. Its own outcome is `cancelled`."
_TIMES: Final = (
    "The stages of the message that are known, in microseconds since 1970. `accepted_us`: the server accepted it. "
    "`loaded_us`: it came into memory. `due_us`: the wheel released it. `queued_us`: it was taken for its attempt. "
    "`handed_off_us`: it was handed to its node. `delivered_us`: the node had it. With another outcome `settled_us` is "
    "there instead."
)
_CONSUMED: Final = (
    "The hand-outs to consumers, the first one first: `group`, `pulled_us`, `acked_us`. Without an ack the last is 0. The "
    "times are in microseconds since 1970."
)


class CancelResult(WithOutcome, frozen=True, kw_only=True):
    """``outcome`` `cancelled`: the message is never delivered. Otherwise `already_cancelled`, `delivered`, `expired`,
    `dead_lettered`, `rolled_back`, `retired`, `too_late` or `unknown`."""

    receipt: Annotated[str, says(_RECEIPT, RECEIPT)] | None = None


class ItemToMove(Request, frozen=True):
    """A message by its receipt or by its name, and another due time for it. Content that is not given stays."""

    receipt: Annotated[str, says("Names the message. Or it is named by the next three.", RECEIPT)] | None = None
    subject: Annotated[str, says("The subject of the message.", "orders")] | None = None
    message_id: Annotated[str, says("Its id.", "order-7")] | None = None
    message_due_ms: Annotated[int, says("Its present due time, where the sender knows it.", DUE_MS)] | None = None
    due_ms: Annotated[int, says("The new due time. Give this or `delay_ms`.", DUE_MS + 60_000)] | None = None
    delay_ms: Annotated[int, says("Milliseconds from now.", 60_000)] | None = None
    body: Annotated[Any, says("The new body.", written="bytes or text")] = None
    properties: Annotated[dict[str, str], says("The new properties.", {"trace": "7"})] | None = None
    expires_ms: Annotated[int, says("The new time from which on no consumer gets it.", DUE_MS + 120_000)] | None = None


class RescheduleResult(WithOutcome, frozen=True, kw_only=True):
    """``outcome`` `cancelled`: the message was moved, and the last four fields are those of the new one. Any other outcome:
    nothing was changed."""

    receipt: Annotated[str, says(_RECEIPT, RECEIPT, left_out=True)] | None = None
    new_receipt: Annotated[str, says("The receipt of the new message.", RECEIPT, left_out=True)] | None = None
    message_id: Annotated[str, says("The id of the new message.", "order-7", left_out=True)] | None = None
    due_ms: Annotated[int, says("Its due time, in milliseconds since 1970.", DUE_MS, left_out=True)] | None = None
    sequence: Annotated[int, says("The number that the server gave it.", 46, left_out=True)] | None = None


class LookupResult(WithOutcome, frozen=True, kw_only=True):
    """The fate of a message. A field that the server does not know (any more) is missing.

    A duplicate has the ``original_receipt``. A message that a reschedule replaced has ``rescheduled_to``.
    ``unanswered_elsewhere`` counts deliveries to another node that had no answer: that node may have the message too.
    ``body`` and the fields beside it are known if they were asked for and the server still has them. ``times`` has
    microseconds by stage: ``accepted_us``, ``loaded_us``, ``due_us``, ``queued_us``, ``handed_off_us`` and
    ``delivered_us`` (``settled_us`` with another outcome). ``consumed`` has a map for each hand-out to a consumer that the
    node remembers: ``group``, ``pulled_us`` and ``acked_us``, which is 0 if it was not acked.
    """

    receipt: Annotated[str, says(_RECEIPT, RECEIPT, left_out=True)] | None = None
    subject: Annotated[str, says("The name by which consumers pull.", "orders", left_out=True)] | None = None
    due_ms: Annotated[int, says("When it is due, in milliseconds since 1970.", DUE_MS, left_out=True)] | None = None
    dispatched_us: Annotated[int, says(_DISPATCHED, _LATER_US, left_out=True)] | None = None
    attempts: (
        Annotated[int, says("Hand-overs to a node. `attempt` counts those to a consumer.", 1, left_out=True)] | None
    ) = None
    broker_group: Annotated[str, says("The group of nodes that has it.", "default", left_out=True)] | None = None
    original_receipt: Annotated[str, says(_ORIGINAL, RECEIPT, left_out=True)] | None = None
    rescheduled_to: Annotated[str, says(_RESCHEDULED, RECEIPT, left_out=True)] | None = None
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
