"""Those who mean no good: tricks with heads, paths and bodies, slow and greedy clients. Nobody gets a 500, nothing leaks,
and others are answered meanwhile.
"""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.delayserver.web.web_server import SECONDS_MAX, Web, serve, stop

MIB = 1 << 20
LEAK_BYTES_MAX = 48 * MIB


@pytest.fixture(scope="module")
def strict() -> Iterator[Web]:
    """A server whose gateway has little patience and few connections."""
    patience = (
        "http.head_timeout_ms=2s",
        "http.body_timeout_ms=2s",
        "http.idle_timeout_ms=4s",
        "http.connections_max=64",
    )
    running = serve("--memory", *(word for each in patience for word in ("--set", each)))
    try:
        yield running
        assert stop(running) == ""
    finally:
        running.process.kill()
        running.process.communicate()


def answer(web: Web, data: bytes) -> bytes:
    """What comes back for some bytes, to the end of the connection."""
    with closing(web.connect()) as connection:
        # The other end may have answered already, and does not read for ever.
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
        return to_the_end(connection)


def to_the_end(connection: socket.socket) -> bytes:
    """What comes until the other end closes. A reset counts as that."""
    found = b""
    try:
        while data := connection.recv(65_536):
            found += data
    except ConnectionResetError:
        pass
    return found


def statuses(found: bytes) -> list[int]:
    """The status codes of answers that came one after the other."""
    return [int(part[1:4]) for part in found.split(b"HTTP/1.1")[1:]]


def memory_bytes(web: Web) -> int:
    """The resident memory of the gateway."""
    for line in Path(f"/proc/{web.gateway()}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no memory")


@contextmanager
def without_leak(web: Web) -> Iterator[None]:
    """The gateway keeps nothing of what the block does to it."""
    assert web.ask("GET", "/healthz").status == 200
    before = memory_bytes(web)
    yield
    until = time.monotonic() + SECONDS_MAX
    while memory_bytes(web) > before + LEAK_BYTES_MAX:
        assert time.monotonic() < until, f"{memory_bytes(web) - before} bytes more than before"
        time.sleep(0.1)
    assert web.ask("GET", "/healthz").status == 200


END = b"Connection: close\r\n\r\n"
GET = b"GET /healthz HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"
POST = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"

