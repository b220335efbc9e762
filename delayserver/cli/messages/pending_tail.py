"""`delayserver pending --tail`: prints messages at the moment when they become due.

It lists the next second anew each second, and prints a message at its due time by the server's clock. So a message that is
cancelled in its last second may be printed, and one that is sent less than a second before may be missing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from delayserver.cli.messages.pending_list import print_message

if TYPE_CHECKING:
    from delayserver.client import Client

STEP_MS: Final = 1_000
AHEAD_MS: Final = 1_000
"""What is due in a second is listed so long before it begins."""


def tail_messages(client: Client, subject: str | None, tag: str | None, where: str | None, as_json: bool) -> None:
    """Print each message that becomes due from now on. Ends by an interrupt."""
    from_ms = client.ping() // 1000
    while True:
        ahead_ms = client.ping() / 1000 - time.monotonic() * 1000
        _sleep_until(from_ms - AHEAD_MS - ahead_ms)
        to_ms = from_ms + STEP_MS
        for message in client.pending_messages(subject, from_ms=from_ms, to_ms=to_ms, tag=tag, where=where):
            _sleep_until(message.due_ms - ahead_ms)
            print_message(message, as_json)
        from_ms = to_ms


def _sleep_until(monotonic_ms: float) -> None:
    time.sleep(max(monotonic_ms / 1000 - time.monotonic(), 0))
