"""The console in a real browser, by what a person does and sees."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from delayserver.client import Client
from tests.delayserver.cli.conftest import run
from tests.delayserver.web.chromium import WAIT_MS, chromium
from tests.delayserver.web.tls_proxy import tls_proxy
from tests.delayserver.web.web_server import Web, serve, stop

ROOT = Path(__file__).parents[3]
DAY_MS = 86_400_000
HOUR_MS = 3_600_000

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of this module."""
    with chromium() as running:
        yield running


CLOCK_AHEAD = """if (AHEAD_MS) {
    const Real = Date;
    globalThis.Date = class extends Real {
        constructor(...parts) { super(...(parts.length ? parts : [Date.now()])); }
        static now() { return Real.now() + AHEAD_MS; }
    };
}"""


def address(web: Web) -> str:
    """Where the console of a server is."""
    return f"http://{web.host}:{web.port}/"


class Desk:
    """A person at a browser. Each page shares what the person looks at: errors on the console fail the test."""

    def __init__(self, browser: Browser, web: Web) -> None:
        self._browser = browser
        self._web = web
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []

    def open(
        self, *, width: int = 1280, dark: bool = False, at: str = "", ahead_ms: int = 0, figures: bool = True
    ) -> Page:
        """The console in a window of its own; with `figures` once they are there. `at`: its address. `ahead_ms`: how far the
        clock of the browser is ahead."""
        context = self._browser.new_context(
            ignore_https_errors=True,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        context.set_default_timeout(WAIT_MS)
        self._contexts.append(context)
        page = context.new_page()
        page.add_init_script(CLOCK_AHEAD.replace("AHEAD_MS", str(ahead_ms)))
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(at or address(self._web))
        if figures:
            expect(page.locator("html")).to_have_attribute("data-live", "open")
        return page

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def close(self) -> None:
        """Close all windows."""
        while self._contexts:
            self._contexts.pop().close()


@pytest.fixture
def desk(browser: Browser, web: Web) -> Iterator[Desk]:
    """Fails if a page wrote an error or a violation of its security policy to the console."""
    made = Desk(browser, web)
    try:
        yield made
    finally:
        made.close()
        complaints = [text for text in made.complaints if "status of 404" not in text]
    assert complaints == []


@pytest.fixture
def page(desk: Desk) -> Page:
    """The console on a desktop."""
    return desk.open()


def send(web: Web, subject: str, **fields: Any) -> dict[str, Any]:
    """Send a message over HTTP."""
    reply = web.post("/v1/messages", {"subject": subject, "body": "hello", **fields})
    assert reply.status == 201, reply.json
    sent: dict[str, Any] = reply.json
    return sent


def outcome(web: Web, receipt: str) -> str:
    return str(web.ask("GET", f"/v1/messages/{receipt}").json["outcome"])


def send_by_hand(page: Page, subject: str, delay: str) -> str:
    """Send a test message as a person does; its receipt."""
    page.keyboard.press("n")
    page.get_by_label("Subject", exact=True).last.fill(subject)
    page.locator("#send-delay").fill(delay)
    page.get_by_role("button", name="Send the message").click()
    found = page.locator("#result .found")
    expect(found.get_by_role("heading", name=subject)).to_be_visible()
    return found.locator(".ids .mono").first.inner_text()


def events(page: Page) -> list[str]:
    """The events of the message that is shown, as far as they have happened."""
    return [str(each.get_attribute("data-event")) for each in page.locator(".life li:not(.open)").all()]


# -- figures


def test_an_empty_server_helps_and_a_lost_one_comes_back(desk: Desk) -> None:
    """What the page says to do is done as it stands there. Then the server goes, and comes again."""
    web = serve("--memory")
    try:
        page = desk.open(at=address(web))
        expect(page.get_by_role("heading", name="Nothing is scheduled yet")).to_be_visible()
        expect(page.locator("#minutes .reading")).to_have_text("Nothing is due within an hour.")
        words = shlex.split(page.locator("#welcome-send").inner_text())
        assert (words[0], words[2]) == ("curl", "-d")
        origin = f"http://{web.host}:{web.port}"
        sent = web.post(words[1].removeprefix(origin), json.loads(words[-1]) | {"delay": "50s"})
        assert sent.status == 201
        find(page, sent.json["receipt"])
        expect(page.locator(".found .chip")).to_have_text("pending")
        expect(page.locator("#welcome")).to_be_hidden()
        expect(page.locator("#balance-text")).to_contain_text("1 accepted")
        stop(web)
        expect(page.get_by_text("The connection is lost")).to_be_visible()
        expect(page.locator("#health-text")).to_have_text("No connection")
        web = serve("--memory", http_port=web.port)
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.get_by_role("heading", name="Nothing is scheduled yet")).to_be_visible()
        expect(page.locator(".found .remark")).to_contain_text("does not know this message any more")
        expect(page.locator(".found .answers")).to_be_hidden()
    finally:
        desk.close()
        web.process.kill()
        web.process.communicate()
    assert all(re.search("ERR_|status of (404|421|502|503)", text) for text in desk.complaints), (
        "nothing but that it was cut off"
    )
    desk.complaints.clear()


