"""A small delay server in memory, on a real socket, that misbehaves on request.

It speaks the protocol through the protocol package, keeps what it was sent, and delivers everything at once. A test
tells it with `misbehave` what to do with the next requests of an operation: that is how lost, late, swapped and broken
replies are made.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self

import msgpack
import msgspec
import numpy as np

from delayserver.protocol.columns import I64, U32, pack_column, pack_ragged, unpack_column, unpack_ragged
from delayserver.protocol.errors import (
    DelayServerError,
    NotReady,
    SubjectInvalid,
    TooFar,
    UnknownOperation,
    error_to_map,
)
from delayserver.protocol.frames import (
    CLOCK_STEPPED,
    FrameDecoder,
    RequestFrame,
    decode_request,
    encode_error,
    encode_notice,
    encode_reply,
)
from delayserver.protocol.limits import Limits
from delayserver.protocol.receipts import derived_message_id, format_receipt, parse_receipt
from delayserver.state.shard.cluster_map import ClusterMap

SERVER_ID = "0123456789ab"
TOO_FAR_MS = 2**50


@dataclass(frozen=True)
class Drop:
    """Close the connection instead of answering: before or after the effect, or in the middle of the reply."""

    after_effect: bool = True
    reply_bytes: int = 0


@dataclass(frozen=True)
class Late:
    """Answer after this many seconds."""

    delay_s: float


@dataclass(frozen=True)
class Fail:
    """Answer with this error, without any effect."""

    error: DelayServerError


@dataclass(frozen=True)
class Swap:
    """Hold the reply back until the next request of the connection has been answered."""


@dataclass(frozen=True)
class Garbage:
    """Answer with these bytes; none at all leaves the request unanswered."""

    data: bytes


@dataclass(frozen=True)
class Wait:
    """Answer a pull when `cancel_wait` ends it, with no message: until then none is there."""


Misbehaviour = Drop | Late | Fail | Swap | Garbage | Wait


@dataclass
class Stored:
    subject: str
    body: bytes
    due_ms: int
    sequence: int
    message_id: str
    properties: dict[str, str]
    expires_ms: int
    outcome: str = "pending"
    acked: bool = False
    leased: bool = False


@dataclass
class FakeServer:
    limits: Limits = field(default_factory=Limits)
    clock_ahead_us: int = 0
    messages: list[Stored] = field(default_factory=list)
    requests: list[RequestFrame] = field(default_factory=list)
    connections: int = 0
    wrong_replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)  # by operation
    nodes: list[str] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    server_id: str = SERVER_ID
    map: ClusterMap | None = None  # of a cluster of shards; it is a member of one
    leases: bool = False  # hand a message out once, and never again; otherwise at every pull until it is acked

    def __post_init__(self) -> None:
        self._plan: defaultdict[str, deque[Misbehaviour]] = defaultdict(deque)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._serving: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._waiting: set[int] = set()  # the ids of pulls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def close(self) -> None:
        """The server is gone: its connections end, and there are no new ones. May be called again."""
        with contextlib.suppress(OSError):
            # A shutdown wakes the accepting thread; closing alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self.drop_connections()

    def misbehave(self, operation: str, *steps: Misbehaviour) -> None:
        """What to do with the next requests of an operation, one step each; after them all is well again."""
        self._plan[operation].extend(steps)

    def behave(self, operation: str) -> None:
        """All is well again with the next requests of an operation."""
        self._plan[operation].clear()

    def drop_connections(self) -> None:
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def step_clock(self, step_us: int) -> None:
        """Set the clock, and tell the clients that are connected."""
        self.clock_ahead_us += step_us
        with self._lock:
            for connection in self._sockets:
                connection.sendall(encode_notice({CLOCK_STEPPED: self.now_us()}))

    def count(self, operation: str) -> int:
        return sum(request.operation == operation for request in self.requests)

    def wait_for_open(self, connections: int, within_s: float = 30) -> None:
        """Returns when so many connections are open here: the others were closed by their clients, or dropped."""
        end_s = time.monotonic() + within_s
        while sum(thread.is_alive() for thread in self._serving) != connections:
            assert time.monotonic() < end_s, f"not {connections} open connections"
            time.sleep(0.01)

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.clock_ahead_us

    def _start(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(connection)
            self._serving.append(self._start(self._serve, connection))

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder(self.limits.frame_bytes_max)
        held: list[bytes] = []
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                try:
                    requests = [decode_request(payload) for payload in decoder.feed(data)]
                except DelayServerError as error:
                    connection.sendall(encode_error(error.request_id, error))
                    return
                for request in requests:
                    if not self._answer(connection, request, held):
                        return

    def _answer(self, connection: socket.socket, request: RequestFrame, held: list[bytes]) -> bool:
        """Answer one request; False closes the connection."""
        with self._lock:
            self.requests.append(request)
            plan = self._plan[request.operation]
            step = plan.popleft() if plan else None
            if isinstance(step, Fail):
                reply = encode_error(request.id, step.error)
            elif isinstance(step, Drop) and not step.after_effect:
                return False
            elif isinstance(step, Wait):
                self._waiting.add(request.id)
                reply = b""
            else:
                reply = self._reply(request)
                if request.operation == "cancel_wait" and (waited := request.arguments["id"]) in self._waiting:
                    self._waiting.remove(waited)
                    empty = encode_reply(waited, self._on_pull({"subject": "", "max_messages": 0}))
                    reply = empty + encode_reply(request.id, {"ended": True})
        if isinstance(step, Drop):
            connection.sendall(reply[: step.reply_bytes])
            return False
        if isinstance(step, Late):
            time.sleep(step.delay_s)
        if isinstance(step, Garbage):
            reply = step.data
        if isinstance(step, Swap):
            held.append(reply)
            return True
        connection.sendall(reply + b"".join(held))
        held.clear()
        return True

    def _reply(self, request: RequestFrame) -> bytes:
        handler = self.answers.get(request.operation) or getattr(self, f"_on_{request.operation}", None)
        try:
            if request.operation in self.wrong_replies:
                return encode_reply(request.id, self.wrong_replies[request.operation])
            if handler is None:
                raise UnknownOperation(request.operation)
            return encode_reply(request.id, handler(request.arguments))
        except DelayServerError as error:
            return encode_error(request.id, error)

    # --- operations

    def _on_hello(self, _: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": 1,
            "server_id": self.server_id,
            "server_us": self.now_us(),
            "role": "server",
            "software": "fake",
            "limits": {**self.limits.to_map(), "a_bound_of_the_future": 1},
            **({"shards": len(self.map.shown.shards)} if self.map is not None else {}),
        }

    def _on_map(self, _: dict[str, Any]) -> dict[str, Any]:
        """It never waits: a client that asks for a later map gets the one that there is."""
        if self.map is None:
            raise UnknownOperation("map")
        reply: dict[str, Any] = msgspec.to_builtins(self.map.shown)
        return reply

    def _on_ping(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"server_us": self.now_us()}

    def _on_status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"ready": True, "accepted": len(self.messages)}

    def _on_cancel_wait(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"ended": False}

    def _on_groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Two groups a page."""
        first = (arguments.get("after") or [0, -1])[1] + 1
        rows = [row for row in self.groups if arguments.get("subject") in (None, row["subject"])]
        page = rows[first : first + 2]
        return {"groups": page, "next": [0, first + 1] if len(rows) > first + 2 else None}

    def _on_subjects(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Two names a page."""
        names = list(dict.fromkeys([message.subject for message in self.messages]))
        after = arguments.get("after") or 0
        pattern, prefix = arguments.get("pattern") or "*", arguments.get("prefix") or ""
        page = names[after : after + 2]
        found = [name for name in page if fnmatchcase(name, pattern) and name.startswith(prefix)]
        return {"subjects": found, "next": after + len(page), "more": after + len(page) < len(names)}

    def _on_route(self, arguments: dict[str, Any]) -> dict[str, Any]:
        nodes = [{"address": address, "weight": 1} for address in self.nodes or [self.address]]
        if self.map is not None:
            nodes = [{"address": self.address, "weight": 1, "here": True}]
        return {"group": arguments.get("group", "main"), "nodes": nodes}

    def _store(self, subject: str, body: bytes, due_ms: int, **rest: Any) -> Stored:
        if not subject or len(subject) > self.limits.subject_bytes_max:
            raise SubjectInvalid(f"a subject has 1 to {self.limits.subject_bytes_max} bytes")
        if due_ms > TOO_FAR_MS:
            raise TooFar("beyond delay_ms_max")
        if subject == "not-ready-once":
            raise NotReady("recovering", retry_after_ms=1)
        key, named = rest.pop("order_key", b""), (rest.get("message_id") or "").encode()
        if self.map is not None and (refusal := self.map.refusal(subject, key, named)) is not None:
            raise refusal
        sequence = len(self.messages)
        message_id = rest.pop("message_id", None) or derived_message_id(self.server_id, sequence)
        stored = Stored(subject, body, due_ms, sequence, message_id, **rest)
        if any((m.subject, m.due_ms, m.message_id) == (subject, due_ms, message_id) for m in self.messages):
            stored.outcome = "deduplicated"
        self.messages.append(stored)
        return stored

    def _on_send(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._send_columns(arguments) if "count" in arguments else self._send_rows(arguments)

    def _send_rows(self, arguments: dict[str, Any]) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        for row in arguments["messages"]:
            body = row["body"].encode() if isinstance(row["body"], str) else row["body"]
            try:
                stored = self._store(
                    row["subject"],
                    body,
                    row["due_ms"],
                    message_id=row.get("message_id"),
                    properties=row.get("properties", {}),
                    expires_ms=row.get("expires_ms", 0),
                    order_key=row.get("order_key", "").encode(),
                )
            except DelayServerError as error:
                results.append(error_to_map(error))
                continue
            results.append(
                {
                    "receipt": format_receipt(self.server_id, stored.due_ms, stored.sequence),
                    "message_id": stored.message_id,
                    "subject": stored.subject,
                    "due_ms": stored.due_ms,
                    "sequence": stored.sequence,
                }
            )
        return {"results": results}

    def _send_columns(self, arguments: dict[str, Any]) -> dict[str, Any]:
        count = arguments["count"]
        subjects = arguments.get("subjects") or [arguments["subject"]]
        index = unpack_column(arguments.get("subject_index", 0), count, U32, "subject_index")
        due_ms = unpack_column(arguments["due_ms"], count, I64, "due_ms")
        expires_ms = unpack_column(arguments.get("expires_ms", 0), count, I64, "expires_ms")

        def ragged(name: str, lengths_name: str) -> list[bytes]:
            lengths = arguments.get(lengths_name, 0)
            return unpack_ragged(arguments.get(name, b""), lengths, count, name, lengths_name).rows()

        bodies = ragged("bodies", "body_length")
        message_ids = ragged("message_ids", "message_id_length")
        properties = ragged("properties", "properties_length")
        order_keys = ragged("order_keys", "order_key_length")
        first, accepted, rejected = len(self.messages), [], []
        for row in range(count):
            try:
                stored = self._store(
                    subjects[index[row]],
                    bodies[row],
                    int(due_ms[row]),
                    message_id=message_ids[row].decode(),
                    properties=msgpack.unpackb(properties[row]) if properties[row] else {},
                    expires_ms=int(expires_ms[row]),
                    order_key=order_keys[row],
                )
                accepted.append(stored.due_ms)
            except DelayServerError as error:
                rejected.append([row, error.error, error.message, error.retry_after_ms])
        return {
            "accepted": len(accepted),
            "first_sequence": first,
            "due_ms": pack_column(np.array(accepted, I64)),
            "rejected": rejected,
        }

    def _targets(self, arguments: dict[str, Any]) -> list[tuple[str | None, Stored | None, DelayServerError | None]]:
        found: list[tuple[str | None, Stored | None, DelayServerError | None]] = []
        for item in arguments.get("receipts") or arguments.get("messages") or arguments.get("items") or []:
            text = item if isinstance(item, str) else item.get("receipt")
            try:
                if text is not None:
                    sequence = parse_receipt(text).sequence
                    found.append((text, self.messages[sequence] if sequence < len(self.messages) else None, None))
                    continue
                due_ms = item.get("message_due_ms", item["due_ms"])
                key = (item["subject"], item["message_id"], due_ms)
                match = [m for m in self.messages if (m.subject, m.message_id, m.due_ms) == key]
                found.append((None, match[0] if match else None, None))
            except DelayServerError as error:
                found.append((text, None, error))
        return found

    def _cancelled(self, stored: Stored | None) -> str:
        if stored is None:
            return "unknown"
        if stored.outcome == "pending":
            stored.outcome = "cancelled"
            return "cancelled"
        return "already_cancelled" if stored.outcome == "cancelled" else stored.outcome

    def _on_cancel(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if "count" in arguments:
            sequence = unpack_column(arguments["sequence"], arguments["count"], I64, "sequence")
            return {
                "outcome": bytes(5 if self._cancelled(self.messages[row]) == "cancelled" else 10 for row in sequence)
            }
        return {
            "results": [
                error_to_map(error) if error else {"receipt": text, "outcome": self._cancelled(stored)}
                for text, stored, error in self._targets(arguments)
            ]
        }

    def _on_lookup(self, arguments: dict[str, Any]) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        for text, stored, error in self._targets(arguments):
            if error or stored is None:
                results.append(error_to_map(error) if error else {"receipt": text, "outcome": "unknown"})
                continue
            fields = {"subject": stored.subject, "due_ms": stored.due_ms}
            results.append({"receipt": text, "outcome": stored.outcome, **fields})
        return {"results": results}

    def _on_reschedule(self, arguments: dict[str, Any]) -> dict[str, Any]:
        item = arguments["items"][0]
        text, stored, error = self._targets(arguments)[0]
        if error:
            return {"results": [error_to_map(error)]}
        outcome = self._cancelled(stored)
        result: dict[str, Any] = {"receipt": text, "outcome": outcome}
        if outcome == "cancelled" and stored is not None:
            body = item.get("body", stored.body)
            body = body.encode() if isinstance(body, str) else body
            moved = self._store(
                stored.subject,
                body,
                item["due_ms"],
                message_id=stored.message_id,
                properties=item.get("properties", stored.properties),
                expires_ms=item.get("expires_ms", stored.expires_ms),
            )
            result["new_receipt"] = format_receipt(self.server_id, moved.due_ms, moved.sequence)
            result |= {"message_id": moved.message_id, "due_ms": moved.due_ms, "sequence": moved.sequence}
        return {"results": [result]}

    def _on_pull(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if "ack" in arguments:
            self._settle(arguments["ack"])
        ready = [
            m for m in self.messages if m.subject == arguments["subject"] and m.outcome == "pending" and not m.acked
        ]
        ready = [m for m in ready if not (self.leases and m.leased)][: arguments["max_messages"]]
        for message in ready:
            message.leased = True
        derived = [m.message_id == derived_message_id(self.server_id, m.sequence) for m in ready]
        ids = pack_ragged([b"" if own else m.message_id.encode() for m, own in zip(ready, derived, strict=True)])
        properties = pack_ragged([msgpack.packb(m.properties) if m.properties else b"" for m in ready])
        bodies = pack_ragged([m.body for m in ready])
        sequence = pack_column(np.array([m.sequence for m in ready], I64))
        expires_ms = np.array([m.expires_ms for m in ready], I64)
        return {
            "count": len(ready),
            "subject": arguments["subject"],
            "server_ids": [self.server_id],
            "server_index": 0,
            "sequence": sequence,
            "due_ms": pack_column(np.array([m.due_ms for m in ready], I64)),
            "accepted_us": 1_000,
            "dispatched_us": 2_000,
            # As an older server: the column is left out where nothing expires.
            **({"expires_ms": pack_column(expires_ms)} if expires_ms.any() else {}),
            "attempt": 1,
            "message_ids": ids[0],
            "message_id_length": ids[1],
            "properties": properties[0],
            "properties_length": properties[1],
            "bodies": bodies[0],
            "body_length": bodies[1],
            "delivery": sequence,
        }

    def _settle(self, arguments: dict[str, Any]) -> int:
        deliveries = unpack_column(arguments["deliveries"], arguments["count"], I64, "deliveries").tolist()
        fresh = [number for number in deliveries if not self.messages[number].acked]
        for number in fresh:
            self.messages[number].acked = True
        return len(fresh)

    def _on_ack(self, arguments: dict[str, Any]) -> dict[str, Any]:
        acked = self._settle(arguments)
        return {"acked": acked, "unknown": arguments["count"] - acked}

    def _on_extend(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"extended": arguments["count"], "unknown": 0}

    def _on_nack(self, arguments: dict[str, Any]) -> dict[str, Any]:
        deliveries = unpack_column(arguments["deliveries"], arguments["count"], I64, "deliveries").tolist()
        expired = len([number for number in deliveries if self.messages[number].expires_ms])
        return {"nacked": arguments["count"], "unknown": 0} | ({"expired": expired} if expired else {})
