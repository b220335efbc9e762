"""`POST /v1/messages` with newline-delimited JSON: a stream of rows in, a stream of results out.

While some rows are on their way to the server, the next ones are read. Memory is bounded by `CHUNKS_MAX` chunks of rows, and
by the room that bodies of all requests share; a client that does not read its results is not read from either.
"""

from __future__ import annotations

from typing import Final

import anyio
import anyio.abc
import msgspec
from anyio.streams.memory import MemoryObjectSendStream
from starlette.requests import ClientDisconnect

from delayserver.protocol.errors import QueueFull
from delayserver.web.answers import Send
from delayserver.web.bodies import NDJSON, Receive
from delayserver.web.clients import TokenClient
from delayserver.web.problems import Problem, problem_of
from delayserver.web.queries import SendQuery
from delayserver.web.request_memory import Holding
from delayserver.web.request_rows import RequestRows, Result, Row, read_lines
from delayserver.web.schemas import RowProblem, RowsDone

ROWS_MAX: Final = 1024
"""Rows that are read at a time. Reading them takes some ten milliseconds, in which no other request is answered."""
PIECES_MAX: Final = 1024
"""Pieces of a line that are kept, before they are made one: a piece may be one byte."""
CHUNKS_MAX: Final = 4
"""Chunks on their way at the same time: so many are enough that neither gateway nor server waits for the other."""

_encoder = msgspec.json.Encoder()


class LineReader:
    """The rows of a body, as many at a time as have come."""

    def __init__(self, receive: Receive, line_bytes_max: int, holding: Holding, turn: anyio.Lock) -> None:
        """`turn`: of all bodies of lines one is read at a time, and other requests get theirs in between."""
        self._receive = receive
        self._line_bytes_max = line_bytes_max
        self._holding = holding
        self._turn = turn
        # Whole lines that are not read yet; behind them the pieces of a line without an end.
        self._lines = b""
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._more_body = True
        self._refused: Problem | None = None

    @property
    def more(self) -> bool:
        """False behind the last rows."""
        return self._more_body or bool(self._lines) or self._refused is not None

    async def next(self) -> list[Row]:
        """The next rows, perhaps none, not many more than `ROWS_MAX`."""
        if not self._lines and self._refused is None:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._more_body = message.get("more_body", False)
            self._add(message.get("body", b""))
        async with self._turn:
            return self._read()

    def _add(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1 if self._more_body else len(data)
        if end or not self._more_body:
            self._lines, self._rest, self._rest_bytes = b"".join([*self._rest, data[:end]]), [], 0
        self._rest.append(data[end:])
        self._rest_bytes += len(data) - end
        if len(self._rest) > PIECES_MAX:
            self._rest = [b"".join(self._rest)]
        try:
            if self._rest_bytes > self._line_bytes_max:
                raise Problem(413, "body_too_large", f"a line is above {self._line_bytes_max} bytes")
            self._holding.hold(self._rest_bytes)
        except (Problem, QueueFull) as error:
            # No line behind it is read.
            self._more_body, self._rest = False, []
            self._refused = error if isinstance(error, Problem) else problem_of(error)

    def _read(self) -> list[Row]:
        lines, self._lines = self._lines, b""
        if lines.count(b"\n") > ROWS_MAX:
            self._lines = lines.split(b"\n", ROWS_MAX)[-1]
            lines = lines[: len(lines) - len(self._lines)]
        rows = read_lines(lines) if lines else []
        if not self._lines and self._refused is not None:
            rows.append(self._refused)
            self._refused = None
        return rows


class _Chunk:
    """Some rows on their way."""

    def __init__(self, rows: RequestRows) -> None:
        self._rows = rows
        self._done = anyio.Event()
        self._results: list[Result] = []

    async def send(self, client: TokenClient) -> None:
        """Send the rows."""
        self._results = await self._rows.send(client)
        self._done.set()

    async def results(self) -> list[Result]:
        """The results, once they are there."""
        await self._done.wait()
        return self._results


class LineAnswer:
    """The answer to a body of lines, on its way."""

    def __init__(self, client: TokenClient, reader: LineReader, query: SendQuery) -> None:
        self._client = client
        self._reader = reader
        self._only_errors = query.results == "errors"
        self._accepted = 0
        self._refused = 0
        self._gone = False

    async def run(self, send: Send) -> None:
        """Answer row by row until the body ends. Raises `ClientDisconnect`."""
        filled, chunks = anyio.create_memory_object_stream[_Chunk](CHUNKS_MAX)
        headers = [(b"content-type", NDJSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read, tasks, filled)
            async with chunks:
                async for chunk in chunks:
                    lines = self._lines(await chunk.results())
                    if lines:
                        await send({"type": "http.response.body", "body": lines, "more_body": True})
        if self._gone:
            raise ClientDisconnect
        done = _encoder.encode_lines([RowsDone(self._accepted, self._refused)]) if self._only_errors else b""
        await send({"type": "http.response.body", "body": done})

    async def _read(self, tasks: anyio.abc.TaskGroup, filled: MemoryObjectSendStream[_Chunk]) -> None:
        count = 0
        async with filled:
            while self._reader.more:
                try:
                    read = await self._reader.next()
                except ClientDisconnect:
                    self._gone = True
                    tasks.cancel_scope.cancel()
                    return
                if not read:
                    continue
                rows = RequestRows(count)
                await rows.prepare(self._client, read)
                count += len(read)
                chunk = _Chunk(rows)
                tasks.start_soon(chunk.send, self._client)
                try:
                    await filled.send(chunk)
                except anyio.BrokenResourceError:  # The answer is cancelled.
                    return

    def _lines(self, results: list[Result]) -> bytes:
        problems = [result for result in results if isinstance(result, RowProblem)]
        self._refused += len(problems)
        self._accepted += len(results) - len(problems)
        shown = problems if self._only_errors else results
        return _encoder.encode_lines(shown) if shown else b""
