"""The report as a page: as large for many messages as for few, dark where the system is, with an axis that counts nines."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from ops.audit.bench_data import write_directory
from ops.audit.command import report
from store.disk.filesystem import RealFileSystem
from tests.delayserver.web.chromium import chromium

BYTES_MAX = 1_000_000
# All in one window, so that only the number of messages differs.
FEW, MANY = 4_000, 16_000


def _page(folder: Path, messages: int) -> Path:
    directory = write_directory(RealFileSystem(), str(folder / f"data-{messages:06}"), messages)
    page = folder / f"report-{messages}.html"
    result = CliRunner().invoke(report, ["latency", directory.path, "--out", str(page)])
    assert result.exit_code == 0, result.output
    return page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The page of a directory, by how many messages it has."""
    folder = tmp_path_factory.mktemp("pages")
    return {messages: _page(folder, messages) for messages in (FEW, MANY)}


def test_a_page_does_not_grow_with_the_messages(pages: dict[int, Path]) -> None:
    few, many = (len(pages[messages].read_bytes()) for messages in (FEW, MANY))
    assert f'data-figure="completeness.accepted">{MANY:,}<' in pages[MANY].read_text()
    # Four times as many messages have some digits more, and fill some buckets more.
    assert many < 1.1 * few
    assert many < BYTES_MAX


def test_each_nine_takes_the_same_height(pages: dict[int, Path]) -> None:
    [chart] = re.findall(r'id="chart-distribution".*?</svg>', pages[MANY].read_text(), re.DOTALL)
    heights = {text: float(y) for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>([\d.]+ %)</text>', chart)}
    nines = [heights[text] for text in ("0 %", "90 %", "99 %", "99.9 %", "99.99 %")]
    steps = [below - above for below, above in pairwise(nines)]
    assert min(steps) > 0 and max(steps) - min(steps) < 0.5


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_dark_where_the_system_is(pages: dict[int, Path], dark: bool) -> None:
    with chromium() as browser:
        page = browser.new_page(color_scheme="dark" if dark else "light")
        page.goto(pages[FEW].as_uri())
        paper, ink = (
            sum(map(int, re.findall(r"\d+", page.evaluate(f"getComputedStyle(document.body).{name}"))[:3]))
            for name in ("backgroundColor", "color")
        )
    assert (paper < ink) == dark
