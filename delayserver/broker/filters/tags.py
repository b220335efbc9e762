"""Tag subscriptions: `a || b`, or `*` for every message. Text in, names out."""

from __future__ import annotations

from typing import Final

from delayserver.broker.filters.fault import FilterError, TextPosition
from delayserver.broker.filters.filter_limits import TAGS_CHARACTERS_MAX, TAGS_MAX

OR: Final = "||"
EVERY: Final = "*"


def parse_tags(text: str, tag_bytes_max: int) -> tuple[str, ...]:
    """The tags of a subscription, each once and in order; none for `*`. Raises FilterError with the place of the fault.

    Spaces around a tag do not count. A tag has at most `tag_bytes_max` bytes of printable text."""
    if text.strip() == EVERY:
        return ()
    if len(text) > TAGS_CHARACTERS_MAX:
        raise FilterError(
            f"a subscription has at most {TAGS_CHARACTERS_MAX} characters", TextPosition.at(text, TAGS_CHARACTERS_MAX)
        )
    tags: dict[str, None] = {}
    offset = 0
    for part in text.split(OR):
        place = TextPosition.at(text, offset + len(part) - len(part.lstrip()))
        offset += len(part) + len(OR)
        tag = part.strip()
        fault = _fault(tag, tag_bytes_max)
        if fault:
            raise FilterError(fault, place)
        tags[tag] = None
        if len(tags) > TAGS_MAX:
            raise FilterError(f"a subscription has at most {TAGS_MAX} tags", place)
    return tuple(tags)


def _fault(tag: str, bytes_max: int) -> str:
    if not tag:
        return "expected a tag"
    if tag == EVERY:
        return f"{EVERY} is every message, so it stands alone"
    if not tag.isprintable():
        return "a tag is printable text"
    if len(tag.encode()) > bytes_max:
        return f"a tag has at most {bytes_max} bytes of UTF-8"
    return ""
