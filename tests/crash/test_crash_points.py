"""Killed anywhere on its way to the disk, the server keeps what it promised. One test for each named point.

The scenes run a few at a time, because most of their time is waiting for due times and for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from tests.crash.points import DAYS, LOAD, POINTS, RETENTION, Operation, Point, needs_point
from tests.crash.scenes import Scene

SCENES_AT_ONCE = 2
TEST = "test_nothing_promised_is_broken_by_a_kill_at"


@pytest.fixture(scope="module")
def scenes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """The scenes of all points that were selected, running."""
    folder = tmp_path_factory.mktemp("crash")
    chosen: list[Point] = [
        cast(Point, item.callspec.params["point"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == TEST
    ]
    with ThreadPoolExecutor(SCENES_AT_ONCE) as pool:
        yield {point.name: pool.submit(play, folder / point.name, point) for point in chosen}
        pool.shutdown(cancel_futures=True)


def play(folder: Path, point: Point) -> None:
    folder.mkdir()
    scene = Scene(folder, point)
    try:
        scene.play()
        scene.finish()
    finally:
        scene.close()


def test_every_point_has_its_own_name() -> None:
    names = [point.name for point in POINTS]
    assert len(set(names)) == len(names)


def test_every_operation_of_a_running_server_has_a_point(tmp_path: Path) -> None:
    seen: set[Operation] = set()
    for scene in (LOAD, RETENTION, DAYS):
        folder = tmp_path / scene
        folder.mkdir()
        seen |= observe(folder, scene)
    covered = {point.operation for point in POINTS}
    missing = [operation for operation in seen - covered if needs_point(operation)]
    assert not missing, sorted(f"{operation.room}.{operation.verb}" for operation in missing)


def observe(folder: Path, kind: str) -> set[Operation]:
    """What a server does in a scene without a kill."""
    scene = Scene(folder, Point("none", kind, Operation("", ""), ""))
    try:
        scene.watch()
        return scene.server.seen
    finally:
        scene.close()


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_nothing_promised_is_broken_by_a_kill_at(point: Point, scenes: dict[str, Future[None]]) -> None:
    scenes[point.name].result()
