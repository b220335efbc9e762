"""`subjects`: lists the subjects of this node."""

from __future__ import annotations

from typing import Any

from delayserver.front.connection import Connection
from delayserver.operations.figures.subjects import SUBJECTS_AT_ONCE_MAX, Subjects
from delayserver.protocol.arguments import integer, invalid
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.frames import RequestFrame

# A longer pattern or prefix matches no subject of the default bound, or costs more than it says.
_TEXT_BYTES_MAX = 1024
_CODE_MAX = 1 << 32


class SubjectsHandlers:
    """Requests for the names of subjects."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects

    async def subjects(self, connection: Connection, request: RequestFrame) -> dict[str, Any]:
        """A page of subjects."""
        arguments = request.arguments
        page = await self._subjects.page(
            _text(arguments, "prefix") or "",
            _text(arguments, "pattern"),
            integer(arguments, "after", 0, _CODE_MAX, 0),
            integer(arguments, "max", 1, SUBJECTS_AT_ONCE_MAX, SUBJECTS_AT_ONCE_MAX),
            connection.work(),
            connection.access,
        )
        return {"subjects": page.subjects, "next": page.next, "more": page.more}


def _text(arguments: dict[str, Any], name: str) -> str | None:
    """An optional text. Raises InvalidArgument."""
    text = arguments.get(name)
    if text is None:
        return None
    if type(text) is not str:
        raise invalid(name, "a text", text)
    if len(text.encode()) > _TEXT_BYTES_MAX:
        raise InvalidArgument(f"{name} has at most {_TEXT_BYTES_MAX} bytes")
    return text
