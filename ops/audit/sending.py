"""Sends message rows to one server in requests of the size that it takes, and again if it is busy.

The task reads the next rows and derives their ids while requests are in flight. So a round trip and a sync of the
server's disk cost nothing while the task is busy itself.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from delayserver.client import Client, RejectedRow
from delayserver.protocol.errors import DelayServerError, FrameTooLarge
from ops.audit.message_rows import MessageRows

# The longest wait for a server that is full. Then the task fails, and Spark tries it elsewhere or later.
_BUSY_S_MAX = 120.0
# Batches that wait behind the one in flight: enough that the thread never idles, few enough for the memory.
_WAITING_MAX = 2
# A request takes at most this share of the largest frame, so that ids and properties fit beside the bodies.
_FRAME_SHARE = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """Counts of sent rows."""

    accepted: int
    rejected: int

    def __add__(self, other: Sent) -> Sent:
        return Sent(self.accepted + other.accepted, self.rejected + other.rejected)


class Sender:
    """One connection with its own thread. `fail`: a row that is refused for good raises ValueError, else it is counted.
    The end of the `with` block drops waiting rows, waits for the request in flight, and closes the connection."""

    def __init__(self, client: Client, *, fail: bool) -> None:
        self._client = client
        self._fail = fail
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="delayserver-send")
        self._under_way: deque[Future[Sent]] = deque()
        self._sent = Sent(0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def send(self, rows: MessageRows) -> None:
        """Sends rows behind the earlier ones; waits while too many are in flight. Raises errors of earlier rows."""
        self._under_way.append(self._thread.submit(self._all, rows))
        while len(self._under_way) > _WAITING_MAX:
            self._sent += self._under_way.popleft().result()

    def flush(self) -> Sent:
        """Waits until all rows are durable, and returns their counts. Raises named errors of the client."""
        while self._under_way:
            self._sent += self._under_way.popleft().result()
        return self._sent

    def _all(self, rows: MessageRows) -> Sent:
        total = Sent(0, 0)
        if not len(rows):
            return total
        limits = self._client.connect().limits
        start = 0
        while start < len(rows):
            room = int(rows.offsets[start]) + limits.frame_bytes_max // _FRAME_SHARE
            fitting = int(np.searchsorted(rows.offsets, room, side="right")) - 1
            stop = min(max(fitting, start + 1), start + limits.batch_messages_max, len(rows))
            total += self._fitted(rows.slice(start, stop))
            start = stop
        return total

    def _fitted(self, rows: MessageRows) -> Sent:
        """Sends one request, or its halves if large properties and ids make it larger than a frame."""
        try:
            return self._request(rows)
        except FrameTooLarge:
            half = len(rows) // 2
            if not half:
                raise
        return self._fitted(rows.slice(0, half)) + self._fitted(rows.slice(half, len(rows)))

    def _request(self, rows: MessageRows) -> Sent:
        """Sends one request, and sends it again for rows that were refused because the server was busy."""
        sent = Sent(0, 0)
        deadline_s = time.monotonic() + _BUSY_S_MAX
        while True:
            accepted, refused = self._once(rows, deadline_s)
            sent += Sent(accepted, 0)
            busy = [row for row in refused if row.error.retry_after_ms is not None]
            final = len(refused) - len(busy)
            if final and self._fail:
                first = next(row for row in refused if row.error.retry_after_ms is None)
                message_id = rows.message_ids[first.index]
                raise ValueError(
                    f"the server refuses message {message_id}: {first.error}; option rejected=skip goes on"
                )
            sent += Sent(0, final)
            if not busy:
                return sent
            if time.monotonic() > deadline_s:
                raise busy[0].error
            time.sleep(max(row.error.retry_after_ms or 0 for row in busy) / 1000)
            again = np.zeros(len(rows), bool)
            again[[row.index for row in busy]] = True
            rows = rows.take(again)

    def _once(self, rows: MessageRows, deadline_s: float) -> tuple[int, list[RejectedRow]]:
        while True:
            try:
                result = self._client.send_columns(
                    rows.subjects,
                    rows.due_ms,
                    rows.blob(),
                    body_length=np.diff(rows.offsets),
                    subject_index=rows.subject_index,
                    message_ids=rows.message_ids,
                    properties=rows.properties,
                    expires_ms=rows.expires_ms,
                    count=len(rows),
                )
                return result.accepted, result.rejected
            except DelayServerError as error:
                if error.retry_after_ms is None or time.monotonic() > deadline_s:
                    raise
                time.sleep(error.retry_after_ms / 1000)
