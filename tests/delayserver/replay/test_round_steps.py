"""A round of replay is published by the steps that the publisher was made with."""

from __future__ import annotations

from collections import Counter

import numpy as np
import trio

from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.replay.publisher import Publisher
from delayserver.replay.replayer import Replayer
from delayserver.replay.rounds import Rounds
from delayserver.runtime.runtime import Runtime
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors
from delayserver.server.parts import Parts
from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Round
from store.tables.names import Names
from tests.fakes.host import Boot, faked_settings

# No checkpoint of its own accord: a start replays all.
RARE_CHECKPOINTS = {"checkpoint_interval_ms": 1 << 40}


class FirstLetters:
    """Counts messages by the first letter of their subject."""

    def __init__(self, names: Names, positions: Positions) -> None:
        self.counts: Counter[str] = Counter()
        self._names = names
        self._positions = positions

    def publish(self, done: Round) -> None:
        assert self._positions.replayed.value < done.end
        if done.messages is None:
            return
        subjects, counts = np.unique(done.messages.subject, return_counts=True)
        for subject, count in zip(subjects.tolist(), counts.tolist(), strict=True):
            self.counts[self._names.name(subject)[0]] += count


async def replay_with(parts: Parts, step: FirstLetters, runtime: Runtime) -> None:
    publisher = Publisher((*parts.replay.publisher.steps, step), parts.state.positions)
    rounds = Rounds(
        parts.replay.placing, publisher, parts.replay.rows_to_memory, parts.state.tables, parts.replay.groups
    )
    reader, window_ms = MessageLogReader(parts.files.log, runtime), parts.state.book.window_ms
    queue, tier = parts.state.log_queue, parts.replay.tier
    replayer = Replayer(reader, parts.files.schedule, rounds, tier, queue, window_ms, runtime)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replayer.run)
        await parts.state.positions.replayed.reached(parts.state.positions.durable.value)
        nursery.cancel_scope.cancel()


async def test_a_step_that_the_publisher_was_made_with_gets_every_message_before_the_marks_move(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage=RARE_CHECKPOINTS))
    for subject in ("apples", "bees", "ants", "apples"):
        await client.put("m", host.now_ms + 600_000, subject=subject)
    cancelled = await client.put("m", host.now_ms + 600_000, subject="bees")
    await client.cancel(cancelled["receipt"])
    await host.kill()
    runtime = Runtime.on(clock=host.clock, workers=host.workers)
    server = DelayServer(host.settings, runtime=runtime, doors=Doors(host.disk, host.network.connect))
    server.open()
    step = FirstLetters(server.parts.files.names, server.parts.state.positions)
    await replay_with(server.parts, step, runtime)
    assert step.counts == {"a": 3, "b": 2}
    assert server.parts.state.balance.placed == 5
