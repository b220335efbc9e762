"""One asynchronous connection: many requests in flight, one task that writes and one that reads.

Callers only leave frames and wait for events. So a cancelled caller never leaves half a frame behind. The connection drops
its late reply, or gives it to the caller's `Late`. Any failure fails all requests in flight and closes the connection; the
client retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio
from anyio.abc import ByteStream

from delayserver.client.calls.core import ReplyStream
from delayserver.protocol.errors import ConnectionLost, DelayServerError, QueueFull, RequestTimedOut, copied
from delayserver.protocol.frames import OneWayRefused, ReplyFrame

REQUESTS_IN_FLIGHT_MAX: Final = 1024
"""Further requests wait for their turn, so that fast callers do not fill the client's memory."""

UNWRITTEN_BYTES_MAX: Final = 1024 * 1024
"""Further callers wait while more bytes than this are unwritten, because the server does not read. One frame always fits."""

SILENCE_S: Final = 5.0
"""While requests wait for so long and nothing comes, the connection asks whether the server is still there. A network that
drops packets in silence would show only after the longest of their waits."""

_RECEIVE_BYTES: Final = 256 * 1024


LATE_MAX: Final = 4096
"""Replies whose callers have gone and that are waited for. The messages of further ones come again after their ack
timeout."""


@dataclass(slots=True)
class _Waiter:
    arrived: anyio.Event = field(default_factory=anyio.Event)
    reply: ReplyFrame | None = None
    failure: DelayServerError | None = None

    def answer(self, reply: ReplyFrame) -> None:
        self.reply = reply
        self.arrived.set()

    def fail(self, failure: DelayServerError) -> None:
        self.failure = failure
        self.arrived.set()


Late = Callable[[ReplyFrame], None]


def _drop(_: ReplyFrame) -> None:
    """The `Late` of a reply that says nothing of interest."""


