"""Records of older versions: how a schema that grew reads them, and writes them where it can. Bytes and columns only.

A schema grows at its end: a later version has the fields of the one before, then more. The fields that an older record
lacks are 0 on every row. A batch whose newer fields are all 0 is written in the older version. So older programs go on
reading the files of a server that does not use what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from store.records.column_batch import CONSTANT, ColumnBatch, Schema, has_any, zeros
from store.records.column_blocks import Columns, decode_blocks

_ALIGN = 8


def schema_at(schema: Schema, version: int) -> Schema:
    """The schema as it was in a version from 1 to its own."""
    return schema if version == schema.version else _older(schema, version)


@cache
def _older(schema: Schema, version: int) -> Schema:
    fields = schema.fields[: schema.fields_before[version - 1]]
    names = {name for name, _ in fields}
    blobs = tuple([name for name in schema.blobs if f"{name}_length" in names])
    return replace(
        schema, version=version, fields=fields, blobs=blobs, fields_before=schema.fields_before[: version - 1]
    )


def knows(schema: Schema, version: int) -> bool:
    """Whether this program reads records of a version."""
    return 1 <= version <= schema.version


def with_newer_fields(schema: Schema, columns: Columns, count: int, names: Sequence[str] | None = None) -> Columns:
    """Columns of `count` rows, and zeros for those of the names (by default all of the schema) that are missing."""
    for name, dtype in schema.dtypes.items():
        if name not in columns and (names is None or name in names):
            columns[name] = zeros(count, dtype)
    return columns


def decode_versions(
    schema: Schema, versions: Sequence[int], blocks: Sequence[bytes], counts: Sequence[int], names: Sequence[str]
) -> Columns:
    """As `decode_blocks`, of blocks of these versions. Raises MalformedColumnsError."""
    if not versions or set(versions) == {schema.version}:
        return decode_blocks(schema, blocks, counts, names)
    if len(set(versions)) == 1:
        old = schema_at(schema, versions[0])
        known = {name for name, _ in old.fields}
        columns = decode_blocks(old, blocks, counts, [name for name in names if name in known])
        return with_newer_fields(schema, columns, sum(counts), names)
    blocks = [newest_block(schema, version, block) for version, block in zip(versions, blocks, strict=True)]
    return decode_blocks(schema, blocks, counts, names)


def newest_block(schema: Schema, version: int, block: bytes) -> bytes:
    """A column block of an older version as one of the newest: the fields that it lacks are constants of 0."""
    if version == schema.version:
        return block
    fields, all_fields = schema.fields_before[version - 1], len(schema.fields)
    encodings = bytes(block[:fields]) + bytes([CONSTANT]) * (all_fields - fields)
    return (
        encodings.ljust(_padded(all_fields), b"\0") + block[_padded(fields) :] + bytes(_ALIGN * (all_fields - fields))
    )


def lowest_schema(batch: ColumnBatch) -> Schema:
    """The lowest version of a batch's schema that holds its rows: the newer fields are all 0."""
    schema = batch.schema
    version = schema.version
    while version > 1 and not _uses(batch, version):
        version -= 1
    return schema_at(schema, version)


def _uses(batch: ColumnBatch, version: int) -> bool:
    """Whether a field that this version brought is not 0 on some row."""
    schema = batch.schema
    stop = len(schema.fields) if version == schema.version else schema.fields_before[version - 1]
    newer = schema.names[schema.fields_before[version - 2] : stop]
    return any(map(has_any, [getattr(batch, name) for name in newer]))


def _padded(fields: int) -> int:
    return (fields + _ALIGN - 1) // _ALIGN * _ALIGN
