"""The pages of the protocol: bytes are test vectors, the client runs as it stands, tables are what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from delayserver.client.calls.core import NO_SERVER
from delayserver.client.calls.pull_calls import ack_call
from delayserver.client.calls.send_calls import SendColumns, send_columns_call
from delayserver.config.settings import Settings
from delayserver.protocol.errors import ERRORS
from delayserver.protocol.frames import FrameDecoder, decode_reply, decode_request
from delayserver.protocol.keepalive import IDLE_S, INTERVAL_S, PROBES
from delayserver.protocol.limits import LIST_ITEMS_MAX, Limits
from delayserver.protocol.operation_names import OPERATIONS
from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from ops.docs.frame_pages import dump_of, frames
from ops.docs.protocol_tables import PAGES
from ops.docs.wire_tables import MADE_BY_CLIENTS
from tests.delayserver.cli.conftest import serve
from tests.delayserver.protocol import vectors

TEXT = vectors.told()
FRAMES = {frame["name"]: frame["hex"] for frame in json.loads(vectors.VECTORS.read_text())["frames"]}
VALUES = re.findall(r"```value (.+?)\n(.*?)```", TEXT, re.DOTALL)
EXPLAINED = re.findall(r"```bytes (.+?)\n(.*?)```", TEXT, re.DOTALL)
CLIENT_SECONDS_MAX = 60


def section(title: str) -> str:
    """A part of the page, from its heading to the next one of the same level."""
    level = title.partition(" ")[0]
    _, _, rest = TEXT.partition(f"\n{title}\n")
    assert rest, f"there is no section {title!r}"
    return re.split(rf"\n{level} ", rest, maxsplit=1)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, without heads."""
    found = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in found if not set("".join(row)) <= set("-: ")]


def payload(name: str) -> bytes:
    [only] = FrameDecoder().feed(bytes.fromhex(FRAMES[name]))
    return bytes(only)


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_every_value_is_that_of_its_vector(name: str, value: str) -> None:
    assert value == vectors.value_of(name), "run python -m tests.delayserver.protocol.vectors"


def test_the_page_of_examples_shows_the_bytes_of_every_operation() -> None:
    page = frames(vectors.ROOT)
    assert [name for name, frame in FRAMES.items() if dump_of(frame) not in page] == []
    assert [operation for operation in OPERATIONS if f', "{operation}", ' not in page.replace("\n ", "")] == []


@pytest.mark.parametrize(("name", "lines"), EXPLAINED)
def test_every_explained_frame_is_a_vector(name: str, lines: str) -> None:
    assert "".join([line[:48] for line in lines.splitlines()]).replace(" ", "") == FRAMES[name]
    quoted = re.findall(r'"([^"]+)"', "".join([line[48:] for line in lines.splitlines()]))
    value = json.dumps(vectors.to_json((vectors.REQUESTS | vectors.REPLIES)[name]))
    assert all(f'"{text}"' in value for text in quoted)


def test_the_client_of_the_page_sends_pulls_and_acks_one_message(tmp_path: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    script = tmp_path / "client.py"
    script.write_text(program)
    server = serve(tmp_path / "data")
    try:
        done = subprocess.run(
            [sys.executable, str(script), server.address],
            check=False,
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS_MAX,
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr
    sent, pulled, acked = done.stdout.splitlines()
    assert f"'receipt': '{server.server_id}-" in sent
    assert pulled.startswith("pulled b'hi' ")
    assert acked == "acked {'acked': 1, 'unknown': 0}"


def test_the_clients_draw_and_read_the_columns_of_the_page() -> None:
    due_ms = vectors.DUE_COLUMN.tolist()
    call = send_columns_call(SendColumns("orders", due_ms, [b"a", b"bb", b"ccc"]))
    assert call.arguments == decode_request(payload("send columns request")).arguments
    result = decode_reply(payload("send columns reply")).result
    assert result is not None
    sent = call.read(result, replace(NO_SERVER, server_id=vectors.SERVER_ID))
    assert (sent.sequence.tolist(), sent.due_ms.tolist()) == ([43, 44, 45], due_ms)
    acked = ack_call("orders", "billing", [vectors.DELIVERY])
    assert acked.arguments == decode_request(payload("ack request")).arguments


def test_every_operation_has_a_section() -> None:
    headings = {name for line in TEXT.splitlines() if line.startswith("### ") for name in re.findall(r"`(\w+)`", line)}
    assert headings == OPERATIONS


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section("## 9 Bounds")) if row[1].replace(",", "").isdigit()}
    for name, value in Limits().to_map().items():
        assert told[name] == f"{value:,}"
    assert f"An array or map of a request has at most {LIST_ITEMS_MAX:,} items." in TEXT
    assert f"{IDLE_S} s, then every {INTERVAL_S} s, {PROBES} probes" in TEXT


def default_of(setting: str) -> Any:
    return reduce(getattr, setting.split("."), Settings())


def test_the_settings_of_the_page_are_there_and_have_the_values_that_it_tells() -> None:
    folders = "listen|message|storage|wheel|dispatch|broker|transactions"
    for setting in set(re.findall(rf"`((?:{folders})\.\w+)`", TEXT)):
        if setting in ("storage.retired_windows_ahead", "storage.oldest_due_ms"):  # of `status`
            continue
        default_of(setting)
    bounds = [row for row in rows(section("## 9 Bounds")) if row[0].startswith("`")]
    assert len(bounds) > len(Limits().to_map())
    for row in bounds:
        setting = row[0].strip("`") if "." in row[0] else row[2].strip("`")
        assert row[1] == f"{default_of(setting):,}", row


def test_the_table_of_errors_is_that_of_the_code() -> None:
    told = {row[0].strip("`"): row for row in rows(section("## 10 Errors")) if row[0].startswith("`")}
    assert told.keys() == ERRORS.keys() - MADE_BY_CLIENTS
    for name, (_, fault, what, again) in told.items():
        assert again.startswith("yes") == ERRORS[name].retriable, name
        assert fault in ("client", "operator", "server", "nobody")
        assert what


def test_the_table_of_outcomes_is_that_of_the_code() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(section("### Outcomes")) if row[1].isdigit()}
    assert told == {label: str(int(Outcome[label.upper()])) for label in OUTCOME_LABELS}


def anchors(page: Path) -> set[str]:
    headings = [line.lstrip("# ") for line in page.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            file, _, anchor = target.partition("#")
            if not target.startswith("https://"):
                path = page.parent / file if file else page
                assert path.exists(), target
                assert not anchor or anchor in anchors(path), target
