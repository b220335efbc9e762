"""The files of the console as a browser gets them, and the search behind them."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.delayserver.web.web_server import Web

CONSOLE = Path(__file__).parents[3] / "delayserver" / "web" / "console"
FILES = sorted(path.name for path in CONSOLE.iterdir())


def test_each_file_comes_with_the_security_policy(web: Web) -> None:
    for name in FILES:
        reply = web.ask("GET", "/" if name == "index.html" else f"/console/{name}")
        assert reply.status == 200, name
        assert reply.body == (CONSOLE / name).read_bytes()
        assert reply.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"


def test_a_file_that_has_not_changed_is_not_sent_again(web: Web) -> None:
    first = web.ask("GET", "/")
    again = web.ask("GET", "/", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    assert web.ask("GET", "/", headers={"If-None-Match": '"other"'}).status == 200


def test_a_file_comes_zipped_to_clients_that_accept_gzip(web: Web) -> None:
    zipped = web.ask("GET", "/console/style.css", headers={"Accept-Encoding": "br, gzip;q=0.8"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == (CONSOLE / "style.css").read_bytes()


@pytest.mark.parametrize(
    "path", ["/console/", "/console/../pages.py", "/console/%2e%2e/pages.py", "/console/none.js", "/index.html"]
)
def test_an_unknown_path_is_answered_with_404(web: Web, path: str) -> None:
    reply = web.ask("GET", path)
    assert (reply.status, reply.json["error"]) == (404, "path_unknown")


def test_no_file_names_another_host_or_holds_a_script_in_a_page() -> None:
    for name in FILES:
        text = (CONSOLE / name).read_text()
        hosts = {*re.findall(r"https?://([\w.-]+)", text)} - {"www.w3.org"}
        assert hosts == set(), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
    page = (CONSOLE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|\sstyle=|<style|\son\w+=", page) == []


def test_stored_messages_are_found_by_id_and_subject(web: Web) -> None:
    subject = "pages/found here"
    sent = web.post("/v1/messages", {"subject": subject, "body": "hello", "message_id": "find-1", "delay_ms": 0}).json
    path = f"/v1/subjects/{quote(subject, safe='')}/groups/me/pull"
    assert len(web.post(path, {"max_messages": 1, "wait_ms": 30_000, "ack": True}).json["messages"]) == 1
    for query in ("message_id=find-1", f"subject={quote(subject)}&max=5"):
        (found,) = web.ask("GET", f"/v1/find?{query}").json["messages"]
        assert found["receipt"] == sent["receipt"]
        assert (found["message_id"], found["body"], found["position"]) == ("find-1", "hello", 0)
    assert web.ask("GET", "/v1/find?message_id=none").json == {"messages": []}


@pytest.mark.parametrize("query", ["", "message_id=a&key=b", "max=0&key=a", "key=two%20words", "other=1"])
def test_a_search_that_makes_no_sense_is_refused(web: Web, query: str) -> None:
    reply = web.ask("GET", f"/v1/find?{query}")
    assert (reply.status, reply.json["error"]) == (400, "invalid_argument")