def test_the_figures_of_the_console_follow_the_server(web: Web, page: Page) -> None:
    before = web.ask("GET", "/v1/status").json["accepted"]
    for _ in range(50):
        send(web, "console.live", delay_ms=1)
    expect(page.locator("#balance-text")).to_contain_text(f"{before + 50:,} accepted")
    expect(page.locator("#p99")).to_contain_text(re.compile(r"\d m?s"))
    expect(page.locator("#histogram .reading")).to_contain_text(re.compile(r"\d+ messages of the last"))
    expect(page.locator("#distribution .reading")).to_contain_text("99 of 100 messages were at most")
    # It is that of the last five seconds.
    until = time.monotonic() + WAIT_MS / 1000
    while not re.search("[1-9]", page.locator("#accepted-rate").inner_text()):
        assert time.monotonic() < until
        send(web, "console.live", delay_ms=1)
        page.wait_for_timeout(100)
    expect(page.locator("#groups .group")).to_contain_text("embedded")
    expect(page.locator("#groups .chip")).to_have_text("up")
    expect(page.locator("#stages li").first).to_be_visible()
    assert page.locator("#stages-scale span").all_inner_texts() == ["0.01 ms", "1 ms", "100 ms", "10 s"]
    expect(page.locator("#room li").first).to_be_visible()
    expect(page.locator("#health-text")).to_have_text(re.compile("All is well|wrong"))


