"""The length of the windows of a data directory, read from the headers of its files."""

from __future__ import annotations

from contextlib import suppress

from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.logs.due_windows import check_window_ms
from store.records.file_header import FILE_HEADER_BYTES, decode_file_header


def find_span_ms(fs: FileSystem, path: str) -> int:
    """The span in the header of any file of a window, 0 where no header can be read."""
    for log in ("schedule_log", "dispatch_log"):
        for day in fs.listdir(f"{path}/{log}"):
            for name in fs.listdir(f"{path}/{log}/{day}"):
                if name == "day.log" or not name.endswith(".log"):
                    continue
                with suppress(StoreError, FileNotFoundError, ValueError):
                    file = fs.open(f"{path}/{log}/{day}/{name}", write=False)
                    try:
                        span_ms = decode_file_header(file.pread(0, FILE_HEADER_BYTES), name).span_ms
                    finally:
                        file.close()
                    if span_ms:
                        check_window_ms(span_ms)
                        return span_ms
    return 0
