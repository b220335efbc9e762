"""The pictures of the documents: all are shown, none is heavy, and the script that makes them makes each."""

from __future__ import annotations

import re

import pytest

from tests.docs.documents import ROOT

pytest.importorskip("playwright", reason="install the extra test")

from ops.docs.pictures import ASSETS, BYTES_MAX

PICTURES = sorted(ASSETS.glob("*.png"))
SCRIPT = (ROOT / "ops" / "docs" / "pictures.py").read_text()


def test_every_picture_is_light_is_shown_and_can_be_made_again() -> None:
    shown: set[str] = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "ops").rglob("*.md")):
        shown |= set(re.findall(r"!\[[^\]]+\]\([^)]*?([\w-]+\.png)\)", page.read_text()))
    assert {picture.name for picture in PICTURES} == shown
    for picture in PICTURES:
        assert picture.stat().st_size <= BYTES_MAX, picture
        assert f'"{picture.name}"' in SCRIPT, picture


def test_readme_shows_the_console_before_the_first_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert 0 < text.index("docs/assets/console.png") < text.index("```")
