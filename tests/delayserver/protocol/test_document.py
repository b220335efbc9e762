"""PROTOCOL.md: its bytes are frames of this protocol and mean what the page says."""

from __future__ import annotations

import pathlib
import re

import pytest

from delayserver.client.messages import ServerInfo
from delayserver.client.pull_calls import ack_call
from delayserver.client.send_calls import SendColumns, send_columns_call
from delayserver.protocol.errors import NotReady
from delayserver.protocol.frames import FrameDecoder, decode_reply, decode_request
from delayserver.protocol.limits import Limits
from delayserver.protocol.receipts import parse_receipt

TEXT = (pathlib.Path(__file__).parents[3] / "PROTOCOL.md").read_text()
FRAMES = {name: bytes.fromhex(dump) for name, dump in re.findall(r"```hex (.+?)\n(.*?)```", TEXT, re.DOTALL)}
SERVER_ID, DUE_MS = "5f3a9c0d2b71", 1_800_000_000_000


def payload(name: str) -> bytes:
    [only] = FrameDecoder().feed(FRAMES[name])
    return bytes(only)


@pytest.mark.parametrize("name", FRAMES)
def test_every_dump_is_one_whole_frame_of_its_operation(name: str) -> None:
    operation, kind = name.split(maxsplit=1)[0], name.rsplit(maxsplit=1)[-1]
    if kind == "request":
        assert decode_request(payload(name)).operation == operation
    else:
        assert decode_reply(payload(name)).id > 0


def test_the_replies_say_what_the_page_says() -> None:
    hello = decode_reply(payload("hello reply")).result
    assert hello is not None
    assert hello["server_id"] == SERVER_ID
    assert Limits.from_map(hello["limits"]) == Limits()
    assert type(decode_reply(payload("error reply")).error) is NotReady
    sent = decode_reply(payload("send reply")).result
    assert sent is not None
    receipt = parse_receipt(sent["results"][0]["receipt"])
    assert (receipt.server_id, receipt.due_ms, receipt.sequence) == (SERVER_ID, DUE_MS, 42)
    assert str(receipt) in TEXT


def test_the_client_draws_and_reads_the_columns_of_the_page() -> None:
    due_ms = [DUE_MS, DUE_MS + 5, DUE_MS + 1]
    call = send_columns_call(SendColumns("orders", due_ms, [b"a", b"bb", b"ccc"]))
    assert call.arguments == decode_request(payload("send columns request")).arguments
    result = decode_reply(payload("send columns reply")).result
    assert result is not None
    sent = call.read(result, ServerInfo(SERVER_ID, 1, "server", "", Limits()))
    assert (sent.sequence.tolist(), sent.due_ms.tolist()) == ([43, 44, 45], due_ms)
    assert ack_call("orders", "billing", [7]).arguments == decode_request(payload("ack request")).arguments


def test_the_defaults_of_the_page_are_those_of_the_code() -> None:
    for name, value in Limits().to_map().items():
        assert f"| `{name}` | {value:,} |" in TEXT
