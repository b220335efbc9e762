"""The runbook of the console is that of the repository."""

from __future__ import annotations

from ops.docs.runbook_page import PAGE, ROOT, runbook_page


def test_the_page_of_the_runbook_is_current() -> None:
    text = (ROOT / "ops" / "RUNBOOK.md").read_text()
    assert PAGE.read_text() == runbook_page(text), "run: python -m ops.docs.runbook_page"