def test_a_page_that_has_just_been_opened_has_the_past(page: Page) -> None:
    """Samples come from the gateway before the first figures. The page draws the last minute and the last hour from them."""
    rates = """samples => import('/console/history.js').then(({History}) => {
        const history = new History();
        history.remember(samples);
        return [history.rate('delivered', 60000), history.lateness(), history.seenMs()];
    })"""
    samples = [
        {"at_ms": at_ms, "server_id": "s", "uptime_s": at_ms / 1000, "accepted": at_ms, "delivered": at_ms / 100,
         "groups": {"a": [at_ms // 1000, 0]}, "stages": {}, "by_group": {}}
        for at_ms in range(0, 75_000, 15_000)
    ]  # fmt: skip
    assert page.evaluate(rates, samples) == [10, [60, 0], 60_000]
    expect(page.locator("#hour-rates .reading")).to_have_text(re.compile("delivered"))
    drawn = page.evaluate("""samples => import('/console/hour.js').then(({HourPanel}) => {
        const panel = new HourPanel();
        panel.remember(samples.map(each => ({...each, lateness: each.groups.a})));
        const metrics = {clock: {server_us: 75e6}, server_id: 's', uptime_s: 75, accepted: 75000, delivered: 750,
            lateness: {a: {bounds_us: [500], counts: [75, 0]}}};
        panel.update(metrics);
        return [...document.querySelectorAll('#hour-rates .reading')].at(-1).textContent;
    })""", samples)  # fmt: skip
    assert drawn == "At most 10 delivered a second."


def test_coming_messages_are_on_their_minute_hour_and_day(web: Web, desk: Desk) -> None:
    send(web, "console.coming", delay_ms=20 * 60_000)
    send(web, "console.coming", delay_ms=5 * HOUR_MS)
    for _ in range(60):
        send(web, "console.coming", delay_ms=40 * DAY_MS)
    page = desk.open()
    expect(page.locator("#minutes .reading")).to_contain_text(re.compile(r"[1-9]\d* messages? in the next hour"))
    expect(page.locator("#hours .reading")).to_contain_text(re.compile(r"[1-9]\d* messages?"))
    expect(page.locator("#days .reading")).to_contain_text("busiest day is")
    page.locator("#days .frame").focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#days .reading")).to_contain_text(re.compile(r"\d{4}: \d+ messages?"))


def test_a_message_that_is_due_behind_the_year_is_counted(web: Web, desk: Desk) -> None:
    send(web, "console.coming", delay_ms=500 * DAY_MS)
    send(web, "console.coming", delay_ms=700 * DAY_MS)
    page = desk.open()
    expect(page.locator("#days .reading")).to_contain_text("2 messages later.")


@pytest.mark.parametrize("window", ["5m", "2h"])
def test_windows_that_are_longer_than_a_minute_or_an_hour_are_shown(desk: Desk, window: str) -> None:
    other = serve("--memory", "--set", f"storage.window_ms={window}")
    try:
        send(other, "console.windows", delay_ms=5 * 60_000)
        send(other, "console.windows", delay_ms=50 * 60_000)
        page = desk.open(at=address(other))
        expect(page.locator("#minutes .reading")).to_contain_text("2 messages in the next hour")
        expect(page.locator("#hours .reading")).to_have_text("2 messages.")
        desk.close()
        assert stop(other) == ""
    finally:
        other.process.kill()
        other.process.communicate()


def test_consumers_are_shown_with_their_backlog(web: Web, page: Page) -> None:
    for _ in range(3):
        send(web, "console.consumed", delay_ms=0)
    path = "/v1/subjects/console.consumed/groups/<b>bold</b>/pull"
    pulled = web.post(path.replace("<b>bold</b>", "%3Cb%3Ebold%3C%2Fb%3E"), {"max_messages": 1, "wait_ms": 30_000})
    assert pulled.status == 200
    row = page.locator("#consumer-rows tr", has_text="console.consumed")
    expect(row).to_contain_text("<b>bold</b>")
    expect(row.locator(".lag")).to_have_text("3")


# -- a message


def test_cancel_asks_and_escape_backs_out(web: Web, page: Page) -> None:
    receipt = send_by_hand(page, "console.cancel", "1h")
    page.get_by_role("button", name="Cancel …").click()
    dialog = page.get_by_role("dialog", name="Cancel this message?")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    assert outcome(web, receipt) == "pending"
    page.keyboard.press("c")
    dialog.get_by_role("button", name="Cancel the message").click()
    expect(page.locator(".found .chip")).to_have_text("cancelled")
    expect(page.locator(".found .answers")).to_be_hidden()
    assert outcome(web, receipt) == "cancelled"


def find(page: Page, text: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def test_the_console_says_what_to_do_about_an_unknown_name(page: Page, web: Web) -> None:
    find(page, "no-such-id")
    expect(page.locator("#result")).to_contain_text("No message with the id “no-such-id” was handed over here.")
    expect(page.locator("#search-subject")).to_be_visible()
    known = send(web, "console.known", delay_ms=HOUR_MS)["receipt"]
    page.locator("#search-text").fill(known[:-12] + "f" * 12)
    page.get_by_role("button", name="Find").last.click()
    expect(page.locator("#result")).to_contain_text("Nothing is known of this message.")


def test_markup_in_a_message_stays_text(web: Web, page: Page) -> None:
    markup = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"
    sent = send(web, f"console.{markup}", body=markup * 300, delay_ms=HOUR_MS, properties={markup: markup})
    find(page, sent["receipt"])
    expect(page.locator(".found h3")).to_have_text(f"console.{markup}")
    expect(page.locator(".found .properties dd")).to_have_text(markup)
    body = page.locator(".found .body")
    assert len(body.inner_text()) <= 4_096
    assert body.inner_text().startswith(markup)
    assert page.locator("main img, main script").count() == 0
    page.get_by_role("button", name="Show more").click()
    assert len(body.inner_text()) > 4_096
    assert page.evaluate("window.broken") is None


def test_no_text_hides_itself_or_turns_what_stands_beside_it(web: Web, page: Page) -> None:
    """Controls, directions of reading, separators of lines: they are shown as escapes, and an id is copied as it is."""
    odd = "a\u202eb\u2066\x00\u2028\x1b[31m\u200b<b>'\"\\\N{WOMAN}\u200d\N{GIRL}"
    shown = "a\\u202eb\\u2066\\u0000\\u2028\\u001b[31m\\u200b<b>'\"\\\N{WOMAN}\u200d\N{GIRL}"
    odd_properties = {odd: odd, "__proto__": "kept", "constructor": "kept", "7": "kept"}
    sent = send(
        web, "console.odd", body=f"{odd}\n\tsecond line", delay_ms=HOUR_MS, message_id=odd, order_key=odd,
        properties=odd_properties, expires_ms=2**62 - 1,
    )  # fmt: skip
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    find(page, sent["receipt"])
    ids = page.locator(".found .ids").first
    expect(ids.locator("dd .mono").last).to_have_text(shown)
    expect(ids).to_contain_text("Order key" + shown)
    expect(ids).to_contain_text("Expiresafter the year 275760")
    assert page.locator(".found .properties dt").all_inner_texts() == ["7", shown, "__proto__", "constructor"]
    assert page.locator(".found .body").inner_text() == f"{shown}\n\tsecond line"
    ids.get_by_role("button").last.click()
    expect(ids.get_by_role("button").last).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == odd
    for text in ("%", "../..", "a#b?c=d", "x" * 1024, odd.replace("\x00", "")):
        page.locator("#find-text").fill(text)
        page.keyboard.press("Enter")
        expect(page.locator("#result .answer")).to_contain_text("was handed over here.")


@pytest.mark.parametrize("ahead_ms", [-3 * HOUR_MS, 5 * HOUR_MS])
def test_a_clock_of_the_browser_that_is_hours_off_changes_nothing(web: Web, desk: Desk, ahead_ms: int) -> None:
    soon = send(web, "console.clock", delay_ms=90 * 60_000)["receipt"]
    page = desk.open(ahead_ms=ahead_ms)
    # The server counts what is pending every ten seconds.
    expect(page.locator("#hours .reading")).to_contain_text(re.compile(r"[1-9]\d* messages?"))
    find(page, soon)
    expect(page.locator(".found .countdown")).to_have_text(re.compile(r"due in 1 h (2\d|30) min"))


def test_lists_that_are_cut_say_so(page: Page) -> None:
    show = """sizes => import('/console/consumers.js').then(({ConsumersPanel}) => {
        const row = place => ({subject: `s${place}`, group: 'g', lag: place, pending: 1});
        const rows = [...Array(sizes.rows).keys()].map(row);
        const panel = new ConsumersPanel(() => {});
        panel.update({consumer_groups: rows, consumer_groups_all: sizes.all, subjects: rows}, {nowMs: 0});
        return ['consumers-more', 'subjects-more'].map(id => document.getElementById(id).textContent);
    })"""
    assert page.evaluate(show, {"rows": 100, "all": 5000}) == ["Show the first 100 of 5,000", "Show the first 100"]
    assert page.evaluate(show, {"rows": 20, "all": 20}) == ["Show all 20", "Show all 20"]


def test_the_life_of_a_test_message_is_complete(web: Web, page: Page) -> None:
    receipt = send_by_hand(page, "console.life", "2s")
    expect(page.locator(".life .accepted:not(.open)")).to_be_visible()
    expect(page.locator(".found .chip")).to_have_text("delivered")
    pulled = web.post(
        "/v1/subjects/console.life/groups/me/pull", {"max_messages": 1, "wait_ms": 30_000, "ack": True}
    ).json["messages"]
    assert len(pulled) == 1
    expect(page.locator(".life .acked")).to_contain_text("Acked by me")
    seen = events(page)
    assert seen[:2] == ["accepted", "replayed"]
    assert {"accepted", "replayed", "loaded", "due", "handed-off", "delivered", "pulled", "acked"} <= {*seen}
    assert seen.index("due") < seen.index("handed-off") < seen.index("delivered")
    assert seen.index("handed-off") < seen.index("pulled") <= seen.index("acked")
    times = page.locator(".life li.handed-off .when").get_attribute("title")
    assert times is not None
    assert outcome(web, receipt) == "delivered"
    expect(page.locator("#sent-list")).to_contain_text("console.life")


def test_a_message_is_rescheduled(web: Web, page: Page) -> None:
    old = send_by_hand(page, "console.move", "1h")
    page.keyboard.press("r")
    dialog = page.get_by_role("dialog", name="Reschedule this message")
    dialog.get_by_label("Due in").fill("soon")
    dialog.get_by_role("button", name="Reschedule").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Write a delay such as")
    dialog.get_by_label("Due in").fill("2d")
    dialog.get_by_role("button", name="Reschedule").click()
    expect(dialog).to_be_hidden()
    receipt = page.locator(".found .ids .mono").first
    expect(receipt).not_to_have_text(old)
    assert outcome(web, old) == "cancelled"
    moved = web.ask("GET", f"/v1/messages/{receipt.inner_text()}").json
    assert moved["outcome"] == "pending"
    assert moved["due_ms"] - time.time() * 1000 > DAY_MS


def test_the_address_leads_to_the_message_that_is_shown(web: Web, desk: Desk) -> None:
    first = send(web, "console.address", delay_ms=HOUR_MS, body="the first")["receipt"]
    second = send(web, "console.address", delay_ms=HOUR_MS, body="the second")["receipt"]
    page = desk.open()
    body = page.locator(".found .body")
    find(page, first)
    expect(body).to_have_text("the first")
    find(page, second)
    expect(body).to_have_text("the second")
    page.reload()
    expect(body).to_have_text("the second")
    expect(desk.open(at=page.url).locator(".found .body")).to_have_text("the second")
    page.go_back()
    expect(body).to_have_text("the first")
    page.go_back()
    expect(page.locator(".found")).to_have_count(0)
    page.go_forward()
    expect(body).to_have_text("the first")


def test_messages_sent_from_the_page_have_the_outcome_that_they_have(web: Web, page: Page) -> None:
    send_by_hand(page, "console.sent.ended", "1h")
    page.keyboard.press("c")
    page.get_by_role("button", name="Cancel the message").click()
    row = page.locator("#sent-list li", has_text="console.sent.ended")
    expect(row).to_contain_text("cancelled")
    send_by_hand(page, "console.sent.moved", "1h")
    page.keyboard.press("r")
    page.get_by_label("Due in").last.fill("2s")
    page.get_by_role("button", name="Reschedule", exact=True).last.click()
    expect(page.get_by_role("dialog", name="Reschedule this message")).to_be_hidden()
    expect(page.locator("#sent-list li", has_text="console.sent.moved")).to_have_count(1)
    # Another one is shown meanwhile.
    send_by_hand(page, "console.sent.other", "1h")
    expect(page.locator("#sent-list li", has_text="console.sent.moved")).to_contain_text("delivered")


def test_a_message_is_found_by_its_id(web: Web, page: Page) -> None:
    sent = send(web, "console.named", delay_ms=HOUR_MS, message_id="order-4711")
    page.locator("#search-text").fill("order-4711")
    page.locator("#search-more summary").click()
    page.locator("#search-subject").fill("console.named")
    page.locator("#search-due").fill(str(sent["due_ms"]))
    page.keyboard.press("Enter")
    expect(page.locator(".found .chip")).to_have_text("pending")
    expect(page.locator(".found .ids")).to_contain_text(sent["receipt"])
    send(web, "console.named", delay_ms=0, message_id="order-4712")
    web.post("/v1/subjects/console.named/groups/me/pull", {"max_messages": 1, "wait_ms": 30_000, "ack": True})
    page.locator("#search-more summary").click()
    page.locator("#find-text").fill("order-4712")
    page.keyboard.press("Enter")
    expect(page.locator(".found .chip")).to_have_text("delivered")
    expect(page.locator(".found .ids")).to_contain_text("order-4712")


# -- how it looks and feels


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_colours_follow_the_system_and_the_switch(desk: Desk) -> None:
    light, dark = desk.open(), desk.open(dark=True)
    assert background(light) != background(dark)
    switch = light.locator("#theme")
    switch.click()
    assert light.locator("html").get_attribute("data-theme") == "light"
    light.keyboard.press("t")
    assert background(light) == background(dark)
    light.reload()
    assert background(light) == background(dark), "the choice is kept"


@pytest.mark.parametrize("width", [1024, 390, 320])
def test_no_width_scrolls_sideways(desk: Desk, web: Web, width: int) -> None:
    wide = f"console.width.{width}" + "w" * 200
    send(web, wide, delay_ms=0)
    pull = {"max_messages": 1, "wait_ms": 30_000}
    assert web.post(f"/v1/subjects/{wide}/groups/{'g' * 200}/pull", pull).json["messages"]
    page = desk.open(width=width)
    expect(page.locator("#consumer-rows tr", has_text=wide)).to_be_visible()
    sent = send(
        web, "console.width." + "long" * 40, body="x" * 5_000, delay_ms=HOUR_MS, properties={"a" * 90: "b" * 900}
    )
    page.locator("#find-text").fill(sent["receipt"])
    page.keyboard.press("Enter")
    expect(page.locator(".found .body")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="Cancel …").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("(open => open.scrollWidth - open.clientWidth)(document.querySelector('dialog[open]'))") == 0
    page.keyboard.press("Escape")
    page.locator("#find-text").fill("unknown" * 100)
    page.keyboard.press("Enter")
    expect(page.locator("#result .answer")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))


def test_everything_is_done_by_keyboard(page: Page) -> None:
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the figures"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert focused(page) == "main"
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("4")
    assert focused(page) == "coming-title"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_have_text(re.compile(r"^\d\d:\d\d: \d+ messages?$"))
    page.keyboard.press("n")
    page.keyboard.press("Control+a")
    page.keyboard.type("console.keys")
    page.keyboard.press("Enter")
    expect(page.locator(".found h3")).to_have_text("console.keys")
    expect(page.locator(".found h3")).to_be_focused()


def test_a_hidden_page_of_the_console_pauses_its_updates(page: Page) -> None:
    hide = "hidden => {{ Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}); }}"
    for hidden, state in (("true", "paused"), ("false", "open")):
        page.evaluate(hide.format(hidden))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("html")).to_have_attribute("data-live", state)


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}): {[node['target'] for node in each['nodes']][:3]}"
        for each in found
        if each["impact"] in ("serious", "critical", "moderate")
    ]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_axe_finds_nothing(desk: Desk, width: int, dark: bool) -> None:
    page = desk.open(width=width, dark=dark)
    page.get_by_role("button", name="Send a test message").click()
    assert violations(page) == []
    page.get_by_role("button", name="Send the message").click()
    expect(page.locator(".found .body")).to_be_visible()
    assert violations(page) == []


