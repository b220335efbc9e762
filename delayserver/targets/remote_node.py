"""A broker node reached over the network: `deliver` frames on one pipelined connection, made again when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.broker.queues.window_table import by_window
from delayserver.logs.events import EventLogger
from delayserver.net.transport import Connect, Transport
from delayserver.protocol.addresses import parse_address
from delayserver.protocol.columns import U8, U32, pack_column, unpack_column
from delayserver.protocol.errors import (
    DelayServerError,
    DiskFull,
    DuplicateServerId,
    InvalidArgument,
    NotDue,
    NotReady,
    QueueFull,
    Refused,
    ServerNotProven,
    ShuttingDown,
    Superseded,
    UnknownOperation,
    UnsupportedVersion,
)
from delayserver.protocol.frames import FrameDecoder, decode_reply, encode_bulk_request
from delayserver.protocol.operation_names import DELIVER, HELLO, PING, PROVE, SUPPORTED_VERSIONS, WINDOW_COMPLETE
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.protocol.proof import make_proof
from delayserver.runtime.error_groups import first_of
from delayserver.targets.answer import Answer
from delayserver.targets.embedded_kind import EMBEDDED_ADDRESS
from delayserver.targets.kinds import Capabilities, ServerIdentity, TargetKind
from delayserver.targets.target import LEASE_ENDED, DeliveryError, Target
from store.records.batches import StoredBatch
from store.records.column_batch import has_any
from store.records.shared_column import REDELIVERY

events = EventLogger()

# Answers of a node that say for certain that it stored nothing.
_KNOWN = (DiskFull, DuplicateServerId, NotDue, NotReady, QueueFull, Refused, ShuttingDown, Superseded, UnknownOperation)
# Until the node has answered `hello`: a process that hangs still has its connections accepted, by the kernel.
CONNECT_TIMEOUT_S = 5.0
# Errors that do not mend themselves.
_PROBLEMS = (DuplicateServerId, NotDue, ServerNotProven, Superseded, UnsupportedVersion)
# A request that waits for a connection gives up this long before its own time is over: then it was certainly not sent.
BEFORE_DEADLINE_S = 0.001
# After another process took this server's place at the node, it connects again after a pause that doubles. Where two servers
# have one id and the node does not fence one of them off, they take turns, and not more often than this.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 30.0
PAUSE_FORGOTTEN_S = 60.0
# After an error of the node its answers to other requests do not show for so long that it takes messages.
REFUSED_S = 10.0
# So many times in a row it was no connection left over from an earlier life.
LEFT_MAX = 3
# How nodes of before `superseded` name it, as `invalid_argument`.
_OLD_SUPERSEDED = "newer connection"


class _Waiting:
    """One request without its reply."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: dict[str, Any] | None = None
        self.error: DelayServerError | OSError | None = None

    def end(self, result: dict[str, Any] | None, error: DelayServerError | OSError | None) -> None:
        """The reply is here, or there will be none."""
        self.result, self.error = result, error
        self.done.set()


# Parts of one batch that are under way together; a connection may have 1,024 of all.
WINDOWS_AT_ONCE = 32


