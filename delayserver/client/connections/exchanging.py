"""What blocking connections share: one request at a time, for a limited time. Any failure closes the connection."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from delayserver.client.calls.core import ReplyStream
from delayserver.protocol.errors import ConnectionLost, DelayServerError, RequestTimedOut
from delayserver.protocol.frames import ReplyFrame

# A poll waits at most about this long: 2^31 ms.
_TIMEOUT_S_MAX: Final = 2_000_000.0

Late = Callable[[], None]
"""Sees to a reply whose caller has gone. It may use the connection, which closes then."""


class ExchangingConnection(ABC):
    """One blocking connection over some stream of bytes. The client retries after a failure."""

    def __init__(self, noticed: Callable[[ReplyFrame], None]) -> None:
        """``noticed`` gets the notices of the server, in `exchange` and in `read_ahead`."""
        self._replies = ReplyStream(noticed)
        self._process = os.getpid()
        self._kind = threading.Lock
        self._closed = False
        # Whether a part of a frame was sent, and the rest was not.
        self._half_sent = False

    @property
    def _here(self) -> bool:
        """Whether this process made the connection, with the present kind of threads and sockets (see `CallTurns.lock`).
        A forked process would take the replies of its parent.
        """
        return self._process == os.getpid() and self._kind is threading.Lock

    @abstractmethod
    def close(self) -> None:
        """Close; may be called again."""

    @abstractmethod
    def _read_now(self) -> bytes | None:
        """Bytes that have come, empty at the end of the stream. None if none have come. Raises OSError."""

    def read_ahead(self) -> bool:
        """Read the notices that came since the last exchange. False if the connection is of no more use: it has ended, or
        other bytes came without a request.
        """
        try:
            while (data := self._read_now()) is not None:
                if self._replies.feed(data) or self._replies.failure is not None:
                    return False
        except (DelayServerError, OSError):
            return False
        return True

    @abstractmethod
    def _exchange(self, request_id: int, frame: bytes, timeout_s: float) -> ReplyFrame:
        """`exchange`, which raises TimeoutError or OSError."""

    @abstractmethod
    def _send_all(self, frame: bytes, deadline_s: float) -> None:
        """Send all of a frame. Raises TimeoutError, OSError."""

    def exchange(self, request_id: int, frame: bytes, timeout_s: float, late: Late | None = None) -> ReplyFrame:
        """Send a request's frame and wait for its reply. Raises `ConnectionLost`, `RequestTimedOut` or a protocol error, and
        closes the connection then. Before that ``late`` is called if the reply can still come.
        """
        try:
            reply = self._exchange(request_id, frame, min(timeout_s, _TIMEOUT_S_MAX))
        except TimeoutError as exc:
            self._leave(late)
            raise RequestTimedOut(f"no reply within {timeout_s:g} s; the result is unknown") from exc
        except OSError as exc:
            self.close()
            raise ConnectionLost(f"the connection broke: {exc}") from exc
        except DelayServerError:
            self.close()
            raise
        # Also after an interrupt: a late reply must not reach the next request.
        except BaseException:
            self._leave(late)
            raise
        if self._replies.failure is not None:
            self.close()
        return reply

    def _leave(self, late: Late | None) -> None:
        """Close, with a last use of the connection for the reply that nobody waits for any more."""
        try:
            if late is not None and not self._closed and not self._half_sent:
                late()
        finally:
            self.close()

    def send(self, frame: bytes, timeout_s: float) -> None:
        """Send a request that gets no reply. Raises and closes as `exchange` does."""
        try:
            self._send_all(frame, time.monotonic() + min(timeout_s, _TIMEOUT_S_MAX))
        except TimeoutError as exc:
            self.close()
            raise RequestTimedOut(f"not sent within {timeout_s:g} s") from exc
        except OSError as exc:
            self.close()
            raise ConnectionLost(f"the connection broke: {exc}") from exc
        except BaseException:
            self.close()
            raise


def remaining_s(deadline_s: float) -> float:
    """Seconds until the deadline. Raises TimeoutError after it."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
