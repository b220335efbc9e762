"""A broker node reached over the network: `deliver` frames on one pipelined connection, made again when it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.broker_node import DeliveryError
from delayserver.protocol.columns import U8, U32, pack_column, unpack_column
from delayserver.protocol.errors import (
    DelayServerError,
    DiskFull,
    InvalidArgument,
    NotReady,
    QueueFull,
    Refused,
    ShuttingDown,
)
from delayserver.protocol.frames import FrameDecoder, decode_reply, encode_bulk_request
from delayserver.protocol.operations import DELIVER, WINDOW_COMPLETE
from delayserver.protocol.outcomes import DeliverOutcome
from delayserver.transport import Connect, Transport
from store.batches import StoredBatch

# Answers of a node that say for certain that it stored nothing.
_KNOWN = (DiskFull, NotReady, QueueFull, Refused, ShuttingDown)
CONNECT_TIMEOUT_S = 5.0


class _Waiting:
    """One request without its reply."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: dict[str, Any] | None = None
        self.error: DelayServerError | OSError | None = None


class RemoteNode:
    """One node of a group. `run` owns the connection; `deliver` may be called by several tasks."""

    def __init__(
        self, address: str, server_id: int, frame_bytes_max: int, connect: Connect, names: Callable[[int], str]
    ) -> None:
        self.address = address
        self._server_id = f"{server_id:012x}"
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
            self._transport = transport
            self._connected.set()
            try:
                await self._read(transport)
                self._lost("the node closed the connection")
            except (OSError, DelayServerError) as error:
                self._lost(f"the connection broke: {error}")
            finally:
                transport.close()

    def _lost(self, why: str) -> None:
        """Whoever waits learns that nobody knows; who comes next asks for a new connection."""
        self._why = why
        self._transport = None
        self._wanted = trio.Event()
        self._connected.set()  # those who wait for the connection look, and find none
        self._connected = trio.Event()
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.error = ConnectionResetError(why)
            request.done.set()

    async def _read(self, transport: Transport) -> None:
        decoder = FrameDecoder(self._frame_bytes_max)

        def received(data: bytes) -> None:
            for payload in decoder.feed(data):
                reply = decode_reply(payload)
                request = self._waiting.pop(reply.id, None)
                if request is not None:
                    request.result, request.error = reply.result, reply.error
                    request.done.set()

        await transport.feed(received)

    async def _connection(self) -> Transport:
        if self._transport is None:
            connected = self._connected
            self._wanted.set()
            await connected.wait()
        if self._transport is None:
            raise DeliveryError(self._why, known=True)
        return self._transport

    async def _request(self, transport: Transport, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Requests are sent in the order of the calls."""
        self._last_id += 1
        request_id, request = self._last_id, _Waiting()
        self._waiting[request_id] = request
        try:
            async with self._sending:
                await _send_all(transport, encode_bulk_request(request_id, operation, arguments))
            await request.done.wait()
        except OSError as error:
            raise DeliveryError(str(error), known=False) from error
        finally:
            self._waiting.pop(request_id, None)
        if isinstance(request.error, DelayServerError):
            raise DeliveryError(str(request.error), known=isinstance(request.error, _KNOWN)) from request.error
        if request.error is not None or request.result is None:
            raise DeliveryError(str(request.error), known=False)
        return request.result

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> NDArray[np.uint8]:
        """Send one `deliver`. Raises DeliveryError."""
        subjects, subject_index = np.unique(batch.subject, return_inverse=True)
        groups, group_index = np.unique(batch.target_group, return_inverse=True)
        has_none = len(groups) > 0 and groups[0] == 0
        result = await self._request(
            await self._connection(),
            DELIVER,
            {
                "server_id": self._server_id,
                "window_ms": int(batch.window_ms[0]),
                "uncertain": uncertain,
                "count": len(batch),
                "subjects": [self._name(code) for code in subjects.tolist()],
                "subject_index": pack_column(subject_index.astype(np.uint32), U32),
                "target_groups": [self._name(code) for code in groups.tolist() if code],
                "target_group_index": pack_column((group_index + (not has_none)).astype(np.uint32), U32),
                **{
                    name: pack_column(getattr(batch, name))
                    for name in (
                        "sequence",
                        "redelivery",
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

    async def windows_complete(self, windows_ms: Callable[[], list[int]]) -> None:
        """Best effort: a node that does not hear it keeps the keys for longer."""
        transport = await self._connection()
        # Asked for as late as this: what is handed over from now on is sent behind it.
        windows = windows_ms()
        if windows:
            await self._request(transport, WINDOW_COMPLETE, {"server_id": self._server_id, "window_ms": windows})


async def _send_all(transport: Transport, frame: bytes) -> None:
    view = memoryview(frame)
    try:
        while view:
            taken = transport.send_now(view)
            view = view[taken:]
            if view.nbytes:
                await transport.wait_writable()
    except BaseException:
        # Part of a frame is out: whatever followed it would be read as its rest.
        transport.close()
        raise