class StreamConnection:
    """A connected stream. Its owner runs `run` in a task group; `exchange` works only meanwhile."""

    def __init__(
        self,
        stream: ByteStream,
        note_refused: Callable[[OneWayRefused], None],
        noticed: Callable[[ReplyFrame], None],
        ping: Callable[[], bytes],
        answer_s: float,
    ) -> None:
        """``note_refused`` gets what a reply says of one-way requests, also where no caller waits for the reply. ``noticed``
        gets the notices of the server. ``ping`` makes a frame whose reply nobody waits for. The server has ``answer_s`` for
        that reply.
        """
        self._stream = stream
        self._note_refused = note_refused
        self._replies = ReplyStream(noticed)
        self._waiters: dict[int, _Waiter] = {}
        # What gets the replies of requests whose callers have gone.
        self._late: dict[int, Late] = {}
        self._late_came: anyio.Event | None = None  # if somebody waits for one
        self._slots = anyio.Semaphore(REQUESTS_IN_FLIGHT_MAX, fast_acquire=True)
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._something_to_write = anyio.Event()
        self._written: anyio.Event | None = None  # if somebody waits for room
        self._received_count = 0
        self._ping = ping
        self._answer_s = answer_s
        self._scope = anyio.CancelScope()
        self._failure: DelayServerError | None = None
        self._retired = False

    @property
    def closed(self) -> bool:
        """Whether it has failed or was closed. It never opens again."""
        return self._failure is not None

    async def run(self) -> None:
        """Move bytes until the connection fails or is closed. Returns then, and raises nothing."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    tasks.start_soon(self._watch_silence)
                    await self._read()
                    tasks.cancel_scope.cancel()
        finally:
            self.close()
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(self._stream)

    def close(self, failure: DelayServerError | None = None) -> None:
        """Fail all requests in flight and stop `run`; may be called again."""
        if self._failure is None:
            self._failure = failure or ConnectionLost("the client closed the connection")
        for waiter in self._waiters.values():
            waiter.fail(copied(self._failure))
        self._waiters.clear()
        self._make_room()
        self._note_late()
        self._scope.cancel()

    def retire(self) -> None:
        """Close when the requests in flight have their replies: no more will come."""
        self._retired = True
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._retired and not self._waiters:
            self.close()

    async def exchange(self, request_id: int, frame: bytes, timeout_s: float, late: Late | None = None) -> ReplyFrame:
        """Send a request's frame and wait for its reply: ``timeout_s`` at most for its turn, and as long again for the
        reply. Raises `QueueFull` if its turn does not come, and `ConnectionLost`, `RequestTimedOut` or a protocol error.

        ``late`` gets a reply that comes when the caller was cancelled, or no longer waits.
        """
        await self._turn(timeout_s)
        received_count = self._received_count
        try:
            # `fail_after` costs twice as much.
            with anyio.CancelScope(deadline=anyio.current_time() + timeout_s):
                return await self._exchange(request_id, frame, late)
            if self._received_count == received_count:
                # Not one byte in all that time: the server is gone, and other requests would wait in vain.
                self.close(ConnectionLost(f"the server sent nothing for {timeout_s:g} s"))
            raise RequestTimedOut(f"no reply within {timeout_s:g} s; the result is unknown")
        finally:
            self._slots.release()

    async def send(self, frame: bytes, timeout_s: float) -> None:
        """Send a request that gets no reply. Returns when the frame is on its way to the kernel: ``timeout_s`` at most for
        its turn. Raises `QueueFull`, `ConnectionLost`.
        """
        await self._turn(timeout_s)
        self._slots.release()
        if self._failure is not None:
            raise ConnectionLost(f"the connection is closed: {self._failure}")
        self._leave(frame)

    def post(self, frame: bytes, request_id: int | None = None) -> None:
        """Send a request without waiting for its reply. A closed connection drops it. With its ``request_id``,
        `late_replies` waits for the reply too.
        """
        if self._failure is None:
            self._leave(frame)
            if request_id is not None and len(self._late) < LATE_MAX:
                self._late[request_id] = _drop

    async def late_replies(self) -> None:
        """Wait until `Late` calls have all replies that are still to come, or the connection has ended."""
        while self._late and self._failure is None:
            self._late_came = self._late_came or anyio.Event()
            await self._late_came.wait()

    def _note_late(self) -> None:
        if self._late_came is not None:
            self._late_came.set()
            self._late_came = None

    def _leave(self, frame: bytes) -> None:
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        self._something_to_write.set()

    async def _turn(self, timeout_s: float) -> None:
        """Take a slot, and wait until more may be written. This time does not count as time of the server: the server does
        not know the request yet.
        """
        if self._slots.value and self._unwritten_bytes <= UNWRITTEN_BYTES_MAX:
            self._slots.acquire_nowait()
            return
        with anyio.move_on_after(timeout_s):
            await self._slots.acquire()
            try:
                while self._unwritten_bytes > UNWRITTEN_BYTES_MAX and self._failure is None:
                    self._written = self._written or anyio.Event()
                    await self._written.wait()
            except BaseException:
                self._slots.release()
                raise
            return
        raise QueueFull(f"nothing was sent for {timeout_s:g} s: too many requests are in flight on this connection")

    def _make_room(self) -> None:
        if self._written is not None:
            self._written.set()
            self._written = None

    async def _exchange(self, request_id: int, frame: bytes, late: Late | None) -> ReplyFrame:
        if self._failure is not None:
            raise ConnectionLost(f"the connection is closed: {self._failure}")
        waiter = self._waiters[request_id] = _Waiter()
        self._leave(frame)
        try:
            await waiter.arrived.wait()
        except BaseException:
            if late is not None and waiter.reply is not None:  # it came in the step in which the caller was cancelled
                late(waiter.reply)
            elif late is not None and len(self._late) < LATE_MAX:
                self._late[request_id] = late
            raise
        finally:
            self._waiters.pop(request_id, None)
            self._close_if_done()
        if waiter.failure is not None:
            raise waiter.failure
        assert waiter.reply is not None
        return waiter.reply

    async def _write(self) -> None:
        try:
            while True:
                await self._something_to_write.wait()
                self._something_to_write = anyio.Event()
                # All waiting frames go out at once, so many small requests cost one system call.
                data = b"".join(self._unwritten)
                self._unwritten.clear()
                await self._stream.send(data)
                self._unwritten_bytes -= len(data)
                self._make_room()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
            self.close(ConnectionLost(f"the connection broke: {exc}"))

    async def _watch_silence(self) -> None:
        """Close the connection if requests wait, and nothing comes behind a ping."""
        while True:
            received_count = self._received_count
            await anyio.sleep(SILENCE_S)
            if not self._waiters or self._received_count != received_count:
                continue
            self.post(self._ping())
            with anyio.move_on_after(self._answer_s):
                while self._received_count == received_count:
                    await anyio.sleep(SILENCE_S)
            if self._waiters and self._received_count == received_count:
                self.close(ConnectionLost(f"the server did not answer a ping within {self._answer_s:g} s"))

    async def _read(self) -> None:
        try:
            while True:
                data = await self._stream.receive(_RECEIVE_BYTES)
                self._received_count += 1
                for reply in self._replies.feed(bytes(data)):
                    if reply.refused is not None:
                        self._note_refused(reply.refused)
                        reply = reply._replace(refused=None)  # noqa: PLW2901
                    waiter = self._waiters.get(reply.id)
                    if waiter is not None:
                        waiter.answer(reply)
                    elif (late := self._late.pop(reply.id, None)) is not None:
                        late(reply)
                        self._note_late()
                self._replies.check()
        except anyio.EndOfStream:
            self.close(self._replies.ended)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
            self.close(ConnectionLost(f"the connection broke: {exc}"))
        except DelayServerError as error:
            self.close(error)
