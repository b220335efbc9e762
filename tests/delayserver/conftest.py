"""A fake disk for tests that ask for `disk`, and a server on fakes for those that ask for `boot`: in simulated time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot


def run_simulated(fn: Callable[..., Any], *, clock: trio.abc.Clock | None, instruments: Sequence[Any]) -> Any:
    """`trio.run` with a clock that jumps to the next deadline when no task can run."""
    clock = clock or trio.testing.MockClock(autojump_threshold=0)
    return trio.run(partial(fn), clock=clock, instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The plugin looks for a clock among a test's own arguments only; so a marker names it."""
    for item in items:
        if "boot" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.trio(run=run_simulated))


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
async def boot(nursery: trio.Nursery) -> AsyncIterator[Boot]:
    """Makes hosts. Those that live at the end are killed."""
    made = Boot(nursery)
    yield made
    for host in made.hosts:
        host.disk.dead = True
    nursery.cancel_scope.cancel()


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """A subject that no other test of a server uses."""
    return re.sub(r"\W", "-", request.node.name)