# -- with tokens

PROXY = "delay.example"


@dataclass(frozen=True)
class Guarded:
    """A server with tokens, which a proxy stands before."""

    web: Web
    admin: str

    def token(self, role: str, subject: str = "*") -> str:
        """A new token."""
        with Client(self.web.address, token=self.admin) as client:
            return client.token(role, subject).text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = str(tmp_path_factory.mktemp("guarded") / "data")
    made = run("token", "create", "--role", "admin", "--json", "--data-dir", data)
    web = serve("--data-dir", data, "--set", f"http.allowed_hosts={PROXY}")
    try:
        yield Guarded(web, made.row["token"])
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()


@pytest.fixture
def visitor(desk: Desk) -> Iterator[Desk]:
    """A desk whose pages may be refused, and may be cut off."""
    yield desk
    desk.close()
    foreseen = "status of 40[134]|ERR_|Cross-Origin-Opener-Policy"
    assert all(re.search(foreseen, text) for text in desk.complaints), desk.complaints
    desk.complaints.clear()


def log_in(page: Page, token: str) -> None:
    dialog = page.get_by_role("dialog", name="A token is needed")
    dialog.get_by_label("Token").fill(token)
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog).to_be_hidden()


def test_a_person_logs_in_and_out(visitor: Desk, guarded: Guarded) -> None:
    page = visitor.open(at=address(guarded.web), figures=False)
    dialog = page.get_by_role("dialog", name="A token is needed")
    expect(page.locator("#banner")).to_contain_text("asks for a token")
    expect(page.locator("#health-text")).to_have_text("Not logged in")
    dialog.get_by_label("Token").fill("dst_0123456789ab_" + "A" * 43)
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#banner")).to_contain_text("asks for a token")
    page.get_by_role("button", name="Try now").click()
    log_in(page, guarded.admin)
    expect(page.locator("html")).to_have_attribute("data-live", "open")
    expect(page.locator("#who")).to_contain_text("admin")
    send_by_hand(page, "console.guarded", "1h")
    assert page.evaluate("document.cookie") == "", "no script can read it"
    page.get_by_role("button", name="Log out").click()
    expect(dialog).to_be_visible()


