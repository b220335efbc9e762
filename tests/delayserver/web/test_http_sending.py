"""Everything that can be sent over HTTP: lists, lines as a stream, bodies, keys, CloudEvents."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.delayserver.web.web_server import Reply, Web, serve, stop


def pull(web: Web, subject: str, count: int = 1, **asked: Any) -> list[dict[str, Any]]:
    """So many messages of a subject, acked."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        asked = {"wait_ms": 30_000, "ack": True, **asked}
        found += web.post(f"/v1/subjects/{subject}/groups/g/pull", asked).json["messages"]
    assert len(found) == count
    return found


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def rows_of(reply: Reply) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reply.body.splitlines()]


@pytest.mark.parametrize(
    "path", ["/v1/pending?by=minute&by=hour", "/v1/messages/find?id=a&id=b", "/v1/messages?delay=1s&delay=9h"]
)
def test_a_parameter_that_is_given_twice_is_refused(web: Web, path: str) -> None:
    body = b"x" if "delay" in path else None
    reply = web.ask("POST" if body else "GET", path, body, headers={"content-type": "text/plain"} if body else {})
    assert (reply.status, reply.json["error"]) == (400, "invalid_argument")
    assert "more than once" in reply.json["detail"]


def test_a_list_has_a_result_or_a_problem_for_each_row(web: Web) -> None:
    reply = web.post(
        "/v1/messages",
        [
            {"subject": "list", "body": "a", "delay_ms": 0, "message_id": "one"},
            {"subject": "list", "body": "b", "delay": "soon"},
            {"subject": "", "body": "c", "delay_ms": 0},
            {"subject": "list", "body": 7, "at": "2020-01-01T00:00:00Z"},
            {"subject": "list", "body": {"d": [1, 2]}, "delay_ms": 0},
            "no message",
        ],
    )
    assert reply.status == 200
    assert [row.get("error") for row in reply.json] == [
        None, "invalid_argument", "subject_invalid", "too_old", None, "invalid_argument",
    ]  # fmt: skip
    assert [row.get("row") for row in reply.json] == [None, 1, 2, 3, None, 5]
    assert reply.json[0]["message_id"] == "one"
    assert sorted(message["body"] for message in pull(web, "list", 2)) == ["a", '{"d": [1, 2]}']
    assert web.post("/v1/messages", []).json == []


def test_lines_are_answered_row_by_row(web: Web) -> None:
    rows = [{"subject": "lines", "body": f"{number}", "delay_ms": 0} for number in range(3000)]
    rows[1000] = {"subject": "lines", "body": "x"}
    reply = web.post("/v1/messages", lines(*rows), content_type="application/x-ndjson")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-ndjson")
    results = rows_of(reply)
    assert len(results) == 3000
    assert [number for number, row in enumerate(results) if "error" in row] == [1000]
    assert (results[1000]["row"], results[1000]["status"]) == (1000, 400)
    assert {message["body"] for message in pull(web, "lines", 2999, max_messages=1000)} == {
        str(number) for number in range(3000)
    } - {"1000"}


def test_lines_can_be_answered_by_errors_and_a_count_alone(web: Web) -> None:
    rows = [{"subject": "count", "body": "x", "delay": "1h"}] * 5 + [{"subject": "count"}]
    body = lines(*rows[:3]) + b"\n\nno json\n" + lines(*rows[3:6]) + lines(rows[0]).rstrip()
    reply = web.post("/v1/messages?results=errors", body, content_type="application/x-ndjson; charset=utf-8")
    found = rows_of(reply)
    assert [(row["row"], row["error"]) for row in found[:-1]] == [(3, "malformed_request"), (6, "invalid_argument")]
    assert found[-1] == {"accepted": 6, "refused": 2}


def test_the_first_lines_are_answered_while_the_next_ones_are_not_there_yet(web: Web) -> None:
    with closing(web.connect()) as stream, closing(stream.makefile("rb")) as answer:
        head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        stream.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for number in range(3):
            row = lines({"subject": "talk", "body": str(number), "delay_ms": 0})
            # Half of the line first: it is no row yet.
            for part in (row[:10], row[10:]):
                stream.sendall(b"%x\r\n%s\r\n" % (len(part), part))
            while not (line := answer.readline()).startswith(b'{"receipt"'):
                assert line, "the stream ended"
        stream.sendall(b"0\r\n\r\n")
        assert sorted(message["body"] for message in pull(web, "talk", 3)) == ["0", "1", "2"]


