"""A toy kind of target, as somebody adds one: appends the bodies of messages to a file, one a line.

It writes in a task of its own, so that deliveries of several workers share one sync. Bodies with a line break are rejected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import trio

from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.kinds import Capabilities, TargetKind
from delayserver.targets.options import NodeOptions
from delayserver.targets.target import DeliveryError, Target
from store.records.batches import StoredBatch


@dataclass(frozen=True)
class LinesOptions(NodeOptions):
    """`end`: what ends a line. `line_bytes_max`: longer bodies are rejected."""

    end: str
    line_bytes_max: int = 1 << 20

    def __post_init__(self) -> None:
        if len(self.end) != 1:
            raise ValueError(f"end: expected one character, not {len(self.end)}")


class LinesTarget(Target):
    """Appends to the file that the address names."""

    def __init__(self, address: str, options: LinesOptions, runtime: Runtime) -> None:
        self.address = address
        self._path = address.removeprefix("lines://")
        self._options = options
        self._workers = runtime.workers
        # Lines of deliveries that wait for the next write, and what to set when they are on the disk.
        self._waiting: list[tuple[bytes, trio.Event]] = []
        self._error = ""
        self._asked = Bell()

    async def run(self) -> None:
        while True:
            self._asked.hush()
            waiting, self._waiting = self._waiting, []
            if waiting:
                self._error = await self._workers.run(partial(self._append, b"".join([lines for lines, _ in waiting])))
                for _, written in waiting:
                    written.set()
            await self._asked.rung()

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        end = self._options.end.encode()
        answer = Answer.stored(len(batch))
        lines = []
        for place, body in enumerate(_bodies(batch)):
            if end in body or len(body) > self._options.line_bytes_max:
                answer.rows[place] = RowAnswer.REJECTED
            else:
                lines.append(body + end)
        written = trio.Event()
        self._waiting.append((b"".join(lines), written))
        self._asked.ring()
        await written.wait()
        if self._error:
            raise DeliveryError(self._error, known=False)
        return Answer(answer.rows, "the body is too long for a line, or has the end of a line in it")

    def _append(self, lines: bytes) -> str:
        """Any thread. Returns the error; "" for none."""
        try:
            with open(self._path, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return str(error)
        return ""


def _bodies(batch: StoredBatch) -> Iterator[bytes]:
    stops = np.cumsum(batch.bodies_length).tolist()
    return (bytes(batch.bodies[start:stop]) for start, stop in zip([0, *stops], stops, strict=False))


def _read_address(text: str) -> str:
    if not text.startswith("lines:///"):
        raise ValueError(f"{text[:64]!r} is no address: write lines:///PATH")
    return text


LINES = TargetKind(
    "lines",
    lambda _address, _options: Capabilities(keeps_keys=True),
    lambda address, options, around: LinesTarget(address, options, around.runtime),
    _read_address,
    LinesOptions,
)
