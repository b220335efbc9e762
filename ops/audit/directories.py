"""Reads the small files of data directories on the driver: names, the ledger, the replay position, the window length.

Does not write, lock or repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.records.batches import LedgerBatch
from store.records.segment import Damage
from store.tables import checkpoint as checkpoint_file
from store.tables.identity import read_identity
from store.tables.ledger import FILE_NAME as LEDGER
from store.tables.ledger import Ledger
from store.tables.names import Names

CorruptRow = dict[str, object]
"""server_id, file, start, stop, detail, like the `corrupt` report of the logs."""


@dataclass(frozen=True, slots=True)
class Retired:
    """The ledger of one server. `rows`: counts of windows whose files are gone, without coarse days, which are moved.
    `damages`: rows of the `corrupt` report; the counts of windows in them are missing."""

    server_id: int
    rows: LedgerBatch
    damages: tuple[CorruptRow, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """One data directory. Every record of message_log below `replay_offset` is in its schedule file.

    `window_ms`: the length of the windows, 0 without a checkpoint that has it.
    `damages`: rows of the `corrupt` report for the checkpoint."""

    path: str
    server_id: int
    replay_offset: int
    window_ms: int = 0
    damages: tuple[CorruptRow, ...] = ()


def find_directories(fs: FileSystem, paths: Sequence[str]) -> list[ServerDirectory]:
    """The directories at these paths; a repeated path counts once.

    Raises FormatError for no data directory, or two directories of one server (a copy beside its original, or two
    members of a shard).
    """
    found: dict[str, ServerDirectory] = {}
    owners: dict[int, str] = {}
    for path in dict.fromkeys([path.rstrip("/") or "/" for path in paths]):
        if not fs.exists(path):
            raise FormatError(path, "there is no such directory")
        server_id = read_identity(fs, path)
        if server_id in owners:
            detail = (
                f"is of the same server ({server_id:012x}) as {owners[server_id]}: a copy, or another member of its shard; "
                "give one of them"
            )
            raise FormatError(path, detail)
        owners[server_id] = path
        found[path] = _look(fs, path, server_id)
    return list(found.values())


def _look(fs: FileSystem, path: str, server_id: int) -> ServerDirectory:
    file = f"{path}/{checkpoint_file.FILE_NAME}"
    try:
        checkpoint = checkpoint_file.read(fs, file)
    except CorruptionError as error:
        damage = Damage(error.offset, max(error.offset, fs.size(file)), error.detail)
        return ServerDirectory(path, server_id, 0, damages=(_corrupt_row(server_id, file, damage),))
    if checkpoint is None or checkpoint.server_id != server_id:
        return ServerDirectory(path, server_id, 0)
    return ServerDirectory(path, server_id, checkpoint.replay_offset, checkpoint.window_ms)


def _corrupt_row(server_id: int, file: str, damage: Damage) -> CorruptRow:
    place = {"server_id": f"{server_id:012x}", "file": file}
    return {**place, "start": damage.start, "stop": damage.stop, "detail": damage.detail}


def read_retired(fs: FileSystem, directory: ServerDirectory, from_ms: int, to_ms: int) -> Retired:
    """The ledger's rows of windows that start in [from_ms, to_ms)."""
    ledger = Ledger.open(fs, directory.path, directory.server_id, write=False)
    try:
        windows = ledger.windows()
        mine = windows[(windows[:, 1] == 0) & (windows[:, 0] >= from_ms) & (windows[:, 0] < to_ms), 0]
        parts = [ledger.window(start_ms) for start_ms in mine.tolist()]
        file = f"{directory.path}/{LEDGER}"
        damages = [_corrupt_row(directory.server_id, file, damage) for damage in ledger.damages]
        rows = LedgerBatch.concatenate(parts) if parts else LedgerBatch.filled(0)
        return Retired(directory.server_id, rows, tuple(damages))
    finally:
        ledger.close()


def read_names(fs: FileSystem, directories: Iterable[ServerDirectory]) -> dict[int, Names]:
    """The tables of names by server id."""
    tables = {}
    for directory in directories:
        names = Names.open(fs, directory.path, directory.server_id, write=False)
        names.close()
        tables[directory.server_id] = names
    return tables
