"""What can go wrong with bytes on a disk, by name. Every error says what happened, where, and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """Base of everything that `store` raises about the world (not about a caller's bug)."""


class CorruptionError(StoreError):
    """Bytes that were durable once do not carry their checksum any more: the disk's fault, never a torn tail.

    What to do: `delayserver recover check` names what is affected, `recover repair` moves it aside.
    """

    def __init__(self, path: str, offset: int, detail: str) -> None:
        super().__init__(f"{path}: corrupt at offset {offset}: {detail}")
        self.path = path
        self.offset = offset
        self.detail = detail


class FormatError(StoreError):
    """A file is not ours, of another server, or of a format version this program does not know."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail


class DiskFullError(StoreError):
    """No space left: nothing was made durable by this call, and it may be tried again when space returns."""


class SyncFailedError(StoreError):
    """A sync failed. The kernel may have dropped the dirty pages, so a later sync that succeeds proves nothing:
    the file is final for this process, and the server must stop accepting and recover by a restart."""


class LockedError(StoreError):
    """Another process works on this data directory. Stop it first, or give another directory."""


class TableFullError(StoreError):
    """A bounded table (subjects) has no room for a new entry. Raise its bound in the settings or use fewer names."""
