"""The changes of a zone are those of its file."""

from __future__ import annotations

import struct
from importlib.resources import files
from zoneinfo import ZoneInfo, available_timezones

import pytest

from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.zones import Zone

# Before and behind these seconds, 2007-01-01 and 2026-01-01, the test does not look.
BEGIN, END = 1_167_609_600, 1_767_225_600


def changes_of_file(content: bytes) -> list[tuple[int, int]]:
    """(second, offset behind it) of all changes of a TZif file (RFC 8536) in its 64-bit part."""
    sizes = struct.unpack(">6l", content[20:44])
    # The first part has 4 bytes a time, and is skipped.
    isut, isstd, leap, times, types, chars = sizes
    content = content[44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut :]
    isut, isstd, leap, times, types, chars = struct.unpack(">6l", content[20:44])
    seconds = struct.unpack(f">{times}q", content[44 : 44 + times * 8])
    kinds = content[44 + times * 8 : 44 + times * 9]
    offsets = [
        struct.unpack(">l", content[at : at + 4])[0] for at in range(44 + times * 9, 44 + times * 9 + types * 6, 6)
    ]
    found, before = [], offsets[0]
    for second, kind in zip(seconds, kinds, strict=True):
        if offsets[kind] != before:
            found.append((second, offsets[kind]))
            before = offsets[kind]
    return found


def test_the_changes_of_all_zones_are_those_of_their_files() -> None:
    seen: set[bytes] = set()
    for name in sorted(available_timezones()):
        path = files("tzdata.zoneinfo").joinpath(*name.split("/"))
        if not path.is_file() or path.read_bytes() in seen:
            continue
        seen.add(path.read_bytes())
        listed = changes_of_file(path.read_bytes())
        # Behind the last one a rule of the file goes on, which the test does not read.
        end = min(END, listed[-1][0]) if listed else BEGIN
        with path.open("rb") as file:
            zone, found, at = Zone(name, ZoneInfo.from_file(file, key=name)), [], BEGIN
        while at < end:
            _, _, change, known = zone.changes_around(at)
            at = known if change is None else change.at
            if change is not None and change.at <= end:
                found.append((change.at, change.after))
        assert found == [each for each in listed if BEGIN < each[0] <= end], name
    assert len(seen) > 300


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "/etc/localtime", "Europe", "CEST+1", "+02:00", "Mars/Olympus", "a\0b"]
)
def test_what_is_no_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(RecurrenceInvalid, match="is no zone") as found:
        Zone.named(name)
    assert found.value.field == "zone"


def test_a_misspelt_zone_is_named() -> None:
    with pytest.raises(RecurrenceInvalid, match="did you mean Europe/Berlin"):
        Zone.named("europe/berln")
