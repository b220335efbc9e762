"""The lists of tasks have every part that runs, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import iscoroutinefunction, ismethod, signature

from delayserver.server.parts import Parts
from delayserver.server.tasks import tasks_by_stage
from tests.fakes.host import Host

Boot = Callable[..., Host]


def parts_of(parts: Parts) -> Iterator[tuple[str, object]]:
    """All parts of the server, by the name of their room and their own. A start and an end run once, and are no rooms."""
    for room in fields(parts):
        value = getattr(parts, room.name)
        if room.name != "ground" and is_dataclass(value):
            yield from ((f"{room.name}.{part.name}", getattr(value, part.name)) for part in fields(value))


def is_task(run: object) -> bool:
    return iscoroutinefunction(run) and not signature(run).parameters


async def test_every_part_that_runs_is_a_task_of_one_stage(boot: Boot) -> None:
    host = boot()
    await host.start()
    tasks = [task for stage in tasks_by_stage(host.server.parts).values() for task in stage]
    started = [id(task.__self__) for task in tasks if ismethod(task) and task.__name__ == "run"]
    assert len(started) == len({*started})
    runs = {name: part for name, part in parts_of(host.server.parts) if is_task(getattr(part, "run", None))}
    others = {name for name, part in runs.items() if id(part) not in started}
    assert others == {"broker.broker_commit", "broker.pulls"}  # `LocalBroker` runs them
