"""The operation `subjects`: the names of the subjects that a node has met."""

from __future__ import annotations

from typing import Annotated, Final

from delayserver.protocol.schema.structs import Reply, Request, says

SUBJECTS_AT_ONCE_MAX: Final = 4_096
"""Subjects of a reply. With names of 255 bytes that is a megabyte."""
_CODE_MAX: Final = 1 << 32
# A longer pattern or prefix matches no subject of the default bound, or costs more than it says.
_TEXT_BYTES_MAX: Final = 1024


class ListSubjects(Request, frozen=True):
    """The subjects that this node has met, in the order in which it met them."""

    pattern: (
        Annotated[
            str,
            says(
                "Shell-style, as in routes: `*`, `?`, `[a-z]`. Case counts.",
                "orders.*",
                bytes_max=_TEXT_BYTES_MAX,
            ),
        ]
        | None
    ) = None
    prefix: Annotated[str, says("The subject begins so.", "orders.", bytes_max=_TEXT_BYTES_MAX)] = ""
    after: Annotated[
        int, says("The `next` of the reply before. Without it from the first one on.", 41, ge=0, le=_CODE_MAX)
    ] = 0
    max: Annotated[int, says("At most so many subjects.", 100, ge=1, le=SUBJECTS_AT_ONCE_MAX)] = SUBJECTS_AT_ONCE_MAX


class SubjectsPage(Reply, frozen=True):
    """Some subjects of a node. The next page, and later the new subjects, come behind ``next``. ``more``: ask at once."""

    subjects: Annotated[list[str], says("The names.", ["orders", "orders.eu"])]
    # A client of several shards makes pages of all of them: behind a name.
    next: Annotated[int | str, says("Where the next page begins, and later the new subjects.", 41)]
    more: Annotated[bool, says("The next page need not be empty: ask at once.", False)]
