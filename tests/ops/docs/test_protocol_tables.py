"""The tables of the protocol's pages are those of the types that server and clients read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.docs.protocol_tables import PAGE, PAGES, by_hand, page

BY_HAND_BYTES_MAX = 70_000


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_types(path: Path) -> None:
    assert page(path.read_text()) == path.read_text(), "run: python -m ops.docs.protocol_tables"


def test_a_writer_of_a_client_has_no_more_to_read_than_people_have_to_keep() -> None:
    assert len(by_hand(PAGE.read_text()).encode()) <= BY_HAND_BYTES_MAX, "say each thing once, or make it from the code"


def test_a_table_that_is_still_empty_swallows_nothing() -> None:
    new = "<!-- table: schedules.Firing -->\n\n<!-- end of table -->\n"
    old = "\n## Kept\n\n<!-- table of errors -->\n\nold\n\n<!-- end of table -->\n"
    made = page(new + old)
    assert ("| moment_ms |" in made, "## Kept" in made, "\nold\n" in made) == (True, True, False)
