"""The call that lists the subjects of a node. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.client.values.messages import ServerInfo
from delayserver.protocol.operation_names import SUBJECTS


@dataclass(frozen=True, slots=True)
class SubjectsPage:
    """Some subjects of a node. The next page, and later the new subjects, come behind ``next``. ``more``: ask at once."""

    subjects: list[str]
    next: int
    more: bool


def subjects_call(pattern: str | None, prefix: str, after: int) -> Call[SubjectsPage]:
    """A page of the subjects that match a shell-style pattern and begin with a prefix."""

    def read(result: dict[str, Any], _: ServerInfo) -> SubjectsPage:
        return SubjectsPage([str(name) for name in result["subjects"]], int(result["next"]), bool(result["more"]))

    return Call(SUBJECTS, {"pattern": pattern, "prefix": prefix or None, "after": after}, read)
