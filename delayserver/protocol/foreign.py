"""Other protocols, known by the first four bytes of a stream: what a client meets on a wrong port, or brings to one.

Pure: four bytes in, a name out.
"""

from __future__ import annotations

from typing import Final

HTTP: Final = "HTTP"
TLS: Final = "TLS"

_HTTP_STARTS: Final = (
    b"HTTP",
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"PATC",
    b"DELE",
    b"OPTI",
    b"CONN",
    b"TRAC",
    b"PRI ",
)
# A record of the kind handshake or alert, of version 3.x.
_TLS_STARTS: Final = (b"\x16\x03", b"\x15\x03")

_SENTENCE: Final = b"This port speaks the wire protocol of delayserver. HTTP is on another port, by default 20880.\n"
HTTP_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_SENTENCE), _SENTENCE)
)
"""The answer to a client that speaks HTTP to the port of the wire protocol."""


def foreign_protocol(head: bytes) -> str:
    """HTTP or TLS if a stream that begins with these four bytes speaks it; else an empty text."""
    if head.startswith(_HTTP_STARTS):
        return HTTP
    return TLS if head.startswith(_TLS_STARTS) else ""
