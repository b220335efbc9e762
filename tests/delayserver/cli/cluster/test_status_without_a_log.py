"""`cluster status` tells a log that is away from one whose end is not known for a moment."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from delayserver.cli.cluster.status import status
from tests.delayserver.cli.cluster.members_there import at, standing


def told(monkeypatch: pytest.MonkeyPatch, primary_ms: int, standby: tuple[int | None, int]) -> list[str]:
    """The lines where the primary does not know the end of its log, and got its last record so long ago."""
    a = replace(standing("a", role="primary"), lag_records=None, lag_ms=primary_ms)
    b = replace(standing("b"), lag_records=standby[0], lag_ms=standby[1])
    at(monkeypatch, {"a:1": a, "b:1": b})
    return CliRunner().invoke(status, ["--server", "a:1,b:1"]).output.splitlines()


def test_where_no_member_hears_its_log_none_would_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, 17_000, (None, 18_000)) == [
        "shard 0",
        "  a  primary      a:1, epoch 3, its log does not answer; the last record came 17,000 ms ago",
        "  b  standby      b:1, epoch 3, its log does not answer; the last record came 18,000 ms ago",
        "  if a dies now: nothing is served now, and nothing will be until the log answers",
        "  if b dies now: nothing is served now, and nothing will be until the log answers",
    ]


@pytest.mark.parametrize(
    ("standby", "behind"),
    [((19, 64), "19 records (64 ms) behind"), ((None, 64), "its last record came 64 ms ago")],
    ids=["one knows the end", "none knows it"],
)
def test_a_log_whose_end_is_not_known_is_there_while_its_records_come(
    standby: tuple[int | None, int], behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(monkeypatch, 16, standby) == [
        "shard 0",
        "  a  primary      a:1, epoch 3",
        f"  b  standby      b:1, epoch 3, {behind}",
        "  if a dies now: b goes on, some two seconds later",
        "  if b dies now: nothing stops, but the primary has no standby then",
    ]
