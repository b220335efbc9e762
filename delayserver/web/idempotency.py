"""`Idempotency-Key`: the key is the message id. For a delay the gateway remembers when the first try was due.

The server recognises a copy by subject, id and due time. A delay gives each try another due time. So the gateway keeps the
first one, for the last `KEYS_MAX` keys of each token. After a restart of the gateway a retry with a delay is a new
message; one with `due_ms` or `at` is recognised as long as the server keeps its window.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

import msgspec

from delayserver.protocol.errors import Refused
from delayserver.web.bodies import Scope
from delayserver.web.problems import Problem, invalid
from delayserver.web.schemas import SendRequest

KEYS_MAX: Final = 16_384
"""About 4 MiB for each token that uses keys, however long they are: a digest stands for each."""
SAID_BYTES: Final = 8
"""Of a digest of what a try said. It finds mistakes of a sender, who harms nobody else by a collision."""
DIGEST_BYTES: Final = 16
"""Of a digest. So many that two keys never have the same one."""

_DUE: Final = struct.Struct("<q")
_REUSED: Final = (
    "this Idempotency-Key has named another message, with another body, due time or other fields: a retry repeats all of "
    "them, and another message needs a key of its own"
)
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def idempotency_key(scope: Scope) -> str | None:
    """The key of a request: as it is, or within quotes. Raises `Problem` for an empty one."""
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            text: str = value.decode("latin-1").strip()
            if len(text) > 1 and text[0] == text[-1] == '"':
                text = text[1:-1]
            if not text:
                raise invalid("the Idempotency-Key is empty")
            return text
    return None


def message_id_of(key: str | None, given: str | None) -> str | None:
    """The id of a message: the one that is given, or the key of its request. Raises `Problem` where they differ."""
    if key is not None and given is not None and given != key:
        raise invalid("message_id and Idempotency-Key differ: give one of them")
    return key if given is None else given


def refuse_key(scope: Scope) -> None:
    """Raises `Problem` for a request of many messages with a key: it could be the id of one message only."""
    if idempotency_key(scope) is not None:
        raise invalid("an Idempotency-Key is for one message: give each row of a list or of lines a message_id instead")


class FirstTries:
    """The first tries of keys, by subject and key: when they were due, and a digest of what they said."""

    def __init__(self) -> None:
        # By the digest of subject and key. A value is bytes, because a tuple would take thrice the memory.
        self._tries: OrderedDict[bytes, bytes] = OrderedDict()

    @contextmanager
    def due_ms(self, key: str, request: SendRequest, body: bytes | str, resolved_ms: int) -> Iterator[int]:
        """The due time of this try, for the time of its send. With a delay it is that of the first try.

        A first try that the server refuses is forgotten. Raises `Problem` if the key has named another message."""
        digest, said = _digest(request.subject, key), _said(request, body)
        known = self._tries.get(digest)
        if known is not None and known[8:] != said:
            raise Problem(422, "idempotency_key_reused", _REUSED)
        fixed = request.due_ms is not None or request.at is not None
        first = known if known is not None and not fixed else _DUE.pack(resolved_ms) + said
        self._tries[digest] = first
        self._tries.move_to_end(digest)
        if len(self._tries) > KEYS_MAX:
            self._tries.popitem(last=False)
        try:
            yield _DUE.unpack_from(first)[0]
        except Refused:
            if known is None and self._tries.get(digest) == first:
                del self._tries[digest]
            raise


def _said(request: SendRequest, body: bytes | str) -> bytes:
    """A digest of a message as its sender wrote it: a retry says the same, also where its delay counts from later."""
    fields = msgspec.structs.asdict(request) | {"body": body.encode() if isinstance(body, str) else body}
    fields["body_base64"] = None
    return blake2b(_encode(fields), digest_size=SAID_BYTES).digest()


def _digest(subject: str, key: str) -> bytes:
    named = f"{len(subject)} {subject}{key}"
    return blake2b(named.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