def test_a_session_that_ends_takes_its_figures_along_and_asks_once(visitor: Desk, guarded: Guarded) -> None:
    page = visitor.open(at=address(guarded.web), figures=False)
    token = guarded.token("look")
    log_in(page, token)
    expect(page.locator("html")).to_have_attribute("data-live", "open")
    headers = {"authorization": f"Bearer {guarded.admin}"}
    sent = guarded.web.ask("POST", "/v1/messages", {"subject": "s", "body": "", "delay": "30s"}, headers=headers)
    find(page, sent.json["receipt"])
    expect(page.locator(".found .chip")).to_have_text("pending")
    with Client(guarded.web.address, token=guarded.admin) as client:
        client.revoke_token(token[4:16])
    dialog = page.get_by_role("dialog", name="A token is needed")
    expect(dialog).to_be_visible()
    expect(page.locator("#now, #delivery")).to_have_count(2)
    for figures in page.locator("#now, #delivery").all():
        expect(figures).to_be_hidden()
    page.keyboard.press("Escape")
    # The page goes on asking the server, for figures and for the message, but not the person.
    for path in ("/v1/messages", "/v1/live"):
        with page.expect_response(re.compile(re.escape(path))) as asked:
            pass
        assert asked.value.status == 401
        expect(dialog).to_be_hidden()
    page.get_by_role("button", name="Try now").click()
    log_in(page, guarded.admin)
    expect(page.locator("#now")).to_be_visible()
    expect(page.locator("#banner")).to_be_hidden()


