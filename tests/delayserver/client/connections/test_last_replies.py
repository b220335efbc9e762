"""Replies that come with the end of a connection."""

from __future__ import annotations

import pytest

from delayserver.client.calls.core import ReplyStream
from delayserver.protocol.errors import TooManyConnections
from delayserver.protocol.frames import ReplyFrame, encode_error, encode_notice, encode_reply
from tests.delayserver.client.both import no_notice


def test_replies_that_come_with_the_end_of_the_connection_are_given() -> None:
    stream = ReplyStream(no_notice)
    end = encode_error(0, TooManyConnections("no room"))
    assert [reply.id for reply in stream.feed(encode_reply(7, {}) + end)] == [7]
    with pytest.raises(TooManyConnections):
        stream.feed(b"")
    with pytest.raises(TooManyConnections):
        ReplyStream(no_notice).feed(end)


def test_a_notice_between_replies_is_none_of_them() -> None:
    noticed: list[ReplyFrame] = []
    stream = ReplyStream(noticed.append)
    replies = stream.feed(encode_reply(7, {}) + encode_notice({"news": 1}) + encode_reply(8, {}))
    assert [reply.id for reply in replies] == [7, 8]
    assert [notice.result for notice in noticed] == [{"news": 1}]
