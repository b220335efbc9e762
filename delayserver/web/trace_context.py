"""W3C trace context of a request: its headers become properties of the message, and so reach the consumer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from delayserver.client.tracing import TRACEPARENT, TRACESTATE

# Version 00 of the recommendation, and what a later version must begin with.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[ -~]{0,64})?"
)
STATE_BYTES_MAX: Final = 512
"""The recommendation asks all programs to carry so many bytes. A longer state is left out."""


def with_trace(trace: Mapping[str, str], properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The properties of a message with the trace context of its request, unless they have one."""
    if not trace or (properties and TRACEPARENT in properties):
        return properties
    return {**(properties or {}), **trace}


def trace_of(scope: Mapping[str, Any]) -> Mapping[str, str]:
    """The trace context of a request, as properties; empty if it has none. A header that is not valid counts as none."""
    parent, states = b"", []
    for name, value in scope["headers"]:
        if name == b"traceparent":
            parent = value
        elif name == b"tracestate":
            states.append(value)
    if not parent or _TRACEPARENT.fullmatch(parent) is None:
        return {}
    found = {TRACEPARENT: parent.decode("ascii")}
    state = b",".join(states)
    if state and len(state) <= STATE_BYTES_MAX and state.isascii() and state.decode().isprintable():
        found[TRACESTATE] = state.decode("ascii")
    return found
