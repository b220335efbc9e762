"""Each kind of record has a word."""

from __future__ import annotations

import store.records.batches  # noqa: F401 - registers the kinds
from delayserver.recover.reading.code_words import RECORD_KINDS
from store.records.record import BATCHES


def test_each_kind_of_record_has_a_word_of_its_own() -> None:
    kinds = {kind for kind, batch in BATCHES.items() if batch.__module__ == "store.records.batches"}
    assert RECORD_KINDS.keys() == kinds
    assert len({*RECORD_KINDS.values()}) == len(kinds)
