"""The columns that a Spark reader offers for each log: their types, and the stored columns for each.

Types are Spark's and Arrow's. Names are those of the files, with subjects and groups as text. Reads no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG


@dataclass(frozen=True, slots=True)
class Field:
    """One column. `made`: how it is made, "stored" (as in the file) or a name that `arrow_rows` knows.

    `blob`: bytes that are read from the disk only if the column is selected."""

    name: str
    type: DataType
    made: str = "stored"
    source: str = ""
    blob: str = ""

    @property
    def stored(self) -> str:
        """The stored column of which it is made."""
        return self.source or self.name


_LONG, _INT, _BYTE, _TEXT, _BYTES = LongType(), IntegerType(), ByteType(), StringType(), BinaryType()

_WHERE = (
    Field("server_id", _TEXT, "server_id"),
    Field("server", _LONG, "server"),
)
_PLACE = (Field("file", _TEXT, "file"), Field("offset", _LONG, "offset"))
# True for a row in the file of a whole day. A row that is moved to a minute may be in both files for a moment.
_COARSE = Field("coarse", BooleanType(), "coarse")
_BLOBS = (
    Field("message_id", _TEXT, "blob_text", "ids_length", "ids"),
    Field("properties", _BYTES, "blob", "properties_length", "properties"),
    Field("body", _BYTES, "blob", "bodies_length", "bodies"),
    Field("order_key", _TEXT, "blob_text", "order_keys_length", "order_keys"),
)


def _longs(*names: str) -> tuple[Field, ...]:
    return tuple([Field(name, _LONG) for name in names])


def _ints(*names: str) -> tuple[Field, ...]:
    return tuple([Field(name, _INT) for name in names])


def _named(name: str) -> tuple[Field, Field]:
    """The text of an interned name, and its code in the table of that server."""
    return Field(name, _TEXT, "name", name), Field(f"{name}_code", _INT, "stored", name)


_MESSAGE = (
    *_WHERE,
    *_longs("sequence", "due_ms", "accepted_us", "expires_ms", "origin_sequence", "duplicate_of"),
    *_longs("replaces_sequence", "replaces_due_ms"),
    *_named("subject"),
    *_named("target_group"),
    *_named("tag"),
    *_ints("redelivery"),
    Field("prepared", BooleanType(), "prepared", "flags"),
    Field("body_bytes", _INT, "stored", "bodies_length"),
    *_BLOBS,
    *_PLACE,
)

FIELDS: dict[str, tuple[Field, ...]] = {
    DISPATCH_LOG: (
        *_WHERE,
        *_longs("sequence", "due_ms", "accepted_us", "loaded_us", "released_us", "queued_us"),
        *_longs("dispatched_us", "settled_us", "origin_sequence"),
        *_named("subject"),
        *_named("broker_group"),
        Field("attempts", _INT, "attempts", "attempts"),
        Field("unanswered_elsewhere", _INT, "attempts_elsewhere", "attempts"),
        *_ints("redelivery"),
        Field("outcome", _TEXT, "outcome", "outcome"),
        Field("outcome_code", _BYTE, "stored", "outcome"),
        *_longs("replaced_by_sequence", "replaced_by_due_ms"),
        _COARSE,
        *_PLACE,
    ),
    SCHEDULE_LOG: (*_MESSAGE, _COARSE),
    MESSAGE_LOG: (
        *_MESSAGE,
        Field("cancel", BooleanType(), "cancel"),
        Field("log_offset", _LONG, "log_offset"),
    ),
    BROKER_LOG: (
        Field("node_id", _TEXT, "server_id"),
        Field("node", _LONG, "server"),
        Field("server_id", _TEXT, "origin_id", "server_id"),
        Field("server", _LONG, "stored", "server_id"),
        *_longs("sequence", "position", "due_ms", "accepted_us", "dispatched_us", "expires_ms", "origin_sequence"),
        *_longs("window_ms"),
        Field("published", BooleanType(), "published", "flags"),
        *_named("subject"),
        *_named("target_group"),
        *_named("tag"),
        Field("redelivery", _INT, "redelivery", "redelivery"),
        Field("unanswered_elsewhere", _INT, "unanswered_elsewhere", "redelivery"),
        Field("body_bytes", _INT, "stored", "bodies_length"),
        *_BLOBS,
        *_PLACE,
    ),
}
"""The columns of each log, in the order of the schema."""

CORRUPT_FIELDS = (
    Field("server_id", _TEXT),
    Field("file", _TEXT),
    Field("start", _LONG),
    Field("stop", _LONG),
    Field("detail", _TEXT),
)
"""The columns of the `corrupt` report: ranges of files that were durable once and cannot be read."""

_CODES = (
    "subject_code",
    "target_group_code",
    "tag_code",
    "broker_group_code",
    "outcome_code",
    "server",
    "node",
    "file",
    "offset",
)
_ON_DEMAND = frozenset([*_CODES, "coarse", "log_offset", "message_id", "properties", "body", "order_key"])


def schema_of(fields: Sequence[Field]) -> StructType:
    """The Spark schema of these columns."""
    return StructType([StructField(field.name, field.type, nullable=True) for field in fields])


def default_fields(log: str) -> tuple[Field, ...]:
    """The default columns of a read: no blobs, no codes, no places in files."""
    return tuple([field for field in FIELDS[log] if field.name not in _ON_DEMAND])


def fields_named(log: str, names: Sequence[str]) -> tuple[Field, ...]:
    """The columns with these names, in that order. For unknown names, raises ValueError with the known ones."""
    known = {field.name: field for field in FIELDS[log]}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        there = ", ".join(known)
        raise ValueError(
            f"delay_{log} has no column {', '.join(map(repr, unknown)) or 'of an empty name'}; it has {there}"
        )
    return tuple([known[name] for name in names])


_ARROW: dict[type[DataType], pa.DataType] = {
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    ByteType: pa.int8(),
    BooleanType: pa.bool_(),
    StringType: pa.string(),
    BinaryType: pa.binary(),
}


def arrow_type(field: Field) -> pa.DataType:
    """The Arrow type of a column."""
    return _ARROW[type(field.type)]
