"""One directory of a clean stop and one of a kill, made once; tests damage copies of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.delayserver.recover.directories import SMALL, Made, copy, make, make_aged


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """After a clean stop. Not to be changed."""
    return make(tmp_path_factory.mktemp("stopped") / "data", *SMALL)


@pytest.fixture(scope="session")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """After SIGKILL. Not to be changed."""
    path = tmp_path_factory.mktemp("killed") / "data"
    return make(path, *SMALL, number=signal.SIGKILL)


@pytest.fixture(scope="session")
def aged(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """After a clean stop, with sealed segments, a ledger and a spilled queue. Not to be changed."""
    return make_aged(tmp_path_factory.mktemp("aged") / "data")


@pytest.fixture
def made(stopped: Made, tmp_path: Path) -> Made:
    """A copy of the cleanly stopped directory, to be damaged."""
    return copy(stopped, tmp_path / "data")
