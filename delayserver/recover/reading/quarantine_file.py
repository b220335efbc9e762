"""The names of quarantine files, and the line that each of them begins with.

`quarantine/<number>.quarantine` in the data directory: a JSON object and a newline, then the bytes as they stood. Where the
disk could not read them they are zeros, and `unreadable` of the object holds those ranges, as offsets of the file.
"""

from __future__ import annotations

import json
from typing import Any, Final

from store.disk.filesystem import File
from store.errors import FormatError

FOLDER: Final = "quarantine"
SUFFIX: Final = ".quarantine"
# How much of the first line is read at once.
_STEP_BYTES = 1 << 20


def read_description(file: File) -> dict[str, Any]:
    """The object of the first line, with `bytes`: how many bytes follow it. Raises FormatError where there is none."""
    head, size = b"", file.size()
    while b"\n" not in head and len(head) < size:
        head += file.pread(len(head), _STEP_BYTES)
    line, _, _ = head.partition(b"\n")
    try:
        return dict(json.loads(line)) | {"bytes": max(size - len(line) - 1, 0)}
    except (ValueError, TypeError) as error:
        raise FormatError(file.path, "it does not begin with the line that says what was taken out") from error
