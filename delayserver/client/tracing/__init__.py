"""Traces over a delay: W3C trace context in the properties of a message, and spans where the program has OpenTelemetry.

A message carries the property `traceparent` (and `tracestate`) to its consumers. A program that has imported
`opentelemetry.trace` gets spans: PRODUCER when it sends or publishes, CONSUMER around the handler of a listener. This module
never imports OpenTelemetry before the program did: without it a send costs one look into a table more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from delayserver.client.values.messages import Delivery, Message
from delayserver.client.values.retry import Retry
from delayserver.logs.told import text_of, type_of

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

Properties = Mapping[str, str] | None
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


@dataclass(slots=True)
class TracedSend:
    """The properties that a send adds to a message while its span runs. Without OpenTelemetry it adds none."""

    properties: Properties

    def __enter__(self) -> TracedSend:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def sending(
    operation: str, subject: str, properties: Properties, due_ms: int | None = None
) -> AbstractContextManager[TracedSend]:
    """A block in which one message is sent or published. Its value has the `properties` to send."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return TracedSend(properties)
    return _traced_sending(trace, operation, subject, properties, due_ms)


def created(subject: str, properties: Properties, due_ms: int | None = None) -> Properties:
    """The properties of a message that a batcher sends later. Its span is as short as this call."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return properties
    with _traced_sending(trace, "create", subject, properties, due_ms) as made:
        return made.properties


@contextmanager
def sending_many(operation: str, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """A block in which several messages are sent or published in one request. Its value is what to send."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not messages:
        yield messages
        return
    subjects = {message.subject for message in messages}
    attributes = {**_attributes(operation, "send"), "messaging.batch.message_count": len(messages)}
    if len(subjects) == 1:
        attributes["messaging.destination.name"] = messages[0].subject
    with _producer(trace, operation, attributes):
        yield [replace(message, properties=_injected(message.properties)) for message in messages]


def sending_columns(operation: str, subjects: str | Sequence[str]) -> AbstractContextManager[Any]:
    """A block in which columns are sent or published. Their messages carry the context only if the caller gave it in
    `properties`: it would cost each row more bytes than many bodies have."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NOTHING
    attributes = _attributes(operation, "send")
    if isinstance(subjects, str):
        attributes["messaging.destination.name"] = subjects
    return _producer(trace, operation, attributes)  # type: ignore[no-any-return]


def processing(delivery: Delivery, group: str = "") -> AbstractContextManager[None]:
    """A block in which a message is handled. Listeners have it around their handlers; use it yourself after a `pull`.

    The span is a child of the sender's. An error that leaves the block is recorded, except `Retry`.
    """
    trace = sys.modules.get("opentelemetry.trace")
    return _NOTHING if trace is None else _traced_processing(trace, delivery, group)


def _attributes(name: str, kind: str) -> dict[str, Any]:
    """Those of OpenTelemetry's semantic conventions for messaging that every span has."""
    return {"messaging.system": "delayserver", "messaging.operation.name": name, "messaging.operation.type": kind}


def _tracer(trace: Any) -> Any:
    return trace.get_tracer("delayserver.client")


def _producer(trace: Any, name: str, attributes: dict[str, Any]) -> Any:
    subject = attributes.get("messaging.destination.name")
    return _tracer(trace).start_as_current_span(
        f"{name} {subject}" if subject else name, kind=trace.SpanKind.PRODUCER, attributes=attributes
    )


@contextmanager
def _traced_sending(
    trace: Any, operation: str, subject: str, properties: Properties, due_ms: int | None
) -> Iterator[TracedSend]:
    kind = "create" if operation == "create" else "send"
    attributes = {**_attributes(operation, kind), "messaging.destination.name": subject}
    if due_ms is not None:
        attributes["delayserver.due_ms"] = due_ms
    with _producer(trace, operation, attributes):
        yield TracedSend(_injected(properties))


def _injected(properties: Properties) -> Properties:
    """The properties with the context of the running span, unless the caller gave one."""
    if properties and TRACEPARENT in properties:
        return properties
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return {**(properties or {}), **carrier} if carrier else properties


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


@contextmanager
def _traced_processing(trace: Any, delivery: Delivery, group: str) -> Iterator[None]:
    due_us = delivery.due_ms * 1000
    attributes = {
        **_attributes("process", "process"),
        "messaging.destination.name": delivery.subject,
        "messaging.message.id": delivery.message_id,
        "messaging.message.body.size": len(delivery.body),
        "delayserver.attempt": delivery.attempt,
        "delayserver.due_ms": delivery.due_ms,
        "delayserver.delay_ms": max(due_us - delivery.accepted_us, 0) // 1000,
        "delayserver.lateness_us": max(delivery.dispatched_us - max(due_us, delivery.accepted_us), 0),
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    parent = _propagator().extract(dict(delivery.properties or {}))
    span = _tracer(trace).start_span(
        f"process {delivery.subject}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=attributes
    )
    asked_again: Retry | None = None
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Retry as retry:  # no failure
            asked_again = retry
        except Exception as error:
            _record(trace, span, error)
            raise
    if asked_again is not None:
        raise asked_again


def _record(trace: Any, span: Any, error: Exception) -> None:
    """The span has failed. An error without a text must not take the place of itself."""
    span.set_status(trace.Status(trace.StatusCode.ERROR, f"{type_of(error)}: {text_of(error)}"))
    with suppress(BaseException):
        span.record_exception(error)