@pytest.mark.parametrize(
    ("role", "subject", "told"),
    [
        ("send", "*", "This one has the role send for *. A message can be looked up by its receipt all the same."),
        ("consume", "*", "This one has the role consume for *. It may not look up messages either."),
        ("look", "bills*", "This one has the role look for bills*. Messages of these subjects can be found"),
    ],
)
def test_a_token_without_the_figures_is_told_what_is_missing(
    visitor: Desk, guarded: Guarded, role: str, subject: str, told: str
) -> None:
    page = visitor.open(at=address(guarded.web), figures=False)
    log_in(page, guarded.token(role, subject))
    expect(page.locator("#banner")).to_contain_text("tokens with the role look and the pattern *. " + told)
    for part in ("now", "lateness", "coming", "delivery", "consumers"):
        expect(page.locator(f"#{part}")).to_be_hidden()
    expect(page.locator("#message")).to_be_visible()


def test_behind_a_proxy_that_encrypts(visitor: Desk, guarded: Guarded) -> None:
    """As docs/how-to/secure.md says: the gateway has the public name in `http.allowed_hosts`, and gets `Host` as it came."""
    with tls_proxy(PROXY, guarded.web.host, guarded.web.port) as port:
        page = visitor.open(at=f"https://{PROXY}:{port}/", figures=False)
        log_in(page, guarded.admin)
        expect(page.locator("html")).to_have_attribute("data-live", "open")
        send_by_hand(page, "console.proxied", "1h")
        (cookie,) = page.context.cookies()
        assert (cookie["name"], cookie["secure"], cookie["sameSite"]) == (f"delayserver_session_{port}", True, "Strict")
        assert "https://delay.example" in page.locator("#consumers-pull").inner_text()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("dialog", name="A token is needed")).to_be_visible()
        assert page.context.cookies() == []
        visitor.close()
    # Without TLS, a page that is not of this machine has no clipboard.
    page = visitor.open(at=f"http://{PROXY}:{guarded.web.port}/", figures=False)
    log_in(page, guarded.admin)
    send_by_hand(page, "console.plain", "1h")
    copy = page.locator(".found .ids").get_by_role("button").first
    copy.click()
    expect(copy).to_have_text("Not copied")


# -- what is wrong


def conditions(page: Page) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.evaluate("import('/console/trouble.js').then(module => module.CONDITIONS)")
    return found


def test_the_console_gives_the_headings_and_commands_of_the_runbook(page: Page) -> None:
    """Headings and commands of the page are those of the runbook."""
    runbook = (ROOT / "ops" / "RUNBOOK.md").read_text()
    headings = re.findall(r"^#{2,3} (.+)$", runbook, re.MULTILINE)
    found = conditions(page)
    assert len(found) >= 15
    assert [each["id"] for each in found if each["runbook"] not in headings] == []
    said = [command for each in found for step in each["act"] for command in re.findall(r"`([^`]+)`", step)]
    assert [command for command in said if command not in runbook] == []


NODE = {"address": "a:1", "circuit": "closed", "problem": "", "last_error": ""}
STORAGE = {"disk_low": False, "disk_free_bytes": 1, "disk_errors": 0, "disk_error_last": "", "retired_windows_ahead": 0}
HEALTHY = {
    "ready": True, "waits_for": "", "early": 0, "corruption": [], "unreadable": [], "duplicate_server_ids": [],
    "errors": {}, "clock": {"steps": 0, "step_last_ms": 0}, "event_loop": {"longest_stall_minute_ms": 12},
    "connection_memory": {"frames_waiting": 0}, "broker": {"damages": []},
    "queues": [{"name": "open_files", "used": 512, "bound": 512}], "consumer_groups": [],
    "storage": STORAGE, "groups": {"default": {"maybe_delivered_twice": 0, "nodes": [NODE]}},
}  # fmt: skip
VIEW = {"nowMs": 1_800_000_000_000, "p99Us": 900, "latest": 1000}
# Check-backs that a producer may answer in this moment.
ASKED = [
    {"subject": "shop.check", "group": "shop", "lag": 3, "oldest_ms": age} for age in (None, VIEW["nowMs"] - 5_000)
]


