"""Makes the operations of the blocking client from those of the asynchronous one: ``python -m ops.blocking_client``.

Each file `asynchronous/*operations.py` of the client gets a twin in `blocking/`.
Both are the same text, but for ``async``, ``await`` and some names. Token by token, so that comments and lines stay.

The twins are committed, and a test fails when they are not current. A build step could make them, and git could ignore them.
But each pull, checkout or bisect would then leave the operations of another commit in an editable install. Programs would
run them without a word. Committed, they need no build in a plain checkout, for mypy, in an editor or for the site.
`.gitattributes` folds them in a review.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[1] / "delayserver" / "client"
SOURCES: Final = sorted((CLIENT / "asynchronous").glob("*operations.py"))

NAMES: Final = {
    "AsyncBatcher": "Batcher",
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "AsyncPublishClient": "PublishClient",
    "AsyncPublishSender": "PublishSender",
    "AsyncSender": "Sender",
    "AsyncTransaction": "Transaction",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "asynchronous": "blocking",
}

_NAME: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")
_CLASS: Final = re.compile(r"\bAsync(\w*Operations)\b")


def target_of(source: Path) -> Path:
    """The file of the blocking twin."""
    return CLIENT / "blocking" / source.name


def blocking(source: str, name: str) -> str:
    """The blocking twin of an asynchronous module: without ``async`` and ``await``, and with other names.

    `name` is the file name of the source."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    # From the end on, so that the places of the tokens before stay true.
    for token, behind in reversed(list(itertools.pairwise(tokens))):
        if token.type == tokenize.NAME and token.string in ("async", "await"):
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + lines[row - 1][behind.start[1] :]
    text = _CLASS.sub(r"Blocking\1", _NAME.sub(lambda name: NAMES[name[0]], "".join(lines)))
    return f"# Made by `python -m ops.blocking_client` from asynchronous/{name}. Change that file.\n{text}"


if __name__ == "__main__":
    for path in SOURCES:
        target_of(path).write_text(blocking(path.read_text(), path.name))
