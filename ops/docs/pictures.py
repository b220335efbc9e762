"""The pictures of the documents: `python -m ops.docs.pictures`, from a checkout with `.[dev,audit]` and Chromium.

It starts a server, loads it as a small shop would, and photographs the console when all is well. Then it stops the server,
and photographs the report about its files. The pictures are in docs/assets; someone looks at them before they are committed.

A number behind the command is how many minutes the load goes on. The console draws the last hour, so a picture wants some.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from delayserver.client import Client

ROOT: Final = Path(__file__).parents[2]
ASSETS: Final = ROOT / "docs" / "assets"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH: Final = 1360
# Beyond this a page of documents loads slowly, and a repository grows with each new picture.
BYTES_MAX: Final = 250_000
MINUTES: Final = 20
# A busy machine stalls the server now and then. The console forgets a stall after a minute.
WAIT_MS: Final = 600_000
STEP_S: Final = 0.2
MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
# The busiest subject first, and how many messages of it come in a step.
SUBJECTS: Final = {"orders.unpaid": 60, "mail.reminders": 30, "carts.left": 20, "payments.retry": 12}


class PictureFailed(Exception):
    """No picture could be made. Says why."""


@contextlib.contextmanager
def _server(directory: Path) -> Iterator[dict[str, Any]]:
    """A server of the command line; what its ready line says. It is stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        http_port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "delayserver", "serve", "--json", "--port", "0", "--http-port", http_port]
    with subprocess.Popen([*command, "--data-dir", str(directory)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise PictureFailed("the server ended before it was ready")
            yield json.loads(line)
        finally:
            process.terminate()


class _Shop:
    """Producers and consumers, each on a thread and a connection of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = threading.Event()
        self._failed: list[BaseException] = []
        # The same load each time, so that two pictures differ only by what the console draws.
        self._chance = np.random.default_rng(7)
        self._groups = [("orders.unpaid", "shop"), ("mail.reminders", "mailer"), ("carts.left", "mailer")]
        self._groups += [("payments.retry", "bank"), ("orders.unpaid", "statistics")]

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """The shop works within the block. Raises the failure of a thread at the end."""
        self._fill()
        works: list[Callable[[], None]] = [self._produce]
        works += [partial(self._consume, subject, group) for subject, group in self._groups]
        threads = [threading.Thread(target=self._work, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()
        if self._failed:
            raise self._failed[0]

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._failed.append(error)

    def _fill(self) -> None:
        """What is due later: within the hour, within three days, and on the days of a year."""
        hour = self._chance.gamma(2.0, 14.0, 9_000) * MINUTE_MS
        days = self._chance.gamma(1.6, 0.7, 16_000) * DAY_MS
        year = self._chance.uniform(1, 330, 24_000)
        # Reminders are for working days, and more of them for the end of a month.
        year = year[(year.astype(int) % 7 < 5) | (self._chance.random(len(year)) < 0.25)]
        delays = np.concatenate([hour, days, (year + 0.1) * DAY_MS]) + MINUTE_MS
        subjects = list(SUBJECTS)
        with Client(self._address) as client:
            index = self._chance.integers(0, len(subjects), len(delays))
            for part in np.array_split(np.arange(len(delays)), 8):
                client.send_columns(
                    subjects,
                    [b"%d" % row for row in part],
                    delay_ms=delays[part].astype(np.int64),
                    subject_index=index[part],
                )

    def _produce(self) -> None:
        """Messages for the next seconds, more of them in a wave."""
        with Client(self._address) as client:
            step = 0
            while not self._over.wait(STEP_S):
                step += 1
                for subject, count in SUBJECTS.items():
                    wanted = 1 + self._chance.poisson(count * (1 + 0.5 * np.sin(step / 23)))
                    delays = self._chance.integers(100, 12_000, wanted)
                    client.send_columns(subject, [b"order %d" % row for row in range(wanted)], delay_ms=delays)

    def _consume(self, subject: str, group: str) -> None:
        with Client(self._address) as client:
            while not self._over.is_set():
                found = client.pull_columns(subject, group, 500, 0.5)
                if found.count:
                    client.ack(subject, group, found)


@contextlib.contextmanager
def _browser() -> Iterator[Browser]:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise PictureFailed("no Chromium is installed: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-quic"])
        try:
            yield browser
        finally:
            browser.close()


def _window(browser: Browser, height: int) -> Page:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": height}, color_scheme="light", reduced_motion="reduce", timezone_id="UTC"
    )
    context.set_default_timeout(WAIT_MS)
    return context.new_page()


def _keep(picture: bytes, name: str) -> None:
    if len(picture) > BYTES_MAX:
        raise PictureFailed(f"{name} has {len(picture):,} bytes, {BYTES_MAX:,} are allowed")
    (ASSETS / name).write_bytes(picture)
    print(f"{ASSETS / name}: {len(picture):,} bytes")


def _report(directory: Path, target: Path) -> None:
    # The page names the directory as the command does.
    command = [sys.executable, "-m", "delayserver", "report", "latency", directory.name, "--by", "subject"]
    subprocess.run([*command, "--slo", "100ms", "--out", str(target)], check=True, cwd=directory.parent)


def main(minutes: float) -> None:
    """Makes all pictures anew. The server is under load for so many minutes."""
    with tempfile.TemporaryDirectory() as place, _browser() as browser:
        directory = Path(place) / "data"
        with _server(directory) as ready:
            shop = _Shop(f"127.0.0.1:{ready['port']}")
            with shop.open():
                page = _window(browser, 1040)
                page.goto(f"http://127.0.0.1:{ready['http_port']}/")
                page.wait_for_selector('html[data-live="open"]')
                time.sleep(60 * minutes)
                page.wait_for_selector('#health[data-state="good"]')
                _keep(page.screenshot(), "console.png")
        report = Path(place) / "report.html"
        _report(directory, report)
        page = _window(browser, 1100)
        page.goto(report.as_uri())
        _keep(page.screenshot(), "report.png")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)