def test_a_large_body_of_lines_comes_through_and_other_requests_do_not_wait_for_it(web: Web) -> None:
    row = {"subject": "bulk", "body": "x" * 1000, "delay": "2h"}
    body = lines(*[row] * 500)
    replies: list[list[dict[str, Any]]] = []

    def send() -> None:
        reply = web.post("/v1/messages?results=errors", body * 40, content_type="application/x-ndjson")
        replies.append(rows_of(reply))

    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive():
        assert web.ask("GET", "/healthz").status == 200
    sender.join()
    assert replies == [[{"accepted": 20_000, "refused": 0}]]


def test_a_line_above_the_bound_ends_the_answer(web: Web) -> None:
    body = lines({"subject": "s", "body": "x", "delay": "1h"}) + b" " * 8_000_000
    with closing(web.connect()) as stream, closing(stream.makefile("rb")) as answer:
        head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        with suppress(ConnectionResetError, BrokenPipeError):  # the other end does not read for ever behind its answer
            stream.sendall(head + b"Content-Length: %d\r\n\r\n" % (2 * len(body)) + body)
        found = [line for line in answer.read().splitlines() if line.startswith(b"{")]
    assert json.loads(found[0])["subject"] == "s"
    assert (json.loads(found[1])["error"], json.loads(found[1])["row"]) == ("body_too_large", 1)


@pytest.mark.parametrize(
    ("document", "form", "shown"),
    [
        ({"body": "grüß dich"}, "auto", ("grüß dich", "text")),
        ({"body": "grüß dich"}, "base64", (base64.b64encode("grüß dich".encode()).decode(), "base64")),
        ({"body": {"a": [1, 2.50, None]}}, "json", ({"a": [1, 2.5, None]}, "json")),
        ({"body": {"a": 1}}, "text", ('{"a": 1}', "text")),
        ({"body": None}, "json", (None, "json")),
        ({"body": 12345678901234567890123}, "text", ("12345678901234567890123", "text")),
        ({"body": "no json"}, "json", ("no json", "text")),
        ({"body_base64": "AP8="}, "auto", ("AP8=", "base64")),
        ({"body_base64": "AP8="}, "json", ("AP8=", "base64")),
        ({"body_base64": ""}, "auto", ("", "text")),
        ({"body": ""}, "auto", ("", "text")),
    ],
)
def test_the_reader_chooses_how_a_body_is_written(
    web: Web, document: dict[str, Any], form: str, shown: tuple[object, str]
) -> None:
    sent = web.post("/v1/messages", {"subject": "bodies", "delay_ms": 0, **document})
    (message,) = pull(web, "bodies", body_as=form)
    assert (message["body"], message["body_encoding"]) == shown
    found = web.ask("GET", f"/v1/messages/{sent.json['receipt']}?body_as={form}").json
    assert (found.get("body"), found["body_encoding"]) == shown


def test_all_fields_of_a_message_come_through_the_gateway(web: Web) -> None:
    fields = {"message_id": "id-1", "properties": {"k": "v"}, "expires_ms": 2**41, "tag": "paid", "order_key": "7"}
    sent = web.post("/v1/messages", {"subject": "fields", "body": "x", "delay_ms": 0, **fields}).json
    row = web.post(
        "/v1/messages", [{"subject": "fields", "body": "x", "delay_ms": 0, **fields, "message_id": "id-2"}]
    ).json[0]
    one, two = pull(web, "fields", 2)
    for message, receipt in ((one, sent), (two, row)):
        assert {name: message[name] for name in fields} == {**fields, "message_id": receipt["message_id"]}
        assert message["sequence"] == receipt["sequence"]


