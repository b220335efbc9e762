"""Tag subscriptions."""

from __future__ import annotations

import pytest

from delayserver.broker.filters.fault import FilterError
from delayserver.broker.filters.filter_limits import TAGS_MAX
from delayserver.broker.filters.tags import parse_tags


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a", ("a",)),
        ("a || b", ("a", "b")),
        ("a||b ||  a", ("a", "b")),
        (" paid in full ||größe ", ("paid in full", "größe")),
        ("a|b", ("a|b",)),
        ("*", ()),
        (" * ", ()),
        ("a*", ("a*",)),
    ],
)
def test_a_subscription_is_parsed_into_its_tags(text: str, tags: tuple[str, ...]) -> None:
    assert parse_tags(text, 127) == tags


@pytest.mark.parametrize(
    ("text", "offset", "what"),
    [
        ("", 0, "expected a tag"),
        ("a ||", 4, "expected a tag"),
        ("|| a", 0, "expected a tag"),
        ("a || || b", 5, "expected a tag"),
        ("a || *", 5, "stands alone"),
        ("a || b\nc", 5, "printable"),
        ("a || " + "é" * 64, 5, "at most 127 bytes"),
    ],
)
def test_a_syntax_error_states_its_place(text: str, offset: int, what: str) -> None:
    with pytest.raises(FilterError, match=what) as raised:
        parse_tags(text, 127)
    assert raised.value.place.offset == offset


def test_tags_are_bounded() -> None:
    tags = [f"t{i}" for i in range(TAGS_MAX)]
    assert parse_tags("||".join(tags), 127) == tuple(tags)
    with pytest.raises(FilterError, match="at most 64 tags"):
        parse_tags("||".join([*tags, "one more"]), 127)
