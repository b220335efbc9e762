"""What becomes of a table of tokens."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.tokens import CreateToken
from delayserver.protocol.token_text import make_token, parse_token
from delayserver.tokens.changes import created, is_valid, revoked, rotated
from delayserver.tokens.making import new_secret, new_text
from store.tables.stored_tokens import TOKENS_MAX, StoredToken

CHANCE = random.Random(1)
WANTED: dict[str, Any] = {"roles": ["send"], "subjects": ["orders*"]}


def make(**fields: Any) -> tuple[StoredToken, str]:
    token_id, text, digest = new_secret(CHANCE)
    return created([], CreateToken(**WANTED | fields), token_id, digest, 1_000), text


def is_good(token: StoredToken, text: str, now_ms: int) -> bool:
    parsed = parse_token(text)
    assert parsed is not None
    return is_valid(token, parsed, now_ms)


def test_a_token_is_its_prefix_its_id_and_a_secret_of_256_bits() -> None:
    text = make_token("0123456789ab", bytes(range(32)))
    assert text == "dst_0123456789ab_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    parsed = parse_token(text)
    assert parsed == ("0123456789ab", hashlib.sha256(text[17:].encode()).digest())


@pytest.mark.parametrize("text", [None, 7, "", "dst_", "dst_0123456789ab_", "x" * 60, "dst_0123456789AB_" + "A" * 43])
def test_a_text_that_is_no_token_parses_to_none(text: object) -> None:
    assert parse_token(text) is None


def test_only_its_own_secret_opens_a_token_and_only_until_it_expires() -> None:
    token, text = make(expires_ms=2_000)
    assert is_good(token, text, 1_999) and not is_good(token, text, 2_000)
    other, _ = new_text(CHANCE, token.token_id)
    assert not is_good(token, other, 1_500)


def test_after_a_rotation_the_old_secret_is_valid_for_the_overlap_and_no_older_one() -> None:
    token, first = make()
    second, digest = new_text(CHANCE, token.token_id)
    token, (only,) = rotated([token], token.token_id, digest, 1_000, 5_000)
    assert only == token
    assert is_good(token, first, 4_999) and is_good(token, second, 4_999)
    assert not is_good(token, first, 5_000) and is_good(token, second, 5_000)
    third, digest = new_text(CHANCE, token.token_id)
    token, _ = rotated([token], token.token_id, digest, 1_000, 5_000)
    assert [is_good(token, text, 2_000) for text in (first, second, third)] == [False, True, True]


def test_without_an_overlap_the_old_secret_ends_at_once() -> None:
    token, first = make()
    _, digest = new_text(CHANCE, token.token_id)
    token, _ = rotated([token], token.token_id, digest, 1_000, 1_000)
    assert not is_good(token, first, 1_000)


def test_a_revoked_token_leaves_the_others() -> None:
    one, two = make()[0], make()[0]
    assert revoked([one, two], one.token_id) == (one, [two])
    with pytest.raises(InvalidArgument, match="no token has the id"):
        revoked([two], one.token_id)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"roles": []}, "role"),
        ({"roles": ["root"]}, 'not "root"'),
        ({"roles": [7]}, "role"),
        ({"roles": None}, "role"),
        ({"subjects": []}, "subject"),
        ({"subjects": ["a\n"]}, "subject"),
        ({"subjects": ["x" * 256]}, "255 bytes"),
        ({"subjects": [f"s{number}" for number in range(65)]}, "at most 64"),
        ({"name": "a\x00"}, "name"),
        ({"expires_ms": 999}, "has passed"),
        ({"expires_ms": -1}, "expires_ms"),
        ({"rate": True}, "rate"),
        ({"bytes_rate": 1.5}, "bytes_rate"),
        ({"pending_max": -1}, "pending_max"),
    ],
)
def test_a_wrong_wish_is_refused_by_its_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        make(**fields)


def test_the_table_of_tokens_is_bounded() -> None:
    token, _ = make()
    with pytest.raises(InvalidArgument, match="revoke unused ones"):
        created([token] * TOKENS_MAX, CreateToken(**WANTED), "0" * 12, bytes(32), 0)
