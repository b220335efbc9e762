"""The table of consumer groups' policies: the file `groups` in the broker's directory, replaced whole at each change.

A magic, a checksum and a msgpack map. Fields of a policy are kept by name, and only those that are set. A table that
does not verify is reported by name, and the defaults of the broker serve; the next change keeps it as `groups.damaged`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import msgpack

from delayserver.broker.policy import ConsumerPolicy, policy_from
from delayserver.broker.queues.group_cursors import GroupKey
from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import StoreError

POLICIES_FILE: Final = "groups"
DAMAGED_FILE: Final = f"{POLICIES_FILE}.damaged"
_MAGIC: Final = b"DELAYGRP"
_VERSION: Final = 1
_CODE_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """The entry of the table for one consumer group. `dead_subject`: the code of its dead-letter subject, 0 if it has none
    yet. Once given it stays, so that dead letters are found whatever the policy becomes."""

    policy: ConsumerPolicy
    dead_subject: int = 0


def encode_policies(rows: Mapping[GroupKey, PolicyRow], server_id: int) -> bytes:
    """The bytes of the file."""
    packed = [(*key, row.dead_subject, row.policy.to_map()) for key, row in sorted(rows.items())]
    body: bytes = msgpack.packb({"version": _VERSION, "server_id": server_id, "groups": packed})
    return b"".join((_MAGIC, google_crc32c.value(body).to_bytes(4, "little"), body))


def decode_policies(data: bytes, server_id: int) -> dict[GroupKey, PolicyRow]:
    """The rows. Raises ValueError with what is wrong: a checksum, another server's file, a newer version, a field."""
    body = data[12:]
    if data[:8] != _MAGIC or google_crc32c.value(body) != int.from_bytes(data[8:12], "little"):
        raise ValueError("the checksum of the table of policies does not fit")
    try:
        content = msgpack.unpackb(body)
        version, owner, packed = content["version"], content["server_id"], content["groups"]
        if version != _VERSION:
            raise ValueError(f"format version {version!r}, and this program reads {_VERSION}")
        if owner != server_id:
            raise ValueError("it belongs to another server")
        rows = {(_code(subject), _code(group)): _row(dead, values) for subject, group, dead, values in packed}
    except (KeyError, TypeError, ValueError, OverflowError, msgpack.UnpackException) as error:
        raise ValueError(f"the table of policies makes no sense: {error}") from error
    return rows


def _code(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _CODE_MAX:
        raise ValueError(f"{value!r} where a code belongs")
    return value


def _row(dead_subject: Any, values: Any) -> PolicyRow:
    if type(values) is not dict:
        raise TypeError(f"{type(values).__name__} where a policy belongs")
    return PolicyRow(policy_from(values), _code(dead_subject))


@dataclass(frozen=True, slots=True)
class FoundPolicies:
    """The table of a directory. `damage` says what is wrong with it; the rows are empty then."""

    rows: dict[GroupKey, PolicyRow]
    damage: str | None = None


def read_policies(fs: FileSystem, directory: str, server_id: int) -> FoundPolicies:
    """Read the table of a broker's directory. Never raises: without its table a broker serves by the defaults."""
    path = f"{directory}/{POLICIES_FILE}"
    try:
        return FoundPolicies(decode_policies(read_whole(fs, path), server_id))
    except FileNotFoundError:
        return FoundPolicies({})
    except (StoreError, ValueError) as error:
        return FoundPolicies(
            {}, f"{path}: {error}; groups are served by the defaults until their policies are set again"
        )


@dataclass(frozen=True, slots=True)
class PolicyWrite:
    """A change of the table, captured on the event loop. `run` blocks, in any thread, one at a time."""

    fs: FileSystem
    directory: str
    rows: dict[GroupKey, PolicyRow]
    server_id: int
    keep_damaged: bool

    @property
    def content(self) -> bytes:
        """The bytes of the table."""
        return encode_policies(self.rows, self.server_id)

    def run(self) -> None:
        """Replace the table. Raises DiskFullError (the old one stands), StoreError, SyncFailedError."""
        path = f"{self.directory}/{POLICIES_FILE}"
        if self.keep_damaged and self.fs.exists(path):
            self.fs.replace(path, f"{self.directory}/{DAMAGED_FILE}")
        write_atomically(self.fs, path, self.content)