def node(**fields: str) -> dict[str, Any]:
    return {"groups": {"default": {"maybe_delivered_twice": 0, "nodes": [NODE | fields]}}}


LAGGING = {"subject": "orders", "group": "billing", "lag": 7, "oldest_ms": VIEW["nowMs"] - HOUR_MS}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "disk-full": ({"storage": STORAGE | {"disk_low": True, "disk_free_bytes": 2**20}}, {}, "1.0 MiB"),
    "start-waits-for-room": ({"ready": False, "waits_for": "the replay needs about 155648 bytes"}, {}, "155648 bytes"),
    "not-ready": ({"ready": False, "waits_for": "the replay of accepted messages"}, {}, "the replay of accepted"),
    "corruption": ({"corruption": ["a.log: corrupt at offset 64"]}, {}, "a.log: corrupt at offset 64"),
    "early": ({"early": 2}, {}, "2 messages"),
    "duplicate-server-id": ({"duplicate_server_ids": ["another process delivers to b:2"]}, {}, "b:2"),
    "node-not-due": (node(problem="not_due"), {}, "a:1"),
    "node-not-proven": (node(problem="server_not_proven"), {}, "a:1"),
    "topic-refuses": (node(problem="topic_missing"), {}, "topic_missing"),
    "node-down": (node(circuit="open", last_error="connection refused"), {}, "connection refused"),
    "late": ({}, {"p99Us": 2_500_000}, "2.5 s"),
    "disk-refuses": ({"unreadable": ["b.log: Input/output error"]}, {}, "b.log"),
    "loop-stalls": ({"event_loop": {"longest_stall_minute_ms": 640}}, {}, "640 ms"),
    "consumer-stuck": ({"consumer_groups": [LAGGING]}, {}, "7 messages"),
    "transactions-open": ({"consumer_groups": [LAGGING | {"subject": "shop.check"}]}, {}, "shop.check"),
    "dead-letters": ({"consumer_groups": [LAGGING | {"lag": 0, "dead_letters": 2}]}, {}, "2 messages"),
    "frames-waiting": ({"connection_memory": {"frames_waiting": 3}}, {}, "3 frames"),
    "bound-near": ({"queues": [{"name": "subjects", "used": 500, "bound": 512}]}, {}, "98 % of 512"),
    "windows-ahead": ({"storage": STORAGE | {"retired_windows_ahead": 8}}, {}, "8 windows"),
    "clock-steps": ({"clock": {"steps": 1, "step_last_ms": -3_600_000}}, {}, "\N{MINUS SIGN}1 h"),
    "maybe-twice": ({"groups": {"default": {"maybe_delivered_twice": 5, "nodes": []}}}, {}, "5 messages"),
    "stopped-reading": ({"errors": {"client_stopped_reading": 4}}, {}, "4 were cut off"),
}


def test_each_condition_shows_itself_and_no_other(page: Page) -> None:
    assert {each["id"] for each in conditions(page)} == set(WRONG)
    judge = """([metrics, view]) => import('/console/trouble.js').then(({wrongNow}) =>
        wrongNow(metrics, view).map(({condition, facts}) => [condition.id, facts.join(' ')]))"""
    assert page.evaluate(judge, [HEALTHY, VIEW]) == []
    assert page.evaluate(judge, [HEALTHY | {"consumer_groups": ASKED}, VIEW]) == []
    standby = {"ready": False, "waits_for": "another member leads", "cluster": [{"role": "standby"}]}
    assert page.evaluate(judge, [HEALTHY | standby, VIEW]) == []
    for name, (metrics, view, told) in WRONG.items():
        ((found, facts),) = page.evaluate(judge, [HEALTHY | metrics, VIEW | view])
        assert found == name
        assert told in facts


def test_commands_of_an_alert_have_the_names_of_the_group(page: Page) -> None:
    """A person pastes them into a shell as they are, whatever the names are."""
    steps = """([metrics, view]) => import('/console/trouble.js').then(({wrongNow, stepsOf}) =>
        wrongNow(metrics, view).flatMap(found => stepsOf(found.condition, found.groups)).flatMap(step => step.commands))"""
    for subject, group in (("orders", "billing"), ("it's $(odd)", "a b"), ("shop.check", "shop"), ("o'x.check", "s h")):
        rows = [LAGGING | {"subject": subject, "group": group, "dead_letters": 1}]
        commands = page.evaluate(steps, [HEALTHY | {"consumer_groups": rows}, VIEW])
        assert len(commands) >= 2
        for command in commands:
            words = shlex.split(command)
            assert subject in words
            if "--group" in words:
                assert words[words.index("--group") + 1] == group
            assert not {"SUBJECT", "GROUP"} & {*words}


