"""Builds the key index: `keys/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.keys.key_index import KeyIndex
from delayserver.keys.key_opening import open_keys
from delayserver.keys.key_upkeep import KeyUpkeep
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts
from store.keys.key_table import FOLDER


@dataclass(frozen=True, slots=True)
class KeyParts:
    """The index, and what keeps it in order."""

    index: KeyIndex
    upkeep: KeyUpkeep


def build_keys(ground: Ground, state: StateParts) -> KeyParts:
    """Opens its files."""
    opened, runtime, fs = ground.opened, ground.runtime, ground.outside.doors.fs
    directory, server_id = ground.path(FOLDER), opened.directory.server_id
    replayed, created = opened.found.checkpoint.replayed_sequence, opened.directory.created
    table = open_keys(fs, directory, server_id, replayed, runtime.damage, created=created)
    index = KeyIndex(table, state.positions, runtime)
    return KeyParts(index, KeyUpkeep(index, ground.files, state.windows, fs, directory, runtime))
