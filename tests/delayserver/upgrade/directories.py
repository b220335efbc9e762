"""The kept archives of `write_directory.py`, on a disk in memory or in a folder."""

from __future__ import annotations

import base64
import json
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.disk import FakeDisk
from tests.fakes.host import DATA_DIR

HERE = Path(__file__).parent
# The last one is version 0.2.0.
COMMITS = ("d4a2130", "c143d54", "eaafbfa", "61536fe")
ENDS = ("stopped", "killed")
ARCHIVES = tuple(f"{commit}-{end}" for commit in COMMITS for end in ENDS)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of an old client, `at_ms` after its connection, and what the old program answered: whole frames."""

    operation: str
    at_ms: int
    request: bytes
    reply: bytes


@dataclass(frozen=True, slots=True)
class Past:
    """What an archive holds; `files` by their path below the data directory."""

    name: str
    files: dict[str, bytes] = field(repr=False)
    clock_us: int
    balance: dict[str, int]
    receipts: dict[str, str]
    outcomes: dict[str, str]
    bodies: dict[str, str]
    exchanges: tuple[Exchange, ...] = field(repr=False)

    def disk(self) -> FakeDisk:
        """A disk that holds the directory, durably."""
        disk = FakeDisk()
        for name, content in self.files.items():
            path = f"{DATA_DIR}/{name}"
            disk.make_directory(path.rpartition("/")[0])
            file = disk.open(path, create=True)
            file.pwrite(0, [content])
            file.datasync()
            file.close()
            disk.sync_directory(path.rpartition("/")[0])
        return disk

    def unpack(self, folder: Path) -> str:
        """Write the files below a folder; returns its path."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return str(folder)

    def named(self, outcome: str) -> list[str]:
        """Names of the messages with this outcome."""
        return [name for name, found in self.outcomes.items() if found == outcome]


@cache
def past(archive: str) -> Past:
    """The content of an archive."""
    with zipfile.ZipFile(HERE / f"{archive}.zip") as file:
        story: dict[str, Any] = json.loads(file.read("story.json"))
        names = [name for name in file.namelist() if name.startswith("data/")]
        files = {name.removeprefix("data/"): file.read(name) for name in names}
    exchanges = [
        Exchange(row["operation"], row["at_ms"], base64.b64decode(row["request"]), base64.b64decode(row["reply"]))
        for row in story["exchanges"]
    ]
    kept = {name: story[name] for name in ("clock_us", "balance", "receipts", "outcomes", "bodies")}
    return Past(archive, files, exchanges=tuple(exchanges), **kept)


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files below a folder, as `Past.files`."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