def test_an_alert_about_a_group_is_acknowledged_until_it_is_over(page: Page) -> None:
    act = """([lagging, healthy, view]) => import('/console/cases.js').then(({Cases}) => {
        const seen = [];
        let metrics = lagging;
        const again = () => {
            cases.update(metrics, view);
            seen.push([document.querySelectorAll('.case').length, document.getElementById('health-text').textContent,
                document.getElementById('acknowledged').hidden]);
        };
        const cases = new Cases({again, remove() {}, letters() {}});
        const acknowledge = () => document.querySelector('.acts button:last-of-type').click();
        again();
        acknowledge();
        document.getElementById('acknowledged-clear').click();
        acknowledge();
        metrics = healthy;
        again();
        metrics = lagging;
        again();
        return seen;
    })"""
    told, quiet = [1, "1 thing is wrong", True], [0, "All is well", False]
    healthy = HEALTHY | {"server_id": "acknowledging"}
    lagging = healthy | {"consumer_groups": [LAGGING]}
    over = [0, "All is well", True]
    assert page.evaluate(act, [lagging, healthy, VIEW]) == [told, quiet, told, quiet, over, told]


def test_alerts_lead_into_the_runbook_of_the_server(web: Web, page: Page) -> None:
    books = page.evaluate("import('/console/cases.js').then(module => module.BOOKS)")
    document = web.ask("GET", "/console/runbook.html").body.decode()
    assert len(books) >= 15
    for path, _, name in (book.partition("#") for book in books):
        assert path == "/console/runbook.html"
        assert f'id="{name}"' in document
    page.goto(page.url + "console/runbook.html")
    expect(page.get_by_role("heading", name="9. A consumer group never acks")).to_be_visible()
    assert violations(page) == []


def test_a_group_is_removed_after_a_question(web: Web, page: Page) -> None:
    send(web, "console.forgotten", delay_ms=0)
    path = "/v1/subjects/console.forgotten/groups/tutorial"
    assert web.post(f"{path}/pull", {"max_messages": 1, "wait_ms": 30_000}).json["messages"]
    ask = """() => import('/console/consumers.js').then(({ConsumersPanel}) => {
        globalThis.removed = new ConsumersPanel(() => {}).remove({subject: 'console.forgotten', group: 'tutorial'});
    })"""
    page.evaluate(ask)
    page.keyboard.press("Escape")
    assert page.evaluate("globalThis.removed") is False
    assert web.ask("GET", path).status == 200
    page.evaluate(ask)
    page.get_by_role("button", name="Remove the group").click()
    assert page.evaluate("globalThis.removed") is True
    assert web.ask("GET", path).status == 404


def test_dead_letters_are_looked_at_sent_again_and_dropped(web: Web, desk: Desk) -> None:
    path = "/v1/subjects/console.dead/groups/g"
    assert web.ask("PATCH", f"{path}/policy", {"attempts": 1}).status == 200
    for number in range(3):
        send(web, "console.dead", delay_ms=0, message_id=f"dead-{number}", body=f"poison {number}")
    found: list[str] = []
    while len(found) < 3:
        pulled = web.post(f"{path}/pull", {"max_messages": 3, "wait_ms": 30_000}).json["messages"]
        found += [each["delivery"] for each in pulled]
    assert web.post(f"{path}/nack", {"deliveries": found}).json["dead_lettered"] == 3
    page = desk.open()
    row = page.locator("#consumer-rows tr", has_text="console.dead")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Dead letters of g on console.dead").click()
    letters = page.locator("#letters-list li")
    expect(letters).to_have_count(3)
    expect(page.locator("#letters-list")).to_contain_text("dead-1")
    letters.first.locator("summary").click()
    expect(letters.first.locator("pre")).to_contain_text("poison")
    # A link leads a colleague to them.
    other = desk.open(at=page.url)
    expect(other.locator("#letters-list li")).to_have_count(3)
    letters.first.get_by_role("button", name=re.compile("again")).click()
    page.get_by_role("dialog", name="Send again?").get_by_role("button", name="Send again").click()
    expect(letters).to_have_count(2)
    again = web.post(f"{path}/pull", {"max_messages": 1, "wait_ms": 30_000}).json["messages"]
    assert again[0]["body"].startswith("poison")
    page.get_by_role("button", name="Drop those shown").click()
    page.get_by_role("button", name="Drop them").click()
    expect(page.locator("#letters-lead")).to_contain_text("This group gave no message up")
    assert web.ask("GET", f"{path}/dead-letters").json["letters"] == []
    page.get_by_role("button", name="Close").last.click()
    expect(page.locator("#letters")).to_be_hidden()
    assert "letters=" not in page.url


def test_the_command_that_pulls_goes_to_the_node_that_has_the_messages(visitor: Desk, tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        '[[groups]]\nname = "far"\nnodes = ["127.0.0.1:1"]\n[[routes]]\npattern = "*"\ngroups = ["far"]\n'
    )
    web = serve("--data-dir", str(tmp_path / "data"), "--config", str(config))
    try:
        page = visitor.open(at=address(web))
        expect(page.locator("#consumers-pull")).to_contain_text("delayserver pull orders")
        assert "--server 127.0.0.1:1" in page.locator("#consumers-pull").inner_text()
        assert "curl" not in page.locator("#welcome-pull").inner_text()
        assert page.locator("#consumers-none .shell button").count() == 1
    finally:
        visitor.close()
        stop(web)