def test_a_due_time_can_be_said_in_five_ways(web: Web) -> None:
    now_ms = web.post("/v1/messages", {"subject": "due", "body": "x", "delay_ms": 0}).json["due_ms"]
    hour = 3_600_000
    for due in ({"delay": "1h"}, {"delay_ms": hour}, {"delay": "59m60s"}):
        due_ms = web.post("/v1/messages", {"subject": "due", "body": "x", **due}).json["due_ms"]
        assert now_ms + hour <= due_ms < now_ms + 2 * hour
    later = {"subject": "due", "body": "x", "due_ms": now_ms + hour}
    assert web.post("/v1/messages", later).json["due_ms"] == now_ms + hour
    year = datetime.now(UTC).year + 1
    at = web.post("/v1/messages", {"subject": "due", "body": "x", "at": f"{year}-03-03T09:00:00+01:00"}).json
    assert at["due_ms"] == datetime(year, 3, 3, 8, tzinfo=UTC).timestamp() * 1000
    level = web.post("/v1/messages", {"subject": "due", "body": "x", "delay_level": 1}).json["due_ms"]
    assert now_ms <= level < now_ms + hour


def test_a_retry_with_the_same_key_is_no_second_message(web: Web) -> None:
    asked = {"subject": "keys", "body": "x", "delay": "200ms"}
    first = web.post("/v1/messages", asked, Idempotency_Key='"order-7"').json
    again = web.post("/v1/messages", asked, Idempotency_Key="order-7").json
    assert first["message_id"] == again["message_id"] == "order-7"
    assert first["due_ms"] == again["due_ms"]
    assert web.ask("GET", f"/v1/messages/{again['receipt']}").json["outcome"] in ("deduplicated", "pending")
    web.post("/v1/messages", {"subject": "keys", "body": "last", "due_ms": first["due_ms"] + 1})
    assert sorted(message["body"] for message in pull(web, "keys", 2)) == ["last", "x"]
    for key, document in (("", asked), ("other", {**asked, "message_id": "id"})):
        assert web.post("/v1/messages", document, Idempotency_Key=key).status == 400


def test_many_messages_with_one_key_are_refused_whole(web: Web) -> None:
    row = {"subject": "one-key", "body": "x", "delay_ms": 0}
    as_list = web.post("/v1/messages", [row], Idempotency_Key="k")
    line = json.dumps(row).encode()
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "k"}
    for reply in (as_list, web.ask("POST", "/v1/messages", line, headers=headers)):
        assert (reply.status, reply.json["error"]) == (400, "invalid_argument")
        assert "message_id" in reply.json["detail"]
    assert web.post("/v1/subjects/one-key/groups/g/pull", {}).json == {"messages": []}


def test_a_message_moves_to_another_time_in_the_path_and_by_its_id(web: Web) -> None:
    sent = web.post("/v1/messages", {"subject": "moves", "body": "x", "delay": "1h", "message_id": "m-1"}).json
    moved = web.ask("PATCH", f"/v1/messages/{sent['receipt']}", {"delay": "2h", "body": {"new": True}}).json
    assert (moved["outcome"], moved["due_ms"] > sent["due_ms"]) == ("rescheduled", True)
    key = f"subject=moves&message_id=m-1&due_ms={moved['due_ms']}"
    found = web.ask("GET", f"/v1/messages?{key}&body_as=json").json
    assert (found["outcome"], found["body"], found["receipt"]) == ("pending", {"new": True}, moved["new_receipt"])
    again = web.ask("PATCH", f"/v1/messages?{key}", {"delay": "3h"}).json
    assert again["outcome"] == "rescheduled"
    assert web.ask("GET", f"/v1/messages?{key}").json["rescheduled_to"] == again["new_receipt"]
    key = f"subject=moves&message_id=m-1&due_ms={again['due_ms']}"
    assert web.ask("DELETE", f"/v1/messages?{key}").json["outcome"] == "cancelled"
    assert web.ask("PATCH", f"/v1/messages?{key}", {"delay": "3h"}).json["outcome"] == "already_cancelled"
    assert web.ask("GET", "/v1/messages?subject=moves&message_id=nobody&due_ms=5").status == 404


EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "order.placed"}


def test_a_cloud_event_in_structured_mode_comes_through(web: Web) -> None:
    event = {**EVENT, "datacontenttype": "application/json", "data": {"order": 7}, "priority": 3}
    sent = web.post("/v1/messages?subject=ce&delay_ms=0", event, content_type="application/cloudevents+json")
    assert (sent.status, sent.json["message_id"]) == (201, "/shop#e-1")
    (message,) = pull(web, "ce", body_as="json")
    assert message["body"] == {"order": 7}
    assert message["properties"] == {
        "ce_specversion": "1.0", "ce_id": "e-1", "ce_source": "/shop", "ce_type": "order.placed",
        "ce_priority": "3", "content-type": "application/json",
    }  # fmt: skip


