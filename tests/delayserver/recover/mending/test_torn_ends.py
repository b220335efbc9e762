"""A redispatch names only what it passed over."""

from __future__ import annotations

from tests.delayserver.recover.directories import Made, in_process

EVERYTHING = ("--from", "2020-01-01T00:00Z", "--to", "2100-01-01T00:00Z")


def test_a_torn_end_that_hides_nothing_is_not_named(made: Made) -> None:
    for path in made.path.glob("schedule_log/*/*.log"):
        path.write_bytes(path.read_bytes() + b"torn by a crash." * 2)
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--yes", "--json")
    assert done.rows == [{"messages": 300, "dry_run": False, "waiting": 0, "unreadable": 0, "damages": []}]
