"""A clean stop: what was taken is settled and written down, so that the next start has nothing to recover."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from store.errors import DiskFullError

if TYPE_CHECKING:
    from delayserver.server import DelayServer

logger = logging.getLogger("delayserver")


async def finish(server: DelayServer) -> None:
    """Settle what is in flight, then write a clean end. Past the bound, or without room, the next start recovers instead."""
    with trio.move_on_after(server.settings.shutdown_timeout_ms / 1000) as scope:
        try:
            await _settle(server)
        except DiskFullError as error:
            logger.warning("no room to write a clean end: %s; the next start will recover", error)
    if scope.cancelled_caught:
        logger.warning("not everything was settled in time; the next start will recover")


async def _settle(server: DelayServer) -> None:
    await server.commit.stop()
    server.dispatcher.stop()
    await server.replayer.wait_replayed(server.commit.highest_sequence)
    while any(group.running for group in server.groups.values()):
        await server.clock.sleep_ms(5)
    await server.recorder.flush()
    await server.broker_commit.durable()
    await server.checkpointing.write(clean=True)
    server.front.handlers.close()
    await server.broker_commit.close()
    if _attempts_settled(server):
        server.opened.sequences.close_clean()


def _attempts_settled(server: DelayServer) -> bool:
    """Whether no attempt has an unknown result; otherwise the next start must take the end for a crash, and ask."""
    attempted = server.opened.attempted
    if any(day.start_ms < attempted.due_before_ms for day in server.opened.days.draining()):
        return False  # what a crash took from its minutes waits in the file of the day
    return not attempted.any_unknown and not any(True for _ in server.book.incomplete_before(attempted.due_before_ms))
