"""The last block of a file and what is appended to it, as whole blocks that can be written past the page cache.

A sync of a page costs the kernel two to three times what the disk needs for the same block when it is handed over
directly. Such a write takes whole, aligned blocks: this keeps the bytes that stand in the last one already.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.disk.filesystem import BLOCK_BYTES, Buffer, File, aligned_memory

# Larger groups are as quick through the page cache, and a reader then finds them there.
THROUGH_BYTES_MAX = 64 * 1024


_ZEROS = memoryview(bytes(BLOCK_BYTES))


class TailImage:
    """Appends to a file past the page cache; serves one file after another. From the end of the file up to the end of its
    block there must be zeros."""

    __slots__ = ("_end", "_file", "_image")

    def __init__(self) -> None:
        self._image = aligned_memory(THROUGH_BYTES_MAX + 2 * BLOCK_BYTES)
        # The image begins at the block in which the end of this file lies. None: it holds nothing.
        self._file: File | None = None
        self._end = 0

    def append(self, file: File, end: int, buffers: Sequence[Buffer]) -> bool:
        """Write buffers, together at most `THROUGH_BYTES_MAX`, behind `end`, durably. False where the file system cannot do
        that; then nothing was written.

        Raises DiskFullError, StoreError (some of it may have been written), SyncFailedError.
        """
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        image, held = self._image, end % BLOCK_BYTES
        start = end - held
        if self._file is not file or self._end != end:
            image[:held] = file.pread(start, held)
        stop = held + len(data)
        blocks = -(-stop // BLOCK_BYTES) * BLOCK_BYTES
        image[held:stop] = data
        image[stop:blocks] = _ZEROS[: blocks - stop]
        self._file = None
        if not file.write_through(start, image[:blocks]):
            return False
        last = stop // BLOCK_BYTES * BLOCK_BYTES
        if last:
            image[: stop - last] = image[last:stop]
        self._file, self._end = file, start + stop
        return True
