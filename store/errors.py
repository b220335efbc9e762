"""The errors of the store. Every error says what happened, where, and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """Base of all errors that the world causes. A bug of the caller raises none of them."""


class CorruptionError(StoreError):
    """Bytes that were durable once do not carry their checksum any more: the disk's fault, never a torn tail.

    What to do: `delayserver recover check` names what is affected, `recover repair` moves it aside.
    """

    errno = 0
    """The errno of the system in an UnreadableError, 0 otherwise."""

    def __init__(self, path: str, offset: int, detail: str) -> None:
        super().__init__(f"{path}: corrupt at offset {offset}: {detail}")
        self.path = path
        self.offset = offset
        self.detail = detail


class UnreadableError(CorruptionError):
    """The disk cannot read bytes that it holds (EIO): a bad sector, a controller that fails. The bytes may be whole.

    It is a `CorruptionError` because the same rows are held back. The server does not report it as corruption: it reads the
    bytes again later, and reports an error of the disk. `errno` is that of the system.
    """

    def __init__(self, path: str, offset: int, detail: str, errno: int) -> None:
        StoreError.__init__(self, f"{path}: unreadable at offset {offset}: {detail}")
        self.path = path
        self.offset = offset
        self.detail = detail
        self.errno = errno


class DiskError(StoreError):
    """The system refused an operation on a file: `path`, `operation` and `errno` say which and why, the text what to do.

    Nothing is known to be wrong with the bytes. A caller that can wait tries again; a caller that must write ends the
    server by this name.
    """

    def __init__(self, path: str, operation: str, errno: int, detail: str) -> None:
        super().__init__(f"{path}: cannot {operation}: {detail}")
        self.path = path
        self.operation = operation
        self.errno = errno


class FormatError(StoreError):
    """A file is not ours, of another server, or of a format version this program does not know."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"{path}: {detail}")
        self.path = path
        self.detail = detail

    def as_damage(self) -> CorruptionError:
        """For readers that hold the rows of such a file back, as those of a damaged one."""
        return CorruptionError(self.path, 0, self.detail)


class UpgradeNeededError(StoreError):
    """A record of the shared log was written by a newer program. It may count, so this program must not pass over it.

    What to do: the member stops following, by this name, and is started again with the program of the other members.
    `position` is the place of the record in the log.
    """

    def __init__(self, position: int, detail: str) -> None:
        super().__init__(f"position {position} of the shared log: {detail}; upgrade this member")
        self.position = position
        self.detail = detail


class DivergedError(StoreError):
    """A member of a cluster has decided something else than its primary, from the same log.

    What to do: the member stops, by this name, and never leads. Its directory is made anew from a backup.
    `position` is the place in the log where they differed, `same` the last one where they were the same; 0: none is known.
    """

    def __init__(self, position: int, same: int, detail: str) -> None:
        super().__init__(
            f"position {position} of the shared log: what this member decided up to there is not what the primary decided "
            f"({detail}); " + (f"at position {same} it was the same" if same else "no earlier position was compared")
        )
        self.position = position
        self.same = same
        self.detail = detail


class DiskFullError(StoreError):
    """The disk has no space left. The call made nothing durable. The caller may try again when there is space.

    `needed_bytes` is the room that the call asked for, 0 where the error does not know it."""

    def __init__(self, text: str, needed_bytes: int = 0) -> None:
        super().__init__(text)
        self.needed_bytes = needed_bytes


class TooManyFilesError(DiskError, DiskFullError):
    """The process, or the machine, has no file descriptor left. The call did nothing. It succeeds as soon as another file
    is closed, so each caller that waits for a full disk waits for this too."""


class SyncFailedError(StoreError):
    """A sync failed. The kernel may have dropped the dirty pages, so a later sync that succeeds proves nothing.

    The file takes no more records in this process. The server must stop accepting, and recover by a restart.
    """


class LockedError(StoreError):
    """Another process works on this data directory. Stop it first, or give another directory."""


class TableFullError(StoreError):
    """A bounded table (subjects) has no room for a new entry. Raise its bound in the settings or use fewer names."""