class RemoteNode(Target):
    """One node of a group. `run` owns the connection; `deliver` may be called by several tasks."""

    def __init__(
        self,
        address: str,
        identity: ServerIdentity,
        frame_bytes_max: int,
        connect: Connect,
        names: Callable[[int], str],
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        """`may_send`: as in `Surroundings`."""
        self.address = address
        self._may_send = may_send
        self._problem, self._problem_at_s = "", 0.0
        self._identity = identity
        self._frame_bytes_max = frame_bytes_max
        self._connect = connect
        self._name = names
        self._transport: Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._last_id = 0
        self._wanted = trio.Event()
        self._connected = trio.Event()
        self._sending = trio.Lock()
        self._why = "not connected"
        # A connection that is to be closed once its last replies are there.
        self._leaving: Transport | None = None
        self._left, self._left_at_s, self._not_before_s = 0, 0.0, 0.0
        # Whether a request on this connection had no answer in time, and none has had one since.
        self._doubtful = False
        # When the node last answered a request with an error, and which.
        self._refused_at_s, self._why_refused = -REFUSED_S, ""

    async def run(self) -> None:
        """Keep a connection while somebody wants one, until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                with trio.fail_after(CONNECT_TIMEOUT_S):
                    transport = await self._connect(self.address)
            except (OSError, trio.TooSlowError) as error:
                self._lost(f"cannot connect: {error or 'timed out'}")
                continue
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._greet, transport)
                    await self._read(transport)
                    nursery.cancel_scope.cancel()
                self._lost("the node closed the connection")
            except* (OSError, DelayServerError) as group:
                self._lost(f"the connection broke: {first_of(group)}")
            finally:
                transport.close()

    async def _greet(self, transport: Transport) -> None:
        """Say who delivers, and prove it; then the connection may be used. Raises OSError."""
        identity = self._identity
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                who = {"server_id": identity.server_id, "instance": identity.instance, "client": "delayserver"}
                await self._ask(transport, HELLO, {"versions": list(SUPPORTED_VERSIONS), **who})
                if identity.secret:
                    await self._prove(transport)
        except trio.TooSlowError as error:
            raise ConnectionResetError("the node accepts the connection and does not answer") from error
        except DelayServerError as error:
            self._note_problem(error)
            raise ConnectionRefusedError(str(error)) from error
        self._transport = transport
        self._doubtful = False
        self._connected.set()

    async def _prove(self, transport: Transport) -> None:
        try:
            challenge = (await self._ask(transport, PROVE, {})).get("challenge")
        except UnknownOperation:
            return  # a node of before: it asks for no proof
        if type(challenge) is bytes and challenge:
            await self._ask(transport, PROVE, {"proof": make_proof(self._identity.secret, challenge)})

    def _lost(self, why: str) -> None:
        """Fails all requests in flight with an unknown result. The next request opens a new connection."""
        if self._leaving is None:  # otherwise it is known better
            self._why = why
        self._transport = self._leaving = None
        self._wanted = trio.Event()
        self._connected.set()  # those who wait for the connection look, and find none
        self._connected = trio.Event()
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.end(None, ConnectionResetError(why))

    async def _read(self, transport: Transport) -> None:
        decoder = FrameDecoder(self._frame_bytes_max)

        def received(data: bytes) -> None:
            for payload in decoder.feed(data):
                reply = decode_reply(payload)
                request = self._waiting.pop(reply.id, None)
                if request is not None:
                    request.end(reply.result, reply.error)

        await transport.feed(received)

    async def _connection(self) -> Transport:
        """Raises DeliveryError (known): without a connection nothing was sent."""
        if trio.current_time() < self._not_before_s:
            raise DeliveryError(self._why, known=True)
        if self._transport is None:
            connected = self._connected
            self._wanted.set()
            with _almost_to_deadline():
                await connected.wait()
        if self._transport is None:
            raise DeliveryError(self._why, known=True)
        if self._doubtful:
            await self._ping(self._transport)
        return self._transport

    async def _ping(self, transport: Transport) -> None:
        """A process that hangs would carry out later what it is sent now, while another node carries it out as well. So the
        node must show that it answers, after a request without an answer. Raises DeliveryError (known)."""
        try:
            with _almost_to_deadline():
                await self._ask(transport, PING, {})
                self._doubtful = False
        except (OSError, DelayServerError) as error:
            raise DeliveryError(str(error), known=True) from error
        if self._doubtful or self._transport is not transport:
            raise DeliveryError("the node does not answer", known=True)

    async def _ask(
        self,
        transport: Transport,
        operation: str,
        arguments: dict[str, Any],
        may_send: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        """Requests are sent in the order of the calls. Raises OSError (the result is unknown) and what the node names;
        DeliveryError where it may not be sent."""
        self._last_id += 1
        request_id, request = self._last_id, _Waiting()
        self._waiting[request_id] = request
        try:
            async with self._sending:
                await _send_all(transport, encode_bulk_request(request_id, operation, arguments), may_send)
            await request.done.wait()
        except trio.Cancelled:
            self._doubtful = True
            raise
        finally:
            self._waiting.pop(request_id, None)
            if self._leaving is not None and not self._waiting:
                self._leaving.close()
        if request.error is not None:
            raise request.error
        if request.result is None:
            raise ConnectionResetError("a reply without a result")
        return request.result

    async def _request(self, transport: Transport, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """As `_ask`. Raises DeliveryError."""
        try:
            result = await self._ask(transport, operation, arguments, self._may_send)
        except OSError as error:
            raise DeliveryError(str(error), known=False) from error
        except DelayServerError as error:
            self._refused(transport, error)
            raise DeliveryError(str(error), known=isinstance(error, _KNOWN)) from error
        if result.get("duplicate_server_id") is True:
            self._note_problem(DuplicateServerId("another process with the id of this server delivers to this node"))
        elif self._problem != DuplicateServerId.error:
            self._problem = ""
        return result

    def _refused(self, transport: Transport, error: DelayServerError) -> None:
        """The node answered with an error. If another connection has the place of this one, leave it, and come back after a
        pause."""
        self._refused_at_s, self._why_refused = trio.current_time(), str(error)
        old = isinstance(error, InvalidArgument) and _OLD_SUPERSEDED in error.message
        if old or isinstance(error, Superseded | DuplicateServerId):
            self._leave(transport, str(error))
            if self._left >= LEFT_MAX and not isinstance(error, DuplicateServerId):
                error = DuplicateServerId(f"{error}, again and again: another process has the id of this server")
        self._note_problem(error)

    def _leave(self, transport: Transport, why: str) -> None:
        if self._transport is not transport:
            return  # several requests in flight were refused
        now_s = trio.current_time()
        self._left = self._left + 1 if now_s - self._left_at_s < PAUSE_FORGOTTEN_S else 1
        pause_s = min(PAUSE_S_MIN * 2 ** min(self._left - 1, 30), PAUSE_S_MAX)
        self._left_at_s, self._not_before_s = now_s, now_s + pause_s
        self._why, self._transport, self._leaving = why, None, transport
        if not self._waiting:
            transport.close()

    @property
    def problem(self) -> str:
        """The name of an error that an operator must mend; "" while the node takes messages. Two processes with one id may
        both have a message taken now and then, so that is forgotten by time alone."""
        old = trio.current_time() - self._problem_at_s >= PAUSE_FORGOTTEN_S
        return "" if old and self._problem == DuplicateServerId.error else self._problem

    def _note_problem(self, error: DelayServerError) -> None:
        if not isinstance(error, _PROBLEMS):
            return
        if error.name != self.problem:
            events.error(
                "node_problem",
                "broker node {node}: {reason}",
                node=self.address,
                reason=str(error),
                error_name=error.name,
            )
        self._problem, self._problem_at_s = error.name, trio.current_time()

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        """Send one `deliver` for each window of the batch, one after the other if there are order keys. Raises
        DeliveryError."""
        parts = by_window(batch.server_id, batch.window_ms)
        if len(parts) == 1:
            return Answer(await self._deliver(batch, uncertain))
        outcome = np.zeros(len(batch), np.uint8)
        failures: list[DeliveryError] = []

        async def deliver(rows: NDArray[np.intp]) -> None:
            try:
                outcome[rows] = await self._deliver(batch.take(rows), uncertain)
            except DeliveryError as error:
                failures.append(error)

        at_once = 1 if has_any(batch.order_keys_length) else WINDOWS_AT_ONCE
        for start in range(0, len(parts), at_once):
            async with trio.open_nursery() as nursery:
                for _window, rows in parts[start : start + at_once]:
                    assert rows is not None
                    nursery.start_soon(deliver, rows)
            if failures:
                # Those of other windows may be stored, and the batch has one result.
                tried = parts[:at_once]
                known = start == 0 and len(failures) == len(tried) and all(failure.known for failure in failures)
                raise DeliveryError(str(failures[0]), known=known)
            if at_once == 1 and bool((outcome == int(DeliverOutcome.REFUSED)).any()):
                outcome[outcome == 0] = int(
                    DeliverOutcome.REFUSED
                )  # no later message of a key goes before an earlier one
                break
        return Answer(outcome)

    async def _deliver(self, batch: StoredBatch, uncertain: bool) -> NDArray[np.uint8]:
        subjects, subject_index = np.unique(batch.subject, return_inverse=True)
        groups, group_index = np.unique(batch.target_group, return_inverse=True)
        has_none = len(groups) > 0 and groups[0] == 0
        unanswered = REDELIVERY.unanswered(batch.redelivery)
        result = await self._request(
            await self._connection(),
            DELIVER,
            {
                "server_id": self._identity.server_id,
                "window_ms": int(batch.window_ms[0]),
                "uncertain": uncertain,
                "count": len(batch),
                "subjects": [self._name(code) for code in subjects.tolist()],
                "subject_index": pack_column(subject_index.astype(np.uint32), U32),
                "target_groups": [self._name(code) for code in groups.tolist() if code],
                "target_group_index": pack_column((group_index + (not has_none)).astype(np.uint32), U32),
                "redelivery": pack_column(
                    REDELIVERY.number(batch.redelivery) if unanswered.any() else batch.redelivery
                ),
                **({"unanswered": pack_column(unanswered)} if unanswered.any() else {}),
                **{
                    name: pack_column(getattr(batch, name))
                    for name in (
                        "sequence",
                        "due_ms",
                        "accepted_us",
                        "dispatched_us",
                        "expires_ms",
                        "origin_sequence",
                    )
                },
                "message_ids": batch.ids,
                "message_id_length": pack_column(batch.ids_length),
                "properties": batch.properties,
                "properties_length": pack_column(batch.properties_length),
                "bodies": batch.bodies,
                "body_length": pack_column(batch.bodies_length),
                **self._rare(batch),
            },
        )
        try:
            outcome = unpack_column(result.get("outcome"), len(batch), U8, "outcome")
            # What says neither is not recorded as delivered.
            if not np.isin(outcome, [int(known) for known in DeliverOutcome]).all():
                raise InvalidArgument("an outcome that is none")
            return outcome
        except DelayServerError as error:
            raise DeliveryError(f"the node's answer is malformed: {error}", known=False) from error

    def _rare(self, batch: StoredBatch) -> dict[str, Any]:
        """Tags and order keys, if a message has one. A node of before ignores arguments that it does not know."""
        fields: dict[str, Any] = {}
        if has_any(batch.tag):
            tags, index = np.unique(batch.tag, return_inverse=True)
            fields["tags"] = [self._name(code) for code in tags.tolist() if code]
            fields["tag_index"] = pack_column((index + (tags[0] != 0)).astype(np.uint32), U32)
        if len(batch.order_keys):
            fields |= {"order_keys": batch.order_keys, "order_key_length": pack_column(batch.order_keys_length)}
        return fields

    async def probe(self) -> None:
        """Connects and asks for an answer. A node that refused messages a moment ago would do so again, so its answer says
        nothing. Raises DeliveryError."""
        if trio.current_time() - self._refused_at_s < REFUSED_S:
            raise DeliveryError(self._why_refused, known=True)
        transport = await self._connection()
        try:
            await self._ask(transport, PING, {})
        except (OSError, DelayServerError) as error:
            raise DeliveryError(str(error), known=True) from error

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """Best effort: a node that does not hear it keeps the keys for longer."""
        transport = await self._connection()
        # Asked for as late as this: what is handed over from now on is sent behind it.
        windows = windows_ms()
        if windows:
            await self._request(
                transport, WINDOW_COMPLETE, {"server_id": self._identity.server_id, "window_ms": windows}
            )


def _almost_to_deadline() -> trio.CancelScope:
    """Ends a moment before the caller's time is over, so that the caller learns what happened."""
    return trio.CancelScope(deadline=trio.current_effective_deadline() - BEFORE_DEADLINE_S)


async def _send_all(transport: Transport, frame: bytes, may_send: Callable[[], bool] | None) -> None:
    """Raises DeliveryError where it may not be sent (any more): the node does not have all of the frame then."""
    if may_send is not None and not may_send():
        raise DeliveryError(LEASE_ENDED, known=True)
    view = memoryview(frame)
    try:
        while view:
            taken = transport.send_now(view)
            view = view[taken:]
            if view.nbytes:
                await transport.wait_writable()
                if may_send is not None and not may_send():
                    raise DeliveryError(LEASE_ENDED, known=True)
    except BaseException:
        # Part of a frame is out: whatever followed it would be read as its rest.
        transport.close()
        raise


def _read_address(text: str) -> str:
    """HOST:PORT, with or without the scheme before it. Raises ValueError."""
    address = text.removeprefix("tcp://")
    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError(f"{error}, or {EMBEDDED_ADDRESS!r} for the broker in this server") from None
    return address


TCP: Final = TargetKind(
    "tcp",
    lambda _address, _options: Capabilities(
        consumable=True, keeps_keys=True, idempotent=True, windows_complete=True, probes=True
    ),
    lambda address, _options, around: RemoteNode(
        address, around.identity, around.frame_bytes_max, around.connect, around.names, around.may_send
    ),
    _read_address,
)
