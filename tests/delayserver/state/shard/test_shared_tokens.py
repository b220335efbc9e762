"""Changes of a cluster's tokens wait for the map, each once."""

from __future__ import annotations

from delayserver.state.shard.shared_tokens import SharedTokens, TokenChange
from store.tables.stored_tokens import StoredSecret, StoredToken


def made(token_id: str) -> TokenChange:
    return TokenChange(None, StoredToken(token_id, "", ("admin",), ("*",), (StoredSecret(bytes(32)),), 1))


def test_a_change_that_is_offered_again_while_the_map_is_away_waits_once() -> None:
    tokens = SharedTokens()
    tokens.offer([made("a"), made("b")])
    tokens.offer([made("a"), made("c")])
    assert tokens.take_offered() == [made("a"), made("b"), made("c")]
    assert tokens.take_offered() == []
