"""Opens the key index at a start, as far as it can be used."""

from __future__ import annotations

from delayserver.runtime.damage import DamageReport
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError, StoreError
from store.keys.key_manifest import FILE_NAME
from store.keys.key_table import KeyTable, new_table, open_table


def open_keys(
    fs: FileSystem, directory: str, server_id: int, replayed_sequence: int, damage: DamageReport, *, created: bool
) -> KeyTable | None:
    """The index of a data directory, or None where `KeyUpkeep` has to make it again. Damage is reported.

    `replayed_sequence`: that of the checkpoint. An index that ends before it is one that an older program did not keep.
    `created`: the directory is new, and so is the index."""
    table = None
    try:
        table = new_table(fs, directory, server_id, complete=True) if created else open_table(fs, directory, server_id)
    except FileNotFoundError as error:
        # A directory of an older program has none. But where the manifest is, its runs are.
        if fs.exists(f"{directory}/{FILE_NAME}"):
            damage.report(CorruptionError(str(error.filename), 0, "a run of the key index is missing"), own=False)
    except CorruptionError as error:
        damage.report(error, own=False)
    except FormatError as error:
        damage.report(error.as_damage(), own=False)
    except StoreError:  # a full disk, or one that refuses: `KeyUpkeep` meets it again
        return None
    if table is not None and table.covered < replayed_sequence:
        table.close()
        return None
    return table
