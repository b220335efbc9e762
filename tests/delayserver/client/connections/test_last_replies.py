"""Replies that come with the end of a connection."""

from __future__ import annotations

import pytest

from delayserver.client.calls.core import ReplyStream
from delayserver.protocol.errors import TooManyConnections
from delayserver.protocol.frames import encode_error, encode_reply


def test_replies_that_come_with_the_end_of_the_connection_are_given() -> None:
    stream = ReplyStream()
    end = encode_error(0, TooManyConnections("no room"))
    assert [reply.id for reply in stream.feed(encode_reply(7, {}) + end)] == [7]
    with pytest.raises(TooManyConnections):
        stream.feed(b"")
    with pytest.raises(TooManyConnections):
        ReplyStream().feed(end)
