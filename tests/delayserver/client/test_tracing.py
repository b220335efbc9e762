"""Traces over a delay: from the sender's span to the handler's, over a real server, with the SDK of OpenTelemetry.

Spans need a provider of the whole process, and once OpenTelemetry is loaded it stays loaded. So each test is a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.delayserver.web.web_server import Web, serve, stop

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 90

SETUP = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("test")

def tell(**more):
    spans = [
        {
            "name": span.name,
            "kind": span.kind.name,
            "trace": f"{span.context.trace_id:032x}",
            "id": f"{span.context.span_id:016x}",
            "parent": f"{span.parent.span_id:016x}" if span.parent else None,
            "attributes": dict(span.attributes),
            "status": span.status.status_code.name,
        }
        for span in exporter.get_finished_spans()
    ]
    print(json.dumps({"spans": spans, **more}))
"""


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    running = serve("--memory")
    try:
        yield running
        assert stop(running) == ""
    finally:
        running.process.kill()
        running.process.communicate()


def run(program: str, *arguments: str, setup: str = SETUP) -> dict[str, Any]:
    """What a program of its own told: its spans by name, and more."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", setup + program, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


THREADS = """
from delayserver.client import Client
from delayserver.client.listening.thread_listener import ThreadListener

listener = ThreadListener("shop")

@listener("in-threads")
def handle(delivery):
    with tracer.start_as_current_span("work"):
        running.stop()

with Client(sys.argv[1]) as client:
    with tracer.start_as_current_span("order"):
        client.send("in-threads", b"a", delay_ms=0)
    with listener.running(client) as running:
        assert running.wait(60)
tell()
"""

TASKS = """
import trio
from delayserver.client import AsyncClient, Listener, Message, Retry

listener = Listener("shop")
seen, retried = [], []

@listener("traced.*")
async def handle(delivery):
    seen.append(delivery.properties)
    with tracer.start_as_current_span(f"work {delivery.message_id}"):
        await trio.sleep(0)
    if delivery.message_id == "retried" and not retried:
        retried.append(delivery)
        raise Retry(delay_ms=0)
    if delivery.message_id == "failing" and delivery.attempt == 1:
        raise ValueError("no")
    if len(seen) == 10:
        running.stop()

async def main():
    global running
    async with AsyncClient(sys.argv[1]) as client:
        with tracer.start_as_current_span("order"):
            await client.send("traced.sent", b"abc", delay_ms=500, message_id="sent", properties={"mine": "kept"})
        await client.publish("traced.published", b"", message_id="published")
        async with client.batcher() as batcher:
            await (await batcher.send(b"", "traced.batched", delay_ms=0, message_id="retried"))
        messages = [Message("traced.many", b"", delay_ms=0, message_id=name) for name in ("failing", "second")]
        await client.send_many(messages)
        await client.publish_many([Message("traced.published-many", b"", message_id="third")])
        await client.send_columns("traced.columns", bodies=[b""], delay_ms=0, message_ids=["fourth"])
        await client.publish_columns("traced.published-columns", [b""], message_ids=["fifth"])
        async with listener.running(client) as running:
            with trio.fail_after(60):
                await running.stopped()
        tell(properties=seen)

