"""Headless Chromium for the page's tests: what it shows, what its console says, how wide it is."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass(frozen=True)
class Shown:
    """A page after its scripts ran."""

    dom: str
    console: list[str]

    @property
    def charts(self) -> int:
        """Charts with something in them."""
        return len(re.findall(r'id="chart-[\w-]+".*?<svg [^>]*><', self.dom))

    def figure(self, path: str) -> str:
        """The text of the element with this `data-figure`."""
        found = re.search(rf'data-figure="{re.escape(path)}">([^<]*)<', self.dom)
        assert found, f"no figure {path} on the page"
        return html.unescape(found[1])

    def script(self, name: str) -> str:
        found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', self.dom, re.DOTALL)
        assert found, f"no script {name}"
        return found[1]


class Browser:
    """Skips the test where there is no Chromium; in CI that is a failure."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        program = next((path for name in NAMES if (path := shutil.which(name))), None)
        if program is None:
            missing = "no Chromium is installed: apt install chromium"
            if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
                pytest.fail(missing, pytrace=False)
            pytest.skip(missing)
        self._command = [program, *FLAGS, f"--window-size={width},{height}"]

    def open(self, page: Path) -> Shown:
        """Render the page without a network."""
        found = self._run("--virtual-time-budget=20000", "--dump-dom", page.as_uri())
        console = [line for line in found.stderr.splitlines() if "CONSOLE" in line]
        return Shown(found.stdout, console)

    def width_needed(self, page: Path) -> int:
        """How wide the page's content is, in a frame of the window's width."""
        width = next(flag for flag in self._command if flag.startswith("--window-size=")).split("=")[1].split(",")[0]
        probe = page.with_name("probe.html")

        probe.write_text(
            f'<body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:800px" '
            f'srcdoc="{html.escape(page.read_text())}"></iframe><script>'
            "document.getElementById('f').onload = () => setTimeout(() => { document.title = 'width ' + "
            "document.getElementById('f').contentDocument.documentElement.scrollWidth; }, 3000);"
            "</script></body>"
        )
        found = self._run("--virtual-time-budget=20000", "--dump-dom", probe.as_uri())
        title = re.search(r"<title>width (\d+)</title>", found.stdout)
        assert title, "the page did not load in a frame"
        return int(title[1])

    def screenshot(self, page: Path, target: Path) -> None:
        """A picture of the window's size."""
        self._run("--virtual-time-budget=20000", f"--screenshot={target}", page.as_uri())

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as profile:
            command = [*self._command, f"--user-data-dir={profile}", *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