HEADS: dict[str, tuple[bytes, set[int]]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400}),
    "our own protocol": (b"\x23\x00\x00\x00\x93\x01\xa5hello\r\n\r\n", {400}),
    "no host": (GET + END, {400}),
    "two hosts": (GET + b"Host: a\r\nHost: b\r\n" + END, {400}),
    "a space before the colon": (GET + b"Host : a\r\n" + END, {400}),
    "a folded header": (GET + b"Host: localhost\r\nX: b\r\n c\r\n" + END, {200, 400}),
    "a NUL in a header": (GET + b"Host: localhost\r\nX: a\x00b\r\n" + END, {400}),
    "a bare line feed": (b"GET /healthz HTTP/1.1\nHost: localhost\nConnection: close\n\n", {200, 400}),
    "a carriage return in a header": (GET + b"Host: localhost\r\nX: a\rb\r\n" + END, {400}),
    "a length that is no number": (POST + b"Content-Length: ten\r\n" + END, {400}),
    "a negative length": (POST + b"Content-Length: -5\r\n" + END, {400}),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n" + END + b"hello!", {400}),
    "a length of 30 digits": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n" + END, {400}),
    "length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + END + b"0\r\n\r\n", {400}),
    "chunks within something else": (POST + b"Transfer-Encoding: chunked, identity\r\n" + END + b"0\r\n\r\n", {400}),
    "no length in digits": (POST + b"Content-Length:\r\n" + END, {400}),
    "a length with a sign": (POST + b"Content-Length: +2\r\n" + END + b"{}", {400}),
    "the same length twice": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n" + END + b"{}", {400}),
    "a list of lengths": (POST + b"Content-Length: 2, 2\r\n" + END + b"{}", {400}),
    "a length that overflows": (POST + b"Content-Length: 18446744073709551618\r\n" + END + b"{}", {400}),
    "a folded length": (POST + b"Content-Length:\r\n 2\r\n" + END + b"{}", {400}),
    "chunks behind a space": (GET + HOST + b"Transfer-Encoding : chunked\r\n" + END + b"0\r\n\r\n", {400}),
    "chunks behind a control character": (GET + HOST + b"Transfer-Encoding: \x0bchunked\r\n" + END, {400}),
    "zipped chunks": (GET + HOST + b"Transfer-Encoding: gzip, chunked\r\n" + END + b"0\r\n\r\n", {400}),
    "chunks twice": (GET + HOST + b"Transfer-Encoding: chunked\r\n" * 2 + END + b"0\r\n\r\n", {400}),
    "chunks behind identity": (
        GET + b"Host: localhost\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n" + END + b"0\r\n\r\n", {400}
    ),
    "chunks in HTTP/1.0": (
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}
    ),
    "a header that begins with a space": (GET + b" Host: localhost\r\n" + END, {400}),
    "a bare line feed behind a header": (GET + b"Host: localhost\nX: y\r\n" + END, {400}),
    "two hosts in HTTP/1.0": (b"GET /healthz HTTP/1.0\r\nHost: evil\r\nHost: localhost\r\n\r\n", {400}),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", {400}),
    "a path without a slash": (b"GET *v1/status HTTP/1.1\r\nHost: localhost\r\n" + END, {400}),
    "an authority": (b"GET localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + END, {400}),
    "another place than the host": (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {400}),
    "the place of the host": (b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {200}),
    "a scheme that is not HTTP": (b"GET ftp://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {400}),
    "a host with a path": (GET + b"Host: localhost/x@evil.example\r\n" + END, {403}),
    "a request behind the last one": (GET + b"Host: localhost\r\n" + END + GET + b"Host: localhost\r\n" + END, {200}),
    "a head of a stream": (b"HEAD /v1/subjects/s/groups/g/deliveries HTTP/1.1\r\nHost: localhost\r\n" + END, {405}),
    "an encoding that nobody knows": (POST + b"Transfer-Encoding: magic\r\n" + END, {400}),
    "a large header": (GET + b"Host: localhost\r\nX: " + b"a" * 40_000 + b"\r\n" + END, {431}),
    "an endless header": (GET + b"Host: localhost\r\nX: " + b"a" * 400_000, {431}),
    "many headers": (GET + b"Host: localhost\r\n" + b"X: y\r\n" * 10_000 + END, {431}),
    "a long path": (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n" + END, {431}),
    "an endless path": (b"GET /" + b"a" * 400_000, {431}),
    "an endless method": (b"G" * 400_000, {400, 431}),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n", {200}),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
    "HTTP/9.9": (b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n" + END, {400}),
    "a wish for a web socket": (
        GET + b"Host: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
        {200},
    ),
    "a wish for HTTP/2": (GET + b"Host: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n", {200}),
    "an expectation": (POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n" + END + b"{}", {100, 400}),
    "a strange expectation": (POST + b"Expect: miracles\r\nContent-Length: 2\r\n" + END + b"{}", {400, 417}),
    "a method that nobody knows": (b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {400, 405}),
    "a tunnel": (b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n" + END, {400, 404, 405}),
    "a trace": (b"TRACE /healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {400, 405}),
    "options of all": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + END, {400, 404, 405}),
    "a proxy's path": (b"GET http://example.com/healthz HTTP/1.1\r\nHost: localhost\r\n" + END, {200, 400, 404}),
    "a type of no encoding": (POST + b"Content-Type: \xff\xfe; charset=\x80\r\nContent-Length: 2\r\n" + END + b"{}", {400}),
    "a key beyond all bounds": (POST + b"Idempotency-Key: " + b"k" * 5000 + b"\r\nContent-Length: 40\r\n" + END
                                + b'{"subject":"s","body":"x","delay":"10m"}', {400}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_a_trick_with_the_head_gets_an_answer_and_never_a_500(web: Web, name: str) -> None:
    data, allowed = HEADS[name]
    found = answer(web, data)
    assert statuses(found) and set(statuses(found)) <= allowed, found[:500]
    if statuses(found)[-1] >= 400:
        assert b"application/problem+json" in found


def test_a_request_that_asks_for_another_protocol_keeps_its_body_and_its_connection(web: Web) -> None:
    body = b'{"subject":"upgrades","body":"x","delay":"1h"}'
    head = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    plain = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    found = answer(web, plain + chunked + plain + GET + b"Host: localhost\r\n" + END)
    assert statuses(found) == [201, 201, 201, 200]


ROW = b'{"subject":"bombs","delay":"1h","body":%b}'
DEEP = b"[" * 100_000 + b"]" * 100_000
DOCUMENTS = {
    "brackets": ROW % DEEP,
    "braces": ROW % (b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a body that is not UTF-8": ROW % b'"\xff"',
    "an overlong slash": ROW % b'"\xc0\xaf"',
    "a surrogate in UTF-8": ROW % b'"\xed\xa0\x80"',
    "a surrogate": ROW % b'"\\ud800"',
    "surrogates in the wrong order": ROW % b'"\\udc00\\ud800"',
    "a wrong escape": ROW % b'"\\x41"',
    "a subject that is not UTF-8": b'{"subject":"\xff","delay":"1h","body":1}',
    "a subject with a NUL": b'{"subject":"a\\u0000b","delay":"1h","body":1}',
    "a property that is a surrogate": b'{"subject":"s","delay":"1h","body":1,"properties":{"\\ud800":"\\udfff"}}',
    "no number": ROW % b"NaN",
    "a number of a million digits": b'{"subject":"s","body":1,"due_ms":' + b"9" * 1_000_000 + b"}",
    "a number without end": b'{"subject":"s","body":1,"delay_ms":1e999}',
    "a delay of a million parts": b'{"subject":"s","body":1,"delay":"' + b"1h" * 1_000_000 + b'"}',
    "a time of a million digits": b'{"subject":"s","body":1,"at":"' + b"2" * 1_000_000 + b'"}',
    "a message id of a million letters": b'{"subject":"s","body":1,"delay":"1h","message_id":"'
    + b"i" * 1_000_000
    + b'"}',
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_bomb_in_json_is_refused_wherever_it_comes(web: Web, name: str) -> None:
    document = DOCUMENTS[name]
    assert web.ask("POST", "/v1/messages", document).status == 400
    as_list = web.ask("POST", "/v1/messages", b"[%b]" % document)
    assert as_list.status == 400 or as_list.json[0]["status"] == 400, as_list
    as_lines = web.ask("POST", "/v1/messages", document, headers={"content-type": "application/x-ndjson"})
    assert as_lines.json["status"] == 400
    event = b'{"specversion":"1.0","id":"1","source":"s","type":"t","extension":%b}' % document
    structured = {"content-type": "application/cloudevents+json"}
    assert web.ask("POST", "/v1/messages?delay=1h", event, headers=structured).status == 400


def test_one_message_has_less_room_than_a_list(web: Web) -> None:
    row = b'{"subject":"room","delay":"1h","body":"x"}' + b" " * (8 * MIB)
    assert web.ask("POST", "/v1/messages", row).status == 413
    assert web.ask("POST", "/v1/messages", b"[%b]" % row).json[0]["subject"] == "room"
    event = b'{"specversion":"1.0","id":"1","source":"s","type":"t",%b"x":1}' % b"".join(
        [b'"a%d":1,' % n for n in range(5000)]
    )
    structured = {"content-type": "application/cloudevents+json"}
    assert web.ask("POST", "/v1/messages?delay=1h", event, headers=structured).status == 400


def test_a_list_of_millions_of_rows_takes_no_memory(web: Web) -> None:
    with without_leak(web):
        for row in (b"0", b"{}"):
            assert web.ask("POST", "/v1/messages", b"[" + (row + b",") * 4_000_000 + row + b"]").status in (400, 413)


def test_a_trailer_does_not_become_a_header(web: Web) -> None:
    body = b'{"subject":"trailers","body":"x","delay_ms":0}'
    chunked = b"%x\r\n%s\r\n0\r\nIdempotency-Key: smuggled\r\n\r\n" % (len(body), body)
    found = answer(web, POST + b"Transfer-Encoding: chunked\r\n" + END + chunked)
    assert statuses(found) == [201] and b"smuggled" not in found


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/console/../gateway.py",
        "/index.html/..%2f..%2fgateway.py",
        "/%00",
        "/index.html%00.png",
        "/%ff%fe",
        "//healthz",
        "/healthz/",
        "/v1//messages",
        "/v1/messages/%ff",
        "/v1/messages/../../etc/passwd",
        "/v1/messages/" + "a" * 20_000,
        "/v1/subjects/%00/groups/g/deliveries",
        "/v1/subjects/s/groups/" + "g" * 300 + "/deliveries",
        "/\\..\\..\\etc",
        "/v1/status;a=b",
        "/v1/groups?subject=%ff",
        "/v1/messages?subject=a&subject=b",
        "/" + "a/" * 5000,
        "/v1/%73tatus",
        "/v1/status%2f",
        "/v1/./status",
        "/v1/x/../status",
        "/v1%2fstatus",
        "/%2e/v1/status",
        "/v1/subjects/%c0%af/groups",
        "/v1/subjects/%ed%a0%80/groups",
        "/v1/subjects/s%2fgroups",
        "/v1/subjects/a%0d%0ax-injected:%20b/groups",
        "/nothing%0d%0ax-injected:%20b",
        "/%" ,
        "/%zz",
    ],
)  # fmt: skip
def test_a_trick_with_the_path_finds_nothing(web: Web, path: str) -> None:
    found = answer(web, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1"))
    assert (
        statuses(found)[0] in (200, 400, 403, 404, 421) and b"root:" not in found and b"import annotations" not in found
    )
    assert b"\nx-injected" not in found
    if statuses(found)[0] == 200:  # a group of a strange subject, or a list without groups
        assert "groups" in path or path == "//healthz", found[:300]


BAD_CHUNKS = {
    "a length that is no number": b"zz\r\nhello\r\n",
    "a negative length": b"-5\r\nhello\r\n",
    "a length of 17 digits": b"10000000000000000\r\nhello\r\n",
    "too many bytes": b"2\r\nhello\r\n0\r\n\r\n",
    "no end of the chunk": b"5\r\nhelloXX0\r\n\r\n",
    "an endless extension": b"5;" + b"a" * 400_000,
    "an endless trailer": b"0\r\nX: " + b"a" * 400_000,
    "many trailers": b"0\r\n" + b"X: y\r\n" * 100_000,
}


@pytest.mark.parametrize("name", BAD_CHUNKS)
@pytest.mark.parametrize("kind", [b"application/json", b"application/x-ndjson"])
def test_malformed_chunks_end_the_request(web: Web, name: str, kind: bytes) -> None:
    head = POST + b"Content-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = answer(web, head + BAD_CHUNKS[name])
    # Lines are answered from the first one on, so that answer may have begun.
    assert set(statuses(found)) <= {200, 400, 431} and b" 500 " not in found


def test_pipelined_requests_are_answered_in_order(web: Web) -> None:
    requests = b"".join(
        b"GET /v1/messages/%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number
        if number % 2
        else GET + b"Host: localhost\r\n\r\n"
        for number in range(20)
    )
    found = answer(web, requests + GET + b"Host: localhost\r\n" + END)
    assert statuses(found) == [200, 400] * 10 + [200]


def test_a_bad_request_behind_good_ones_is_answered_behind_them(web: Web) -> None:
    found = answer(web, (GET + b"Host: localhost\r\n\r\n") * 3 + b"nonsense\r\n\r\n" + GET + b"Host: localhost\r\n\r\n")
    assert statuses(found) == [200, 200, 200, 400]


def test_a_flood_of_pipelined_requests_is_refused(web: Web) -> None:
    with without_leak(web):
        for _ in range(10):
            found = answer(web, (GET + b"Host: localhost\r\n\r\n") * 5000)
            assert set(statuses(found)) == {200, 429} and statuses(found)[-1] == 429


def test_a_declared_body_of_10_gb_is_refused_at_once(web: Web) -> None:
    with closing(web.connect()) as connection:
        connection.sendall(POST + b"Content-Length: 10737418240\r\n\r\n{")
        assert statuses(to_the_end(connection)) == [413]


def flood(connection: socket.socket, size: int, piece: bytes) -> int:
    """Send until the other end has enough; how much went out."""
    sent = 0
    try:
        while sent < size:
            connection.sendall(piece)
            sent += len(piece)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent


@pytest.mark.parametrize("kind", [b"application/json", b"application/x-ndjson"])
def test_a_chunked_body_of_10_gb_is_cut_and_other_requests_do_not_wait(web: Web, kind: bytes) -> None:
    with without_leak(web), ExitStack() as stack:
        greedy = [stack.enter_context(closing(web.connect())) for _ in range(4)]
        for connection in greedy:
            connection.sendall(POST + b"Content-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        for connection in greedy:
            assert flood(connection, 10 * 1024 * MIB, piece) < 256 * MIB
            assert web.post("/v1/messages", {"subject": "s", "body": "x", "delay": "1h"}).status == 201


def test_a_body_that_another_path_does_not_read_ends_its_connection(web: Web) -> None:
    for path in (b"GET /healthz", b"DELETE /v1/messages/x", b"POST /nothing", b"PUT /v1/status", b"GET /"):
        with closing(web.connect()) as connection:
            connection.sendall(path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10737418240\r\n\r\n")
            found = to_the_end(connection)
            assert len(statuses(found)) == 1 and statuses(found)[0] < 500


def test_a_body_cannot_hide_a_second_request(web: Web) -> None:
    hidden = GET + b"Host: localhost\r\n\r\n"
    with closing(web.connect()) as connection:
        connection.sendall(
            b"DELETE /v1/messages/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (2 * len(hidden))
        )
        connection.sendall(hidden)
        assert len(statuses(to_the_end(connection))) == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHo", 408),
        (POST + b"Content-Length: 100\r\n\r\n{", 408),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel", 408),
    ],
)
def test_a_client_that_stops_in_the_middle_is_let_go(strict: Web, data: bytes, status: int) -> None:
    assert statuses(answer(strict, data)) == [status]


def test_a_client_that_drips_is_let_go(strict: Web) -> None:
    with closing(strict.connect()) as connection:
        connection.sendall(POST + b"Content-Length: 1000000\r\n\r\n")
        connection.settimeout(0.2)
        found = b""
        until = time.monotonic() + SECONDS_MAX
        while not found:
            assert time.monotonic() < until, "it drips for ever"
            connection.sendall(b" ")
            try:
                found = connection.recv(65_536)
            except TimeoutError:
                pass
    assert statuses(found) == [408]


def test_an_idle_connection_is_closed(strict: Web) -> None:
    with closing(strict.connect()) as silent, closing(strict.connect()) as used:
        used.sendall(GET + b"Host: localhost\r\n\r\n")
        assert to_the_end(used).endswith(b'{"status":"ok"}\n')
        assert to_the_end(silent) == b""


def test_a_client_that_reads_nothing_is_cut(strict: Web) -> None:
    row = json.dumps({"subject": "unread", "body": "", "delay": "1h"}).encode() + b"\n"
    with without_leak(strict), closing(strict.connect()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(POST + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = row * 500
        assert flood(connection, 1024 * MIB, b"%x\r\n%s\r\n" % (len(piece), piece)) < 512 * MIB


def test_when_connections_run_out_the_oldest_idle_one_gives_way(strict: Web) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(closing(strict.connect())) for _ in range(64)]
        # A connection that is idle for a moment only may have a request on its way, and stays.
        eventually(lambda: strict.ask("GET", "/healthz").status == 200)
        assert to_the_end(idle[0]) == b""
    with ExitStack() as stack:
        body = b'{"wait_ms": 60000}'
        pull = b"POST /v1/subjects/busy/groups/g/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )

        def is_full() -> bool:
            # One more each time: connections of the test before may have been there still.
            stack.enter_context(closing(strict.connect())).sendall(pull + body)
            with closing(strict.connect()) as connection:
                return statuses(to_the_end(connection)) == [503]

        for _ in range(64):
            stack.enter_context(closing(strict.connect())).sendall(pull + body)
        eventually(is_full)
    eventually(lambda: strict.ask("GET", "/healthz").status == 200)


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while True:
        try:
            if holds():
                return
        except ConnectionError:
            pass
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


def test_thousands_of_idle_connections_slow_no_other_client(web: Web) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        document = {"subject": "s", "body": "x", "delay": "1h"}
        count = 10_000 if hard == resource.RLIM_INFINITY else min(hard - 200, 10_000)
        with without_leak(web), ExitStack() as stack:
            for number in range(count):
                connection = stack.enter_context(closing(web.connect()))
                if number % 2:
                    connection.sendall(b"GET /healthz HTT")
                if number % 500 == 0:
                    eventually(lambda: web.post("/v1/messages", document).status == 201)
            eventually(lambda: web.ask("GET", "/healthz").status == 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_streams_have_a_bound() -> None:
    bounded = serve("--memory", "--set", "http.streams_max=2")
    try:
        with ExitStack() as stack:
            for _ in range(2):
                connection = stack.enter_context(closing(bounded.connect()))
                connection.sendall(
                    b"POST /v1/subjects/s/groups/g/deliveries HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
                )
                assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
            bounded.post("/v1/subjects/t/publish", {"body": "x"})
            for method, path in (("GET", "/v1/live"), ("POST", "/v1/subjects/t/groups/g/deliveries")):
                reply = bounded.ask(method, path)
                assert (reply.status, reply.json["error"]) == (503, "queue_full")
            # The refused stream took no message from its group.
            (message,) = bounded.post("/v1/subjects/t/groups/g/pull", {"wait_ms": 0}).json["messages"]
            assert (message["body"], message["attempt"]) == ("x", 1)
        eventually(lambda: bounded.post("/v1/subjects/s/groups/g/deliveries", {"max_messages": 0}).status == 400)
        assert stop(bounded) == ""
    finally:
        bounded.process.kill()
        bounded.process.communicate()