trio.run(main)
"""


@pytest.fixture(scope="module")
def told(web: Web) -> dict[str, Any]:
    """The spans of a program that sends in all ways, and whose listener handles in tasks."""
    return run(TASKS, web.address)


def named(told: dict[str, Any], name: str) -> dict[str, Any]:
    """The first span of this name."""
    found: dict[str, Any] = next(span for span in told["spans"] if span["name"] == name)
    return found


def test_the_span_of_a_handler_is_a_child_of_the_span_that_sent_its_message(told: dict[str, Any]) -> None:
    order, sent = named(told, "order"), named(told, "send traced.sent")
    processed, work = named(told, "process traced.sent"), named(told, "work sent")
    assert (sent["kind"], processed["kind"]) == ("PRODUCER", "CONSUMER")
    assert order["trace"] == sent["trace"] == processed["trace"] == work["trace"]
    assert (sent["parent"], processed["parent"]) == (order["id"], sent["id"])
    assert work["parent"] == processed["id"], "the handler runs in its span"
    mine = next(each for each in told["properties"] if each.get("mine") == "kept")
    assert mine["traceparent"].startswith(f"00-{sent['trace']}-{sent['id']}-")


def test_spans_have_the_attributes_of_messaging_and_the_delay(told: dict[str, Any]) -> None:
    sent = named(told, "send traced.sent")["attributes"]
    processed = named(told, "process traced.sent")["attributes"]
    assert processed["messaging.system"] == sent["messaging.system"] == "delayserver"
    assert (processed["messaging.operation.type"], sent["messaging.operation.type"]) == ("process", "send")
    assert processed["messaging.destination.name"] == sent["messaging.destination.name"] == "traced.sent"
    assert processed["messaging.consumer.group.name"] == "shop"
    assert processed["messaging.message.id"] == "sent"
    assert processed["messaging.message.body.size"] == 3
    assert 0 < processed["delayserver.delay_ms"] <= 60_000
    assert processed["delayserver.lateness_us"] >= 0
    assert processed["delayserver.due_ms"] == sent["delayserver.due_ms"]


def test_publishes_batches_and_lists_have_spans_too(told: dict[str, Any]) -> None:
    for sender, handler in (
        ("publish traced.published", "process traced.published"),
        ("create traced.batched", "process traced.batched"),
        ("send traced.many", "process traced.many"),
        ("publish traced.published-many", "process traced.published-many"),
    ):
        assert named(told, handler)["parent"] == named(told, sender)["id"], sender
        assert named(told, sender)["kind"] == "PRODUCER"
    for columns in ("send traced.columns", "publish traced.published-columns"):
        assert named(told, columns)["kind"] == "PRODUCER"
    assert named(told, "send traced.many")["attributes"]["messaging.batch.message_count"] == 2


def test_a_failed_handling_marks_its_span_as_error_and_a_retry_does_not(told: dict[str, Any]) -> None:
    handled = [
        (span["attributes"]["messaging.message.id"], span["attributes"]["delayserver.attempt"], span["status"])
        for span in told["spans"]
        if span["kind"] == "CONSUMER"
    ]
    assert sorted([each for each in handled if each[0] == "failing"]) == [
        ("failing", 1, "ERROR"),
        ("failing", 2, "UNSET"),
    ]
    assert [each for each in handled if each[0] == "retried"] == [("retried", 1, "UNSET")] * 2


def test_handlers_in_threads_have_spans(web: Web) -> None:
    told = run(THREADS, web.address)
    assert named(told, "process in-threads")["parent"] == named(told, "send in-threads")["id"]
    assert named(told, "work")["parent"] == named(told, "process in-threads")["id"]


def test_the_trace_of_an_http_request_reaches_the_consumer(web: Web) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = {"subject": "over-http", "body": "x", "delay_ms": 0, "properties": {"mine": "kept"}}
    assert web.post("/v1/messages", message, traceparent=parent, tracestate="a=1,b=2").status == 201
    pulled = web.post("/v1/subjects/over-http/groups/g/pull", {"wait_ms": 10_000, "ack": True}).json["messages"]
    assert [each["properties"] for each in pulled] == [{"mine": "kept", "traceparent": parent, "tracestate": "a=1,b=2"}]


def test_the_trace_of_a_list_is_that_of_its_messages_without_one(web: Web) -> None:
    parent, other = (f"00-{digit * 32}-b7ad6b7169203331-01" for digit in "12")
    with_one = {"subject": "list", "body": "", "delay_ms": 0, "properties": {"traceparent": other}}
    assert (
        web.post("/v1/messages", [{"subject": "list", "body": "", "delay_ms": 0}, with_one], traceparent=parent).status
        == 200
    )
    found: set[str] = set()
    while len(found) < 2:
        pulled = web.post("/v1/subjects/list/groups/g/pull", {"wait_ms": 10_000, "ack": True}).json["messages"]
        assert pulled
        found |= {each["properties"]["traceparent"] for each in pulled}
    assert found == {parent, other}


@pytest.mark.parametrize(
    "parent", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff-" + "a" * 32 + "-b7ad6b7169203331-01"]
)
def test_a_trace_that_is_not_valid_is_left_out(web: Web, parent: str) -> None:
    message = {"subject": "no-trace", "body": "x", "delay_ms": 0}
    assert web.post("/v1/messages", message, traceparent=parent, tracestate="a=1").status == 201
    pulled = web.post("/v1/subjects/no-trace/groups/g/pull", {"wait_ms": 10_000, "ack": True}).json["messages"]
    assert [each.get("properties", {}) for each in pulled] == [{}]


def test_a_client_never_loads_opentelemetry(web: Web) -> None:
    program = """
import json, sys
from delayserver.client import Client
with Client(sys.argv[1]) as client:
    client.send("untraced", b"", delay_ms=0)
    client.publish("untraced", b"", properties={"traceparent": "00-mine"})
    (first,) = client.pull("untraced", "g", max_messages=1, wait_s=10)
print(json.dumps({"loaded": [name for name in sys.modules if name.startswith("opentelemetry")]}))
"""
    assert run(program, web.address, setup="")["loaded"] == []
