"""A schema that grew: old records are read with zeros, and a batch is written in the lowest version that holds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records.batches import I64, U8, U32
from store.records.column_batch import ColumnBatch, decode_columns, encode_columns
from store.records.versions import decode_versions, knows, lowest_schema, newest_block, schema_at

KIND = 99


@dataclass(frozen=True, slots=True)
class Grown(ColumnBatch, kind=KIND, version=3, steps={"sequence"}, fields_before=(3, 10)):
    """Version 1: three fields and a blob. Version 2: seven more and a blob, so the directory grows. Version 3: one more."""

    sequence: I64
    flags: U8
    bodies_length: U32
    a: I64
    b: I64
    c: I64
    d: I64
    e: I64
    tags_length: U32
    f: U8
    last: I64
    bodies: memoryview
    tags: memoryview


def grown(count: int, **columns: object) -> Grown:
    return Grown.filled(count, sequence=np.arange(7, 7 + count), flags=np.arange(count) % 3, **columns)


@pytest.mark.parametrize(
    ("newer", "version"),
    [({}, 1), ({"c": 5}, 2), ({"f": np.array([0, 0, 1])}, 2), ({"last": 1}, 3), ({"a": 1, "last": np.arange(3)}, 3)],
)
def test_a_batch_is_written_in_the_lowest_version_that_holds_it(newer: dict[str, object], version: int) -> None:
    batch = grown(3, **newer)
    schema = lowest_schema(batch)
    assert schema == schema_at(Grown.schema, version)
    lowest, newest = encode_columns(batch, schema), encode_columns(batch)
    assert len(lowest) <= len(newest)
    assert decode_columns(schema, lowest, 3)["sequence"].tolist() == [7, 8, 9]
    assert newest_block(Grown.schema, version, lowest) == newest


def test_the_bytes_of_a_lower_version_are_those_that_a_program_of_before_writes() -> None:
    batch = grown(4)
    before = schema_at(Grown.schema, 1)
    assert (before.version, before.blobs, len(before.fields)) == (1, ("bodies",), 3)
    block = encode_columns(batch, lowest_schema(batch))
    assert len(block) == 8 + 8 + 8 + 8  # the directory, a step, four flags, and lengths that are constant


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([{}, {"b": 3}, {"last": 4}, {"b": 1, "last": 2}])),
        min_size=1,
        max_size=6,
    )
)
def test_blocks_of_mixed_versions_are_read_as_one(parts: list[tuple[int, dict[str, int]]]) -> None:
    versions, blocks, counts = [], [], []
    expected: dict[str, list[int]] = {name: [] for name in ("sequence", "b", "last")}
    for count, newer in parts:
        batch = grown(count, **newer)
        schema = lowest_schema(batch)
        versions.append(schema.version)
        blocks.append(encode_columns(batch, schema))
        counts.append(count)
        for name in expected:
            expected[name] += getattr(batch, name).tolist()
    columns = decode_versions(Grown.schema, versions, blocks, counts, list(expected))
    assert {name: column.tolist() for name, column in columns.items()} == expected


def test_versions_of_before_and_its_own_are_known_and_later_ones_are_not() -> None:
    assert [knows(Grown.schema, version) for version in range(5)] == [False, True, True, True, False]
