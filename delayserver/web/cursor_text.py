"""The cursor of a page of consumer groups, as text in a query: two numbers of a node, or two names of several shards."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from delayserver.protocol.schema.groups import GroupCursor

CURSOR: Final = "^[0-9]{1,18}[.][0-9]{1,18}$|^~[0-9A-Za-z%_.~-]+/[0-9A-Za-z%_.~-]+$"
"""A text of `cursor_text`. Behind `~` are names."""


def cursor_text(cursor: GroupCursor | None) -> str | None:
    """The `next` of an answer."""
    if cursor is None:
        return None
    if all(isinstance(each, int) for each in cursor):
        return ".".join(map(str, cursor))
    return "~" + "/".join([quote(str(each), safe="") for each in cursor])


def read_cursor(text: str | None) -> GroupCursor | None:
    """The cursor of a text that `CURSOR` matches."""
    if text is None:
        return None
    if text.startswith("~"):
        return [unquote(each) for each in text[1:].split("/")]
    return [int(each) for each in text.split(".")]
