"""Receipts: formatted and parsed one by one and as columns, with the same result, whatever the list holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.protocol.errors import ReceiptInvalid
from delayserver.protocol.receipts import (
    Receipt,
    derived_message_id,
    derived_message_ids,
    format_receipt,
    format_receipts,
    parse_derived_message_id,
    parse_receipt,
    parse_receipts,
    receipt_and_id,
)

SERVER = "00c0ffee1234"
OTHER = "ffffffffffff"
field48 = st.integers(0, 2**48 - 1)
pairs = st.lists(st.tuples(field48, field48), max_size=10)


@given(field48, field48)
def test_a_formatted_receipt_is_parsed_back(due_ms: int, sequence: int) -> None:
    text = format_receipt(SERVER, due_ms, sequence)
    assert len(text) == 38
    assert parse_receipt(text) == Receipt(SERVER, due_ms, sequence)
    assert str(parse_receipt(text)) == text
    assert receipt_and_id(SERVER, due_ms, sequence) == (text, derived_message_id(SERVER, sequence))


@given(pairs)
def test_columns_of_receipts_are_the_receipts_one_by_one(rows: list[tuple[int, int]]) -> None:
    due_ms, sequence = np.array(rows, np.int64).reshape(-1, 2).T
    texts = format_receipts(SERVER, due_ms, sequence)
    assert texts == [format_receipt(SERVER, *row) for row in rows]
    columns = parse_receipts(texts, SERVER)
    assert columns.due_ms.tolist() == due_ms.tolist()
    assert columns.sequence.tolist() == sequence.tolist()
    assert columns.valid.all()
    assert columns.own.all()
    assert derived_message_ids(SERVER, sequence) == [derived_message_id(SERVER, row[1]) for row in rows]


GOOD = format_receipt(SERVER, 1_700_000_000_000, 42)
BAD = {
    "empty": "",
    "cut": GOOD[:-1],
    "too long": GOOD + "0",
    "upper case": GOOD.upper(),
    "no hex": GOOD[:-1] + "g",
    "other first dash": GOOD[:12] + "_" + GOOD[13:],
    "other second dash": GOOD[:25] + "0" + GOOD[26:],
    "full-width digits": GOOD[:-1] + "\uff11",
    "space": " " + GOOD[1:],
    "newline": GOOD[:-1] + "\n",
    "bytes": GOOD.encode(),
    "none": None,
    "number": 5,
    "list": [GOOD],
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_receipt_is_refused_and_its_neighbours_are_not(bad: object) -> None:
    with pytest.raises(ReceiptInvalid):
        parse_receipt(bad)
    columns = parse_receipts([GOOD, bad, GOOD], SERVER)
    assert columns.valid.tolist() == [True, False, True]
    assert columns.own.tolist() == [True, False, True]
    assert columns.sequence.tolist() == [42, 0, 42]
    assert columns.due_ms.tolist() == [1_700_000_000_000, 0, 1_700_000_000_000]


def test_receipts_cut_at_another_place_are_not_read_across_their_border() -> None:
    columns = parse_receipts([GOOD[:-1], GOOD[-1] + GOOD], SERVER)
    assert not columns.valid.any()


def test_a_receipt_of_another_server_is_valid_but_not_own() -> None:
    columns = parse_receipts([format_receipt(OTHER, 5, 6), GOOD], SERVER)
    assert columns.valid.tolist() == [True, True]
    assert columns.own.tolist() == [False, True]


@given(st.lists(st.one_of(st.text(max_size=40), st.just(GOOD), st.none(), st.binary(max_size=38), st.integers())))
def test_columns_agree_with_the_single_parser_on_anything(items: list[object]) -> None:
    valid = parse_receipts(items, SERVER).valid.tolist()
    for item, is_valid in zip(items, valid, strict=True):
        if is_valid:
            assert parse_receipt(item).server_id == SERVER
        else:
            with pytest.raises(ReceiptInvalid):
                parse_receipt(item)


def test_a_derived_message_id_is_distinguished_from_a_clients_own() -> None:
    assert parse_derived_message_id(derived_message_id(SERVER, 77)) == (SERVER, 77)
    for text in ("order-77", GOOD, derived_message_id(SERVER, 77).upper()):
        assert parse_derived_message_id(text) is None
