"""A toy kind of target, as somebody adds one: appends the bodies of messages to a file, one a line.

It writes in a task of its own, so that deliveries of several workers share one sync. Bodies with a line break are rejected.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

import trio

from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.kinds import Capabilities, TargetKind
from delayserver.targets.node_options import NodeOptions
from delayserver.targets.target import DeliveryError, Target
from store.records.batches import StoredBatch
from store.records.column_batch import ragged_rows


@dataclass(frozen=True)
class LinesOptions(NodeOptions):
    """`end`: what ends a line. `line_bytes_max`: longer bodies are rejected."""

    end: str
    line_bytes_max: int = 1 << 20

    def __post_init__(self) -> None:
        if len(self.end) != 1:
            raise ValueError(f"end: expected one character, not {len(self.end)}")


class _Lines:
    """Lines of one delivery that wait for the next write, and how it ended. The result is the delivery's own: the next
    write may end before its task goes on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.written = trio.Event()
        self.error = ""

    def end(self, error: str) -> None:
        """The lines are on the disk; or not, for this reason."""
        self.error = error
        self.written.set()


class LinesTarget(Target):
    """Appends to the file that the address names."""

    def __init__(self, address: str, options: LinesOptions, runtime: Runtime) -> None:
        self.address = address
        self._path = address.removeprefix("lines://")
        self._options = options
        self._workers = runtime.workers
        self._waiting: list[_Lines] = []
        self._asked = Bell()

    async def run(self) -> None:
        while True:
            self._asked.hush()
            waiting, self._waiting = self._waiting, []
            if waiting:
                error = await self._workers.run(partial(self._append, b"".join([lines.data for lines in waiting])))
                for lines in waiting:
                    lines.end(error)
            await self._asked.rung()

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        end = self._options.end.encode()
        answer = Answer.stored(len(batch))
        lines = []
        for place, body in enumerate(ragged_rows(batch.bodies, batch.bodies_length)):
            if end in body or len(body) > self._options.line_bytes_max:
                answer.rows[place] = RowAnswer.REJECTED
            else:
                lines.append(body + end)
        mine = _Lines(b"".join(lines))
        self._waiting.append(mine)
        self._asked.ring()
        await mine.written.wait()
        if mine.error:
            raise DeliveryError(mine.error, known=False)
        return Answer(answer.rows, "the body is too long for a line, or has the end of a line in it")

    def _append(self, lines: bytes) -> str:
        """Any thread. Returns the error; "" for none. A crash or a failed write can leave a torn line, which gets its end
        first."""
        try:
            with open(self._path, "ab+") as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    lines = lines if file.read(1) == self._options.end.encode() else self._options.end.encode() + lines
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(directory)  # a new file is there after a crash only when its directory says so
            finally:
                os.close(directory)
        except OSError as error:
            return str(error)
        return ""


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
