"""`Idempotency-Key`: the key is the message id. For a delay the gateway remembers when the first try was due.

The server recognises a copy by subject, id and due time. A delay gives each try another due time. So the gateway keeps the
first one, for the last `KEYS_MAX` keys of each token. After a restart of the gateway a retry with a delay is a new
message; one with `due_ms` or `at` is recognised as long as the server keeps its window.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from delayserver.web.bodies import Scope
from delayserver.web.problems import invalid
from delayserver.web.schemas import Due

KEYS_MAX: Final = 16_384
"""About 4 MiB for each token that uses keys, however long they are: a digest stands for each."""
DIGEST_BYTES: Final = 16
"""Of a digest. So many that two keys never have the same one."""


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
    """The due times of the first tries with a delay, by subject and key."""

    def __init__(self) -> None:
        # By the digest of subject and key.
        self._due_ms: OrderedDict[bytes, int] = OrderedDict()

    def due_ms(self, subject: str, key: str, due: Due, resolved_ms: int) -> int:
        """The due time of this try: that of the first one if the due time of the request depends on the clock."""
        if due.due_ms is not None or due.at is not None:
            return resolved_ms
        digest = _digest(subject, key)
        first_ms = self._due_ms.setdefault(digest, resolved_ms)
        self._due_ms.move_to_end(digest)
        if len(self._due_ms) > KEYS_MAX:
            self._due_ms.popitem(last=False)
        return first_ms


def _digest(subject: str, key: str) -> bytes:
    named = f"{len(subject)} {subject}{key}"
    return blake2b(named.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()
