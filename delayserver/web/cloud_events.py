"""CloudEvents 1.0 over HTTP: an event as a message in structured and binary mode, and a message as an event. No I/O.

The attributes of an event become properties with the names that the Kafka binding of CloudEvents gives them: `ce_id`,
`ce_source`, `ce_type` and so on, and `content-type`. The data of the event is the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from delayserver.client.values.messages import Delivery
from delayserver.web.answers import NO_JSON
from delayserver.web.bodies import Scope, base64_bytes, content_type, shown_body
from delayserver.web.problems import Problem, invalid
from delayserver.web.queries import SendQuery
from delayserver.web.schemas import SendRequest

STRUCTURED: Final = "application/cloudevents+json"
ATTRIBUTES_MAX: Final = 4096
"""A message has properties of 16 KiB, so no more attributes than this."""
VERSIONS: Final = ("1.0",)
CONTENT_TYPE: Final = "content-type"
PREFIX: Final = "ce_"
NO_ATTRIBUTES: Final = frozenset({PREFIX, "ce_data", "ce_data_base64", "ce_datacontenttype"})
"""Properties that would give an event a second body, or a second type of it."""
REQUIRED: Final = ("specversion", "id", "source", "type")

_text_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_binary(scope: Scope) -> bool:
    """Whether a request is an event in binary mode."""
    return any(name == b"ce-specversion" for name, _ in scope["headers"])


def from_binary(scope: Scope, body: bytes, query: SendQuery) -> tuple[SendRequest, bytes]:
    """The message and the body of an event in binary mode. Raises `Problem`."""
    attributes = {}
    for name, value in scope["headers"]:
        if name.startswith(b"ce-"):
            attributes[name[3:].decode("latin-1")] = unquote(value.decode("latin-1"))
    return _request(attributes, content_type(scope), query), body


def from_structured(document: bytes, query: SendQuery) -> tuple[SendRequest, bytes]:
    """The message and the body of an event in structured mode. Raises `Problem`."""
    try:
        members = _text_decoder.decode(document)
    except NO_JSON as error:
        raise Problem(400, "malformed_request", f"the event is not a JSON object: {error}") from None
    if len(members) > ATTRIBUTES_MAX:
        raise invalid(f"an event has at most {ATTRIBUTES_MAX} members, not {len(members)}")
    data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
    attributes = {name: _text(name, value) for name, value in members.items()}
    kind = attributes.pop("datacontenttype", "application/json")
    if data is not None and data_base64 is not None:
        raise invalid("an event has either data or data_base64")
    if data_base64 is not None:
        body = base64_bytes(_text("data_base64", data_base64))
    elif data is None:
        body = b""
    elif bytes(data).startswith(b'"') and not _is_json_type(kind):
        body = _text("data", data).encode()
    else:
        body = bytes(data)
    return _request(attributes, kind, query), body


def _request(attributes: Mapping[str, str], kind: str, query: SendQuery) -> SendRequest:
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        raise invalid(f"the event has no {', '.join(missing)}")
    if attributes["specversion"] not in VERSIONS:
        raise invalid(f"events of version {attributes['specversion'][:20]} are not known, only {', '.join(VERSIONS)}")
    properties = {PREFIX + name: value for name, value in attributes.items()}
    if kind:
        properties[CONTENT_TYPE] = kind
    return SendRequest(
        subject=attributes["type"] if query.subject is None else query.subject,
        # Source and id together name an event.
        message_id=f"{attributes['source']}#{attributes['id']}",
        properties=properties,
        due_ms=query.due_ms,
        delay_ms=query.delay_ms,
        delay=query.delay,
        at=query.at,
        delay_level=query.delay_level,
        expires_ms=query.expires_ms,
        tag=query.tag,
        order_key=query.order_key,
    )


def to_structured(delivery: Delivery) -> dict[str, Any]:
    """A delivery as an event in structured mode. A message that was not sent as an event gets attributes of its own."""
    attributes = {
        name.removeprefix(PREFIX): value
        for name, value in delivery.properties.items()
        if name.startswith(PREFIX) and name not in NO_ATTRIBUTES
    }
    if not all(attributes.get(name) for name in REQUIRED):
        attributes = {
            "specversion": "1.0",
            "id": delivery.message_id,
            "source": f"urn:delayserver:{delivery.server_id}",
            "type": "delayserver.message",
            "subject": delivery.subject,
        }
    kind = delivery.properties.get(CONTENT_TYPE, "")
    data, encoding = shown_body(delivery.body, "json" if not kind or _is_json_type(kind) else "text")
    if not kind:
        kind = {"json": "application/json", "text": "text/plain", "base64": "application/octet-stream"}[encoding]
    member = "data_base64" if encoding == "base64" else "data"
    return {**attributes, "datacontenttype": kind, member: data}


def _text(name: str, value: msgspec.Raw) -> str:
    try:
        decoded = msgspec.json.decode(value)
    except NO_JSON as error:
        raise Problem(400, "malformed_request", f"{name[:80]} of the event is not JSON: {error}") from None
    if isinstance(decoded, bool):
        return "true" if decoded else "false"
    if isinstance(decoded, str | int):
        return str(decoded)
    raise invalid(f"the attribute {name[:80]} of the event is neither a text, a number nor a boolean")


def _is_json_type(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))
