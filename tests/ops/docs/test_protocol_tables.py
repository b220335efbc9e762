"""The tables of the protocol's pages are those of the types that server and clients read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.docs.protocol_tables import PAGES, page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_tables_of_a_page_are_those_of_the_types(path: Path) -> None:
    assert page(path.read_text()) == path.read_text(), "run: python -m ops.docs.protocol_tables"
