"""What a reading of the recovery tools found: damage beside damage, and tools that are run in another order."""

from __future__ import annotations

from pathlib import Path

from store.file_header import FILE_MESSAGE_LOG, FILE_STORE, FileHeader
from tests.delayserver.recover import damaging
from tests.delayserver.recover.directories import Made, copy, in_process


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_foreign_segment_between_ours_costs_none_of_our_bytes(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    for folder, kind in (("message_log", FILE_MESSAGE_LOG), ("broker/store", FILE_STORE)):
        (segment,) = (made.path / folder).iterdir()
        _, _, base = damaging.records(segment)[0]
        header = FileHeader(kind, 0x123456, base).encode()
        segment.with_name(f"{base:020d}.log").write_bytes(header + bytes(1000))
        before = content(made.path / folder)
        assert in_process("repair", str(made.path), "--yes").code == 0
        assert content(made.path / folder) == before


def test_a_segment_under_a_lower_name_costs_its_neighbour_nothing(aged: Made, tmp_path: Path) -> None:
    made = copy(aged, tmp_path / "data")
    first, second, *_ = sorted((made.path / "message_log").iterdir())
    before = content(first.parent)
    _, _, low = damaging.records(first)[0]
    second.rename(first.with_name(f"{low:020d}.log"))
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert content(first.parent) == before
