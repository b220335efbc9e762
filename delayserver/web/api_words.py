"""What the fields of documents and parameters mean, in words and with an example, for the API document.

A field has one meaning wherever it stands. Where it has another, the entry begins with the name of the type. A test fails
for a field without words, and for words without a field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Words(NamedTuple):
    """The meaning of a field, and an example of its value; None for none."""

    says: str
    example: Any = None


_RECEIPT: Final = "5f3a9c0d2b71-01a3185c5000-00000000002e"
_BODY: Final = "A text, which is stored as it is, or any other JSON value, which is stored as JSON."
_DUE_MS: Final = 1_800_000_000_000
_LATER_US: Final = 1_800_000_000_004_000

WORDS: Final[Mapping[str, Words]] = {
    "accepted_us": Words("When the server accepted the message, in microseconds since 1970.", _LATER_US),
    "ack": Words("True: messages count as done when they are handed out. False: each needs an ack.", True),
    "ack_timeout_ms": Words("A message that is not acked in so many milliseconds comes again.", 60_000),
    "acked": Words("Deliveries that ended by this request.", 2),
    "after": Words("Only letters behind this position.", 41),
    "GroupsQuery.after": Words("Only groups behind the `next` of another page.", "7.12"),
    "TransactionsQuery.after": Words("Only transactions behind the `next` of another page.", "1800000000000.2.46"),
    "shard": Words("Only what this shard has, at a gateway of several shards.", 1),
    "at": Words("A time of ISO 8601 with a zone.", "2027-01-15T08:00:00Z"),
    "attempt": Words("How often the message was handed out to this group, this time included.", 1),
    "body": Words("The body of the message. `body_encoding` says how it is written.", "cancel order 7"),
    "SendRequest.body": Words(_BODY, "hello"),
    "PrepareRequest.body": Words(_BODY, "hello"),
    "PublishRequest.body": Words(_BODY, "hello"),
    "MoveRequest.body": Words(
        "The new body: a text, or any other JSON value. Without it the body stays as it is.", "hi"
    ),
    "body_as": Words("How bodies are written. A body that does not allow it is written as text or base64.", "json"),
    "body_base64": Words("The body as base64, for bytes that are no text. Give it instead of `body`.", "/wA="),
    "body_encoding": Words("How the body is written.", "text"),
    "buckets": Words("Pending messages by due time. Times without any are left out."),
    "by": Words("What the counts are split by.", "minute"),
    "check_after_ms": Words("After so many milliseconds without an end the server asks the producer's group.", 60_000),
    "checks_max": Words("How often the server asks the producer's group.", 5),
    "dead_lettered": Words("Of the deliveries given back, those that had their last attempt.", 0),
    "delay": Words("A duration from now.", "30m"),
    "delay_level": Words("A delay level of the server, by its number or its name.", "30s"),
    "delay_ms": Words("Milliseconds from now.", 1_800_000),
    "NackRequest.delay_ms": Words(
        "The messages come again after so many milliseconds. The policy decides without it.", 5_000
    ),
    "deliveries": Words("Names of deliveries, as a pull gives them.", ["4611686018427387905"]),
    "delivery": Words("The name of this delivery, for ack, nack and extend.", "4611686018427387905"),
    "detail": Words("What went wrong, and what to do, in a sentence.", "the due time is beyond the longest delay"),
    "dispatched_ms": Words("When the server handed the message to its node, in milliseconds since 1970.", _DUE_MS + 4),
    "dispatched_us": Words("When the server handed the message to its node, in microseconds since 1970.", _LATER_US),
    "dropped": Words("Dead letters that were removed.", 3),
    "due_ms": Words("When the message is due, in milliseconds since 1970.", _DUE_MS),
    "duplicate": Words("Whether the server had a message with this id, subject and due time before.", False),
    "end": Words("The position of the next message of the subject.", 1_000),
    "error": Words("The name of the error, for programs.", "too_far"),
    "NackReply.expired": Words("Of the deliveries given back, those whose message has expired.", 0),
    "expires_ms": Words(
        "From this time on no consumer gets the message, in milliseconds since 1970; 0: never.", _DUE_MS + 60_000
    ),
    "extended": Words("Deliveries whose lease goes on.", 1),
    "first": Words("The first position that this node keeps of the subject.", 0),
    "from": Words("Times that begin from here on, in milliseconds since 1970.", _DUE_MS),
    "group": Words("The consumer group.", "billing"),
    "PrepareRequest.group": Words("The producer's group, which the server asks about the transaction.", "shop"),
    "groups": Words("The consumer groups."),
    "GroupStatus.nodes": Words("The nodes of the group."),
    "Status.groups": Words("What each broker group does, by its name."),
    "Status.broker_groups": Words("The same as `groups`."),
    "keys": Words("Order keys that wait, and the messages for which they do."),
    "left": Words("Dead letters of the group that are left, or keys that still wait.", 7),
    "letters": Words("The dead letters."),
    "max": Words("At most so many.", 100),
    "max_messages": Words("At most so many messages at a time.", 10),
    "message_id": Words("The id of the message, of its sender or made by the server.", "order-7"),
    "messages": Words("The messages."),
    "nacked": Words("Deliveries that were given back.", 1),
    "needs_token": Words("True: the server asks for a token, and the request has none that is valid.", False),
    "Groups.next": Words("From where to ask for more. The last page has none.", "7.12"),
    "next": Words("The position from which to ask for more.", 100),
    "nodes": Words("The addresses of the nodes that have the messages.", ["10.0.0.7:20801"]),
    "order_key": Words("Messages of one key come to a group one after the other.", "customer-42"),
    "original_receipt": Words("The receipt of the message of which this is a copy.", _RECEIPT),
    "outcome": Words("What became of the message.", "pending"),
    "PrepareRequest.policy": Words("What the server does where the producer's group does not answer.", "rollback"),
    "position": Words("The place of the message in the queue of its subject at this node.", 41),
    "Seek.position": Words("The position of the next message that the group gets.", 41),
    "ReadQuery.position": Words("The first position to read. Without it from 0 on.", 41),
    "positions": Words("Only the letters at these positions.", [41, 44]),
    "properties": Words("A map from text to text, which consumers get beside the body.", {"trace": "7"}),
    "rate": Words("Send so many letters a second. Without it they are all due at once.", 10.0),
    "SkipRequest.reason": Words("A text that the dead letters keep.", "no such customer"),
    "receipt": Words("The name of the message, for look-up, cancel and move.", _RECEIPT),
    "resent": Words("Dead letters that were sent to their group again.", 3),
    "results": Words("With `errors` only refused rows are answered, and a last line with the counts.", "errors"),
    "retry_after_ms": Words("Try again after so many milliseconds.", 1_000),
    "roles": Words("What the token may do.", ["send", "consume"]),
    "row": Words("The number of the row in the request, from 0 on.", 0),
    "sequence": Words("The number that the server gave the message when it accepted it.", 46),
    "server_id": Words("The server that accepted the message.", "5f3a9c0d2b71"),
    "start": Words("Where a new group begins: `earliest`, `latest`, or a time in milliseconds since 1970.", "latest"),
    "status": Words("The status code of the problem.", 422),
    "Health.status": Words("`ok`: the server answers. `ready`: it serves all operations.", "ok"),
    "subject": Words("The name by which consumers pull.", "orders"),
    "subjects": Words("Pending messages of each subject."),
    "SessionState.subjects": Words("Patterns of the subjects that the token opens.", ["orders.*"]),
    "tag": Words("The kind of the message, by which consumers filter.", "paid"),
    "tags": Words("A filter: only messages with one of these tags; `*` for all.", "paid || shipped"),
    "time_ms": Words("The first message handed over at or after this time, in milliseconds since 1970.", _DUE_MS),
    "times": Words("True: also when the message passed each stage.", True),
    "title": Words("The kind of problem, the same for each status code.", "Not found"),
    "to": Words("Times that begin before this one, in milliseconds since 1970.", _DUE_MS + 3_600_000),
    "token": Words("The token that the person signs in with; it begins with `dst_`."),
    "token_id": Words("The id of the token; empty without one.", "0a1b2c3d4e5f"),
    "type": Words("The error as a URN.", "urn:delayserver:error:too_far"),
    "unknown": Words("Deliveries that are not in flight: they ended before, or belong to another group.", 0),
    "unreadable": Words("Dead letters that the node cannot read.", 0),
    "snooze": Words("Nothing has failed: the messages come again later, and it counts as no attempt.", True),
    "wait_ms": Words("Wait so many milliseconds for the first message.", 20_000),
    "ClusterShown.version": Words("The version of the map that this member has read; 0: no cluster.", 41),
    "ClusterShown.shards": Words("The shards, in order."),
    "ShardShown.shard": Words("The shard, counted from 0.", 0),
    "ShardShown.server_id": Words("That of all its members. Its receipts begin with it.", "5f3a9c0d2b71"),
    "ShardShown.state": Words("`draining`: it takes no new messages. `closed`: it has none left.", "open"),
    "ShardShown.epoch": Words("Its last leadership in the map; 0: none yet.", 7),
    "ShardShown.pending": Words("Messages of its primary that are not due; null: it does not answer.", 1_000),
    "ShardShown.members": Words("Its members."),
    "ShardShown.log": Words("What a member knows of its log; null: none answers."),
    "MemberShown.address": Words("Where clients reach the member.", "10.0.0.11:20801"),
    "MemberShown.announced": Words("Its role by the map.", "standby"),
    "MemberShown.unanswered": Words("Why there is no answer: `no answer`, `not asked`, or a sentence.", "no answer"),
    "MemberShown.member": Words("The name of the member.", "b"),
    "MemberShown.role": Words("`taking_over`: it leads, and does not serve yet.", "standby"),
    "MemberShown.epoch": Words("The leadership that it has read of last.", 7),
    "MemberShown.lag_records": Words("Records of the log that it has not applied; null: the log does not answer.", 0),
    "MemberShown.lag_ms": Words(
        "0 where nothing is missing; else how long ago the last record that it has read was written.", 0
    ),
    "MemberShown.if_it_dies": Words("What happens if it dies now.", "nothing stops"),
    "MemberShown.front": Words(
        "What is wrong with addresses of members, for people; empty where nothing is.", "does not reach b"
    ),
    "MemberShown.damaged": Words("Whether it knows of damage in its directory: then it never leads again.", False),
    "LogShown.answers": Words("Whether the log answered the last look.", True),
    "LogShown.copies": Words("Copies of each record.", 3),
    "LogShown.in_sync": Words("Copies that have all records.", 3),
    "LogShown.in_sync_min": Words("Copies that have a record before it counts.", 2),
    "LogShown.kept": Words("Positions between its begin and its end.", 123_456),
    "LogShown.faults": Words("A sentence for each wrong setting.", ["retention.ms of topic t is 1, and must be -1"]),
    "where": Words("A filter: an expression over properties.", "price > 3 AND country = 'de'"),
}

PATHS: Final[Mapping[str, Words]] = {
    "subject": WORDS["subject"],
    "group": WORDS["group"],
    "receipt": WORDS["receipt"],
    "message_id": WORDS["message_id"],
}
"""Parameters in paths, percent-encoded."""

HEADERS: Final[Mapping[str, Any]] = {"Idempotency-Key": "order-7", "X-Delayserver": "1"}
"""Examples of headers, whose words stand at their endpoints."""


def words_of(kind: str, field: str) -> Words | None:
    """The words of a field of a type, None where its type says them."""
    return WORDS.get(f"{kind}.{field}") or WORDS.get(field)
