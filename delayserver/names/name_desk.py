"""Where all parts get the codes of names, and have new names checked, counted and stored.

Its only I/O is that of the table of names, which syncs a new name before it returns its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import MessageSettings
from delayserver.names.names_of_tokens import NamesOfTokens
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import (
    DelayServerError,
    DiskFull,
    GroupsFull,
    InvalidArgument,
    StorageFailed,
    SubjectInvalid,
    SubjectsFull,
    TagsFull,
)
from delayserver.runtime.acting import acting
from store.errors import DiskFullError, StoreError, TableFullError
from store.tables.names import CONSUMER_GROUP, OWN, SUBJECT, TAG, Names

# Bytes of UTF-8. A tag is a key, not data, as a message id is.
TAG_BYTES_MAX = 255
_FULL = {SUBJECT: SubjectsFull, CONSUMER_GROUP: GroupsFull, TAG: TagsFull}


class NameDesk:
    """Names to codes and codes to names, for the event loop. The only writer of the table while the server runs."""

    def __init__(
        self, table: Names, settings: MessageSettings, storage_failed: Callable[[StorageFailed], None]
    ) -> None:
        """`storage_failed` is called if a name cannot be stored; the server must then stop."""
        self._table = table
        self._settings = settings
        self._storage_failed = storage_failed
        self._names_of_tokens = NamesOfTokens(table)
        # Subjects without a message so far for which consumers wait.
        self._awaited: dict[str, trio.Event] = {}

    def lead(self) -> None:
        """This member of a cluster leads: what the tokens have added since its start came by the log."""
        self._names_of_tokens.read()

    # -- looking up

    def name(self, code: int) -> str:
        """The text of a code. Raises KeyError for a code that was never given out."""
        return self._table.name(code)

    def code(self, kind: int, name: str) -> int:
        """The code of a name, 0 if it is not stored."""
        return self._table.code(kind, name)

    def known_subject(self, subject: object) -> int:
        """The code of a subject, 0 for a new one, which is checked but not stored. Raises SubjectInvalid."""
        code = self._table.code(SUBJECT, subject) if type(subject) is str else 0
        if not code:
            self.check_subject(subject)
        return code

    def known(self, subject: object, group: object) -> tuple[int, int]:
        """The codes of a subject and a consumer group, 0 for a new one, which is checked but not stored. Raises
        SubjectInvalid."""
        subject_code = self.known_subject(subject)
        group_code = self._table.code(CONSUMER_GROUP, group) if type(group) is str else 0
        if not group_code:
            self.check_subject(group, "group")
        return subject_code, group_code

    # -- storing

    def subject(self, subject: object) -> int:
        """The code of a subject, stored if it is new. Raises SubjectInvalid and the errors of `intern`."""
        if type(subject) is str:
            code = self._table.code(SUBJECT, subject)
            if code:
                return code
        return int(self.intern(SUBJECT, [self.check_subject(subject)])[0])

    def group(self, group: str) -> int:
        """The code of a consumer group, stored if it is new; its name is valid. Raises the errors of `intern`."""
        return int(self.intern(CONSUMER_GROUP, [group])[0])

    def tag(self, tag: object) -> int:
        """The code of a tag, stored if it is new. Raises InvalidArgument and the errors of `intern`."""
        if type(tag) is str:
            code = self._table.code(TAG, tag)
            if code:
                return code
        return int(self.intern(TAG, [check_tag(tag)])[0])

    def fitting(self, kind: int, names: Sequence[str]) -> NDArray[np.uint32]:
        """The codes u32[n] of names, 0 for one that is invalid or has no room. All new names share one sync, for which the
        event loop waits. Raises DiskFull, StorageFailed."""
        valid = [place for place, name in enumerate(names) if self.is_valid(kind, name)]
        codes = np.zeros(len(names), np.uint32)
        codes[valid] = self.intern(kind, [names[place] for place in valid], fitting=True)
        return codes

    def store_new(self, kind: int, given: Iterable[object]) -> None:
        """Stores all new valid subjects or tags with one sync, for which the event loop waits. The later check of each name
        refuses those that are invalid or have no room. Raises StorageFailed."""
        names = dict.fromkeys([name for name in given if type(name) is str])
        new = [name for name in names if not self._table.code(kind, name) and self.is_valid(kind, name)]
        if len(new) > 1:
            with suppress(DiskFull):
                self.intern(kind, new, fitting=True)

    def intern(self, kind: int, names: list[str], *, fitting: bool = False) -> NDArray[np.uint32]:
        """The codes u32[n] of valid names; with `fitting`, 0 where the table has no room. Raises SubjectsFull, GroupsFull,
        TagsFull, DiskFull, and StorageFailed, after which the server stops."""
        token_id = acting()
        within = self._within(token_id, kind, names, fitting=fitting) if token_id else names
        before = self._table.count(kind)
        try:
            self._table.intern(kind, within, fitting=fitting)
            if token_id and self._table.count(kind) > before:
                self._count(token_id, kind, self._table.count(kind) - before)
        except TableFullError as error:
            raise _FULL[kind](str(error)) from error
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            failed = StorageFailed(str(error))
            self._storage_failed(failed)
            raise failed from error
        if kind == SUBJECT and self._awaited:
            for name in self._awaited.keys() & set(within):
                self._awaited.pop(name).set()
        return np.fromiter((self._table.code(kind, name) for name in names), np.uint32, len(names))

    def _count(self, token_id: str, kind: int, new: int) -> None:
        """The token has added so many names. Raises StoreError, but not for a lack of room."""
        counts = self._names_of_tokens
        counts.add(token_id, kind, new)
        text = counts.to_write(token_id, kind)
        if text:
            with suppress(TableFullError, DiskFullError):  # the next name writes the total
                self._table.intern(OWN, text)
                counts.mark_written(token_id, kind)

    def _within(self, token_id: str, kind: int, names: list[str], *, fitting: bool) -> list[str]:
        """The names without the new ones for which the client has no place. Raises as `intern`, if not `fitting`."""
        most = self._table.bound(kind) * self._settings.names_of_token_percent // 100
        added = self._names_of_tokens.added(token_id, kind)
        left = max(most - added, 0)
        new = [name for name in dict.fromkeys(names) if not self._table.code(kind, name)]
        if len(new) <= left:
            return names
        if not fitting:
            raise _FULL[kind](
                f"this token has added {added} names of this kind, and at most {most} may be its own: "
                "use fewer names, or raise message.names_of_token_percent"
            )
        without = set(new[left:])
        return [name for name in names if name not in without]

    async def first_message(self, subject: str, wait_ms: int) -> int:
        """Waits for the first message of a new subject. Returns its code, 0 if none came in time. Stores nothing."""
        event = self._awaited.setdefault(subject, trio.Event())
        try:
            with trio.move_on_after(wait_ms / 1000):
                await event.wait()
        finally:
            if not event.statistics().tasks_waiting:
                self._awaited.pop(subject, None)
        return self._table.code(SUBJECT, subject)

    # -- checks

    def check_subject(self, subject: object, what: str = "subject") -> str:
        """Checks a subject or the name of a consumer group (`what`). Raises SubjectInvalid."""
        if isinstance(
            subject, DelayServerError
        ):  # the front puts its refusal in place of a name that it does not let through
            raise subject
        if type(subject) is not str or not subject:
            raise SubjectInvalid(f"a {what} is a text of at least one character, not {shown(subject)}")
        if len(subject.encode()) > self._settings.subject_bytes_max:
            raise SubjectInvalid(f"a {what} has at most {self._settings.subject_bytes_max} bytes of UTF-8")
        if not subject.isprintable():
            raise SubjectInvalid(f"a {what} is printable: it has no control, format or unassigned characters")
        return subject

    def is_valid(self, kind: int, name: object) -> bool:
        """True if `check_tag` accepts a tag, or `check_subject` a name of another kind."""
        try:
            if kind == TAG:
                check_tag(name)
            else:
                self.check_subject(name)
        except (InvalidArgument, SubjectInvalid):
            return False
        return True


def check_tag(tag: object) -> str:
    """Checks a tag. Raises InvalidArgument."""
    if type(tag) is not str or not tag:
        raise InvalidArgument(f"a tag is a text of at least one character, not {shown(tag)}")
    if len(tag.encode()) > TAG_BYTES_MAX:
        raise InvalidArgument(f"a tag has at most {TAG_BYTES_MAX} bytes of UTF-8")
    if not tag.isprintable():
        raise InvalidArgument("a tag is printable: it has no control, format or unassigned characters")
    if "||" in tag or tag == "*" or tag != tag.strip():  # no filter could name it
        raise InvalidArgument("a tag is not *, has no ||, and neither begins nor ends with a space")
    return tag
