"""Killed anywhere on its way to the disk, the server keeps what it promised. One test for each named point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.points import POINTS, Point
from tests.crash.scenes import Scene


def test_every_point_has_its_own_name() -> None:
    names = [point.name for point in POINTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_nothing_promised_is_broken_by_a_kill_at(point: Point, tmp_path: Path) -> None:
    scene = Scene(tmp_path, point)
    try:
        scene.play()
        scene.finish()
    finally:
        scene.server.clean_up()
