"""The cursor of a page of consumer groups in a query."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from delayserver.web.cursor_text import CURSOR, cursor_text, read_cursor

NUMBERS = st.lists(st.integers(0, 10**18 - 1), min_size=2, max_size=2)
NAMES = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=2, max_size=2)


@given(NUMBERS | NAMES)
def test_a_cursor_of_numbers_or_names_comes_back_from_a_query(cursor: list[int | str]) -> None:
    text = cursor_text(cursor)
    assert text is not None and re.search(CURSOR, text) and read_cursor(text) == cursor


def test_the_last_page_has_no_cursor() -> None:
    assert cursor_text(None) is None and read_cursor(None) is None