def test_a_cloud_event_in_binary_mode_comes_through_and_back(web: Web) -> None:
    headers = {f"ce-{name}": value for name, value in EVENT.items()} | {"Content-Type": "text/plain"}
    sent = web.ask("POST", "/v1/messages?delay_ms=0", b"hello", headers=headers)
    assert (sent.status, sent.json["subject"]) == (201, "order.placed")
    (message,) = pull(web, "order.placed", body_as="cloudevent")
    assert message["body_encoding"] == "cloudevent"
    assert message["body"] == {**EVENT, "datacontenttype": "text/plain", "data": "hello"}


def test_a_plain_message_is_a_cloud_event_for_a_client_that_asks_for_one(web: Web) -> None:
    sent = web.post("/v1/messages", {"subject": "plain", "body_base64": "AP8=", "delay_ms": 0}).json
    (message,) = pull(web, "plain", body_as="cloudevent")
    server_id = sent["receipt"].partition("-")[0]
    assert message["body"] == {
        "specversion": "1.0", "id": sent["message_id"], "source": f"urn:delayserver:{server_id}",
        "type": "delayserver.message", "subject": "plain", "datacontenttype": "application/octet-stream",
        "data_base64": "AP8=",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"id": None}, {"specversion": "0.3"}, {"source": ""}, {"data": 1, "data_base64": "eA=="}, {"data_base64": "?"},
     {"extension": {"a": 1}}],
)  # fmt: skip
def test_a_wrong_cloud_event_is_refused(web: Web, change: dict[str, object]) -> None:
    event = {name: value for name, value in {**EVENT, **change}.items() if value is not None}
    reply = web.post("/v1/messages?delay=1h", event, content_type="application/cloudevents+json")
    assert (reply.status, reply.json["error"]) == (400, "invalid_argument"), reply.json


def test_a_published_message_is_there_at_once(web: Web) -> None:
    reply = web.post("/v1/subjects/now/publish", {"body": "x", "tag": "paid"}, Idempotency_Key="p-1")
    assert (reply.status, reply.json) == (201, {"message_id": "p-1", "subject": "now", "position": 0})
    (message,) = pull(web, "now")
    assert (message["body"], message["tag"], message["message_id"]) == ("x", "paid", "p-1")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/subjects/two/publish"])
def test_a_key_and_another_id_are_refused(web: Web, path: str) -> None:
    message = {"body": "x", "message_id": "one"} | ({"subject": "two", "delay": "1h"} if "messages" in path else {})
    reply = web.post(path, message, Idempotency_Key="other")
    assert (reply.status, reply.json["error"]) == (400, "invalid_argument")
    assert "differ" in reply.json["detail"]
    assert web.post(path, message, Idempotency_Key="one").status == 201


def test_a_published_message_with_a_key_is_a_second_message_each_time(web: Web) -> None:
    for position in range(2):
        reply = web.post("/v1/subjects/twice/publish", {"body": "x"}, Idempotency_Key="p-2")
        assert (reply.status, reply.json["position"]) == (201, position)
    assert len(pull(web, "twice", 2)) == 2
    (header,) = web.ask("GET", "/openapi.json").json["paths"]["/v1/subjects/{subject}/publish"]["post"]["parameters"][
        1:
    ]
    assert (header["name"], "second message" in header["description"]) == ("Idempotency-Key", True)


def test_a_larger_bound_of_bodies_counts_for_every_request_that_has_one() -> None:
    """Each byte of this body takes six in JSON."""
    web = serve("--memory", "--set", "message.body_bytes_max=4MiB")
    try:
        large = "\x01" * (2 << 20)
        sent = web.post("/v1/messages", {"subject": "large", "body": large, "delay": "1h"})
        assert sent.status == 201
        assert web.post("/v1/subjects/large/publish", {"body": large}).status == 201
        moved = web.ask("PATCH", f"/v1/messages/{sent.json['receipt']}", {"delay": "2h", "body": large})
        assert (moved.status, moved.json["outcome"]) == (200, "rescheduled")
        assert stop(web) == ""
    finally:
        web.process.kill()
        web.process.communicate()
