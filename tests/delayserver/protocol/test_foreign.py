"""A stream of another protocol is named, in both directions and with real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from delayserver.protocol.errors import FrameTooLarge
from delayserver.protocol.foreign import foreign_protocol
from delayserver.protocol.frames import FrameDecoder
from tests.delayserver.cli.conftest import run, serving


@pytest.mark.parametrize("head", [b"HTTP", b"GET ", b"POST", b"PUT ", b"DELE", b"PRI ", b"HEAD", b"OPTI", b"PATC"])
def test_http_is_known_by_its_first_bytes(head: bytes) -> None:
    assert foreign_protocol(head) == "HTTP"


def test_a_handshake_of_tls_is_known() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    stream = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        stream.do_handshake()
    assert foreign_protocol(outgoing.read()[:4]) == "TLS"


@pytest.mark.parametrize("length", [0, 1, 256, 16 << 20, (1 << 32) - 1])
def test_a_frame_is_none_of_them(length: int) -> None:
    assert foreign_protocol(length.to_bytes(4, "little")) == ""


def test_the_decoder_names_the_protocol_whole_and_in_pieces() -> None:
    for pieces in ([b"GET / HTTP/1.1\r\n"], [b"G", b"ET ", b"/"]):
        decoder = FrameDecoder()
        with pytest.raises(FrameTooLarge, match="HTTP") as caught:
            for piece in pieces:
                decoder.feed(piece)
        assert caught.value.speaks == "HTTP"


def test_wrong_ports_are_named_both_ways(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--http-port", "0") as plain:
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{plain.address}/v1/status", timeout=60)
        assert caught.value.code == 400
        assert b"HTTP is on another port" in caught.value.read()
    with socket.create_server(("127.0.0.1", 0)) as http:
        address = f"127.0.0.1:{http.getsockname()[1]}"

        def answer() -> None:
            peer, _ = http.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        done = run("status", "--server", address)
        assert done.code == 1
        assert "these bytes are HTTP" in done.err
