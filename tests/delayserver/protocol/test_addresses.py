"""HOST:PORT as people write it."""

from __future__ import annotations

import pytest

from delayserver.protocol.addresses import parse_address


def test_addresses_are_read_and_refused() -> None:
    assert parse_address("127.0.0.1:20801") == ("127.0.0.1", 20801)
    assert parse_address("[::1]:1") == ("::1", 1)
    for text in ("", "host", ":1", "host:", "host:x", "host:0", "host:70000", "::1"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            parse_address(text)
