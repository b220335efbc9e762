"""The blocking operations are what the generator makes of the asynchronous ones."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from delayserver.client.asynchronous.operations import AsyncOperations
from delayserver.client.blocking.operations import BlockingOperations
from ops.blocking_client import SOURCES, blocking, target_of

OPERATIONS = [name for name in dir(AsyncOperations) if not name.startswith("_")]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_blocking_operations_are_current(source: Path) -> None:
    made = blocking(source.read_text(), source.name)
    assert target_of(source).read_text() == made, "run: python -m ops.blocking_client"


def test_async_and_await_are_left_out_of_code_alone() -> None:
    source = '''
async def pull(client: AsyncClient) -> str:
    """A pull of the asynchronous client: await it."""
    async with client.batcher() as batcher:  # await
        return [row async for row in (await client.pull()).rows] or await (
            batcher.send("async await")
        )
'''
    made = '''
def pull(client: Client) -> str:
    """A pull of the blocking client: await it."""
    with client.batcher() as batcher:  # await
        return [row for row in (client.pull()).rows] or (
            batcher.send("async await")
        )
'''
    assert blocking(source, "").partition("\n")[2] == made


@pytest.mark.parametrize("name", OPERATIONS)
def test_both_clients_have_the_same_operations(name: str) -> None:
    ours, theirs = getattr(AsyncOperations, name), getattr(BlockingOperations, name)
    if isinstance(ours, property):
        ours, theirs = ours.fget, theirs.fget
    assert [*inspect.signature(ours).parameters.values()] == [*inspect.signature(theirs).parameters.values()]
    assert inspect.getdoc(ours)
    assert not inspect.iscoroutinefunction(theirs)
