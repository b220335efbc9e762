"""The plan of a `repair` or `rebuild`: it is shown to the operator first, and `mender.py` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from delayserver.recover.reading.file_read import Expected
from delayserver.recover.reading.findings import Finding
from store.keys.key_manifest import FILE_NAME
from store.keys.key_table import FOLDER
from store.logs.schedule_key import ScheduleKey
from store.records.file_header import FileHeader

KEYS: Final = f"{FOLDER}/{FILE_NAME}"
"""Without this file the next start makes the key index again."""
# An offset behind every record of message_log.
EVERYTHING = 1 << 62


class Deed(Enum):
    """A kind of change to a file. The operator reads its value."""

    CUT = "cut the torn end off"
    REMOVE = "remove a file without any content"
    HEADER = "write the file header anew"
    TAKE_OUT = "move a corrupt range aside and write the file anew without it"
    FILL = "move a corrupt range aside and put a placeholder in its place"
    CUT_BEHIND = "move the bytes behind the end aside and cut them off"
    MOVE_FILE = "move the file aside; the next start makes it anew"
    RENAME = "give the file its name back"
    LEAVE = "left as it is"
    PASS_OVER = "left where it is"
    MAKE = "written anew"
    ADD_NAMES = "stand-ins for lost names"
    RESTORE = "restored from message_log"
    FILL_UP = "restored from the file of its day"
    TELL = "nothing can be done"


_NOTHING_DONE = frozenset({Deed.LEAVE, Deed.PASS_OVER, Deed.TELL})
_OF_REBUILD = frozenset({Deed.MAKE, Deed.ADD_NAMES, Deed.RESTORE, Deed.FILL_UP, Deed.TELL})


@dataclass(frozen=True, slots=True)
class MendingStep:
    """One change. `start` to `stop` are bytes of the file; `target` is a new name. RESTORE has a
    `unit` (`Units.codes`), FILL_UP a `key`."""

    deed: Deed
    path: str
    start: int = 0
    stop: int = 0
    detail: str = ""
    expected: Expected | None = None
    header: FileHeader | None = None
    target: str = ""
    unit: int = -1
    key: ScheduleKey | None = None

    @property
    def changes(self) -> bool:
        """Whether the step changes a file."""
        return self.deed not in _NOTHING_DONE

    def to_map(self) -> dict[str, Any]:
        """The JSON form."""
        record: dict[str, Any] = {"action": self.deed.name.lower(), "file": self.path, "offset": self.start}
        record |= {"stop": self.stop, "detail": self.detail}
        return record | ({"target": self.target} if self.target else {})

    def __str__(self) -> str:
        if self.deed in _OF_REBUILD:
            text = self.detail or self.deed.value
            return f"{self.path}: {text}" if self.path else text
        target = f" -> {self.target}" if self.target else ""
        return f"{self.path} at {self.start} to {self.stop}: {self.deed.value}{target} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, in the order in which they are shown. While there are `refusals`, the plan must not be carried out.

    The rest is for `rebuild`. `highest_sequence` and `code_max` (of names) are the highest that the logs use. The next start
    must replay message_log from `replay_from`, because outcomes of cancels are lost. `lost_messages` messages are lost for
    good. `perhaps_retired` messages are restored and may have been delivered before.
    """

    steps: tuple[MendingStep, ...]
    refusals: tuple[Finding, ...] = ()
    highest_sequence: int = 0
    code_max: int = 0
    replay_from: int = EVERYTHING
    lost_messages: int = 0
    perhaps_retired: int = 0

    def steps_of(self, *deeds: Deed) -> list[MendingStep]:
        """The steps with one of these deeds."""
        return [step for step in self.steps if step.deed in deeds]

    def texts(self) -> list[str]:
        """A line for each step."""
        return [str(step) for step in self.steps]

    def changed(self) -> set[str]:
        """The files that change."""
        return {step.path for step in self.steps if step.changes}
