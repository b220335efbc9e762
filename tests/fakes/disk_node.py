"""The content of one file of the fake disk: what the process sees, and what the disk still has of it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random

PAGE = 4096


def whole_pages(length: int) -> int:
    """`length` rounded up to pages."""
    return (length + PAGE - 1) // PAGE * PAGE


@dataclass(slots=True)
class Node:
    """A file's content. `data` may be shorter than `size`: the rest reads as zeros.

    `saved`: pages written since the last sync, as the disk still has them. `lost`: the same for pages whose sync
    failed. `blocks`: bytes taken of the disk's space. `linked`: whether a directory has it. `number` tells it from others,
    `changes` counts writes and cuts, `second_names` its names but one.
    """

    data: bytearray = field(default_factory=bytearray)
    size: int = 0
    blocks: int = 0
    durable_size: int = 0
    saved: dict[int, bytes] = field(default_factory=dict)
    lost: dict[int, bytes] = field(default_factory=dict)
    sync_failed: bool = False
    linked: bool = True
    number: int = field(default_factory=itertools.count(1).__next__)
    changes: int = 0
    second_names: int = 0

    def save(self, start: int, stop: int) -> None:
        """Keep the pages of a range as they are on the disk, before it is written."""
        saved, lost, data = self.saved, self.lost, self.data
        for page in range(start // PAGE, (stop + PAGE - 1) // PAGE):
            if page not in saved:
                saved[page] = lost.pop(page) if page in lost else bytes(data[page * PAGE : (page + 1) * PAGE])

    def write(self, offset: int, content: bytes) -> None:
        """Overwrite or extend."""
        data, end = self.data, offset + len(content)
        self.changes += 1
        self.save(offset, end)
        if offset > len(data):
            data.extend(bytes(offset - len(data)))
        data[offset:end] = content
        self.size = max(self.size, end)

    def resize(self, length: int) -> None:
        """Cut off or extend by zeros."""
        self.changes += 1
        if length < len(self.data):
            self.save(length, len(self.data))
            del self.data[length:]
        self.size = length

    def revert(self, page: int, content: bytes) -> None:
        """Put a page back as it was."""
        start = page * PAGE
        if len(self.data) < start + len(content):
            self.data.extend(bytes(start + len(content) - len(self.data)))
        stop = min(start + PAGE, len(self.data))
        self.data[start:stop] = content + bytes(stop - start - len(content))

    def settle_pages(self, start: int, stop: int) -> None:
        """These whole pages are durable, and the size with them."""
        for page in range(start // PAGE, stop // PAGE):
            self.saved.pop(page, None)
            self.lost.pop(page, None)
        self.durable_size = self.size

    def fail_sync(self) -> None:
        """The kernel takes for clean what the disk did not get."""
        self.sync_failed = True
        self.lost.update({page: content for page, content in self.saved.items() if page not in self.lost})
        self.saved.clear()

    def settle(self) -> None:
        """What is there now is durable."""
        self.saved.clear()
        self.lost.clear()
        self.durable_size = self.size
        self.sync_failed = False

    def durable(self) -> bytes:
        """What a loss of power would leave at the least: no page that was not synced."""
        kept = Node(bytearray(self.data), self.size)
        for page, content in (*self.saved.items(), *self.lost.items()):
            kept.revert(page, content)
        return bytes(kept.data[: self.durable_size]).ljust(self.durable_size, b"\0")

    def forget(self, random: Random, torn: dict[int, bytes]) -> None:
        """The power failed: of what was not synced each page is as it was written, as it was before, or torn; the size
        is the old one or the new one."""
        new_size = self.size
        for page, content in (*self.lost.items(), *self.saved.items()):
            if page in torn:
                self.revert(page, torn[page])
            elif random.random() < 0.5:
                self.revert(page, content)
        self.size = new_size if random.random() < 0.5 else self.durable_size
        del self.data[self.size :]
        self.settle()
