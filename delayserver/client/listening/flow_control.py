"""How many messages and bytes a listener holds, and how much each source may ask for. Pure arithmetic.

A source is a subject at a node. Half of both bounds is shared out evenly, so that a quiet source always has room for its
next message. The other half belongs to the sources with a backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MESSAGE_BYTES: Final = 64
"""Beside its id, properties and body a message counts as so many bytes, as the server counts it."""


GROWTH: Final = 4
"""The factor by which a window grows. Fast handlers reach a thousand messages a pull after three pulls."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The bounds of one pull. The server always gives the first message, however large it is."""

    messages: int
    bytes: int


class FlowShare:
    """The messages that one source holds and has asked for.

    ``window``: it asks for no more at once. It grows when the handlers wait for messages, and halves when messages wait
    too long for handlers. ``backlog``: the last pull was filled, so more messages wait at the node.
    """

    __slots__ = ("asked", "backlog", "held_bytes", "held_messages", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.asked: Ask | None = None
        self.backlog = False
        self.held_messages = 0
        self.held_bytes = 0

    def ask(self, ask: Ask | None) -> None:
        """Keeps what the pull that leaves asks for; None when it has ended."""
        self.asked = ask

    def hold(self, messages: int, size: int) -> None:
        """It holds so many more, or fewer."""
        self.held_messages += messages
        self.held_bytes += size

    def see_backlog(self, backlog: bool) -> None:
        """Keeps whether the last pull was filled."""
        self.backlog = backlog

    def set_window(self, window: int) -> None:
        """Ask for at most so many at once."""
        self.window = window


class FlowControl:
    """The bounds of one subscription. Messages count until their handler begins, bytes until it has ended.

    All sources together hold at most ``messages_max`` waiting messages and ``bytes_max`` bytes, pulls under way included.
    But a source that holds nothing may always ask for one message. So of more sources than half of ``messages_max``, each
    may hold one beside the other half.
    """

    def __init__(self, messages_max: int, bytes_max: int, window: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._window = min(window, messages_max)
        self._shares: set[FlowShare] = set()
        self._busy = 0
        # Held and asked for, by all shares.
        self._messages = 0
        self._bytes = 0

    @property
    def held_messages(self) -> int:
        """Messages that wait for a handler."""
        return sum(share.held_messages for share in self._shares)

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that wait or are being handled."""
        return sum(share.held_bytes for share in self._shares)

    def join(self) -> FlowShare:
        """The share of a new source."""
        share = FlowShare(self._window)
        self._shares.add(share)
        return share

    def leave(self, share: FlowShare) -> None:
        """Removes a source: it holds nothing any more, and asks no more."""
        assert share.asked is None and not share.held_messages and not share.held_bytes
        self._see_backlog(share, backlog=False)
        self._shares.discard(share)

    def next_ask(self, share: FlowShare) -> Ask | None:
        """The bounds of the next pull of the source; None: not before it holds less. A pull that takes it calls `asked`."""
        if share.asked is not None:
            return None
        empty = not share.held_messages
        messages_most, bytes_most = self._limits(share)
        if not empty and share.held_messages > messages_most // 2:
            return None
        most = self._messages_max // 2 + max(self._messages_max - self._messages_max // 2, len(self._shares))
        messages = min(messages_most - share.held_messages, most - self._messages)
        size = min(bytes_most - share.held_bytes, self._bytes_max - self._bytes)
        if messages > 0 and size > 0:
            return Ask(messages, size)
        # It holds nothing, so nothing of its own would ask again for it later.
        return Ask(1, 1) if empty and not share.held_bytes else None

    def _limits(self, share: FlowShare) -> tuple[int, int]:
        """The messages and bytes that the source may hold."""
        count = len(self._shares)
        messages = max(self._messages_max // (2 * count), 1)
        size = max(self._bytes_max // (2 * count), 1)
        if share.backlog:
            messages += self._messages_max // 2 // self._busy
            size += self._bytes_max // 2 // self._busy
        return min(messages, share.window), size

    def begin_pull(self, share: FlowShare, ask: Ask) -> None:
        """Counts a pull that leaves, with what it asks for."""
        share.ask(ask)
        self._messages += ask.messages
        self._bytes += ask.bytes

    def end_pull(self, share: FlowShare, sizes: list[int]) -> None:
        """Ends the pull, which brought messages of these sizes. If the handlers had none meanwhile, although more wait
        at the node, the window grows."""
        ask, size = self._end(share), sum(sizes)
        filled = bool(sizes) and (len(sizes) >= ask.messages or 2 * size >= ask.bytes)
        if filled and share.backlog and not share.held_messages:
            share.set_window(min(GROWTH * share.window, self._messages_max))
        self._see_backlog(share, backlog=filled)
        self._hold(share, len(sizes), size)

    def fail_pull(self, share: FlowShare) -> None:
        """Ends the pull with an error: it brought nothing."""
        self._end(share)

    def start_handler(self, share: FlowShare) -> None:
        """Counts a message whose handler begins."""
        self._hold(share, -1, 0)

    def end_handler(self, share: FlowShare, size: int) -> None:
        """Counts a message of this size whose handler has ended."""
        self._hold(share, 0, -size)

    def give_back(self, share: FlowShare, size: int) -> None:
        """Counts a waiting message that goes back to its node."""
        self._hold(share, -1, -size)

    def slow_down(self, share: FlowShare) -> None:
        """Halves the window of a source whose messages wait too long for a handler."""
        share.set_window(max(share.window // 2, 1))

    def _end(self, share: FlowShare) -> Ask:
        ask = share.asked
        assert ask is not None, "no pull is under way"
        share.ask(None)
        self._messages -= ask.messages
        self._bytes -= ask.bytes
        return ask

    def _hold(self, share: FlowShare, messages: int, size: int) -> None:
        share.hold(messages, size)
        self._messages += messages
        self._bytes += size

    def _see_backlog(self, share: FlowShare, *, backlog: bool) -> None:
        self._busy += backlog - share.backlog
        share.see_backlog(backlog)

    def check_invariants(self) -> None:
        """The sums are those of the shares, and no share holds less than nothing."""
        asked = [share.asked for share in self._shares if share.asked is not None]
        assert self._messages == self.held_messages + sum(ask.messages for ask in asked)
        assert self._bytes == self.held_bytes + sum(ask.bytes for ask in asked)
        assert self._busy == sum(share.backlog for share in self._shares)
        assert all(share.held_messages >= 0 and share.held_bytes >= 0 and share.window >= 1 for share in self._shares)
