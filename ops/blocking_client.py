"""Makes the operations of the blocking client from those of the asynchronous one: ``python -m ops.blocking_client``.

Both are the same text, but for ``async``, ``await`` and some names. Token by token, so that comments and lines stay.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[1] / "delayserver" / "client"
SOURCE: Final = CLIENT / "async_operations.py"
TARGET: Final = CLIENT / "blocking_operations.py"

NAMES: Final = {
    "AsyncBatcher": "Batcher",
    "AsyncClient": "Client",
    "AsyncOperations": "BlockingOperations",
    "AsyncSender": "Sender",
    "async_batching": "batching",
    "asynchronous": "blocking",
}

_NAME: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")


def blocking(source: str) -> str:
    """The blocking twin of an asynchronous module: without ``async`` and ``await``, and with the names of `NAMES`."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # From the end on, so that the places of the tokens before stay true.
    for token, behind in reversed(list(itertools.pairwise(tokens))):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + lines[row - 1][behind.start[1] :]
    text = _NAME.sub(lambda name: NAMES[name[0]], "".join(lines))
    return f"# Made by `python -m ops.blocking_client` from {SOURCE.name}. Change that file.\n{text}"


if __name__ == "__main__":
    TARGET.write_text(blocking(SOURCE.read_text()))
