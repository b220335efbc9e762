"""A real Chromium, driven by Playwright. It skips where none is installed; in CI that is a failure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# A busy machine may take its time.
WAIT_MS = 60_000


def _program() -> str:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is not None:
        return found
    missing = "no Chromium is installed: apt install chromium"
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    program = _program()
    with sync_playwright() as playwright:
        # Public names lead to this machine, as if a proxy stood there.
        args = ["--no-sandbox", "--disable-quic", "--host-resolver-rules=MAP *.example 127.0.0.1"]
        browser = playwright.chromium.launch(executable_path=program, args=args)
        try:
            yield browser
        finally:
            browser.close()
