"""The tables of PROTOCOL.md are those of the types that server and clients read."""

from __future__ import annotations

from ops.docs.protocol_tables import PAGE, page


def test_the_tables_of_the_page_are_those_of_the_types() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run: python -m ops.docs.protocol_tables"
