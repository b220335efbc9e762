"""The tasks of a server, by the stage of its start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType

from delayserver.server.parts import Parts
from delayserver.state.positions.readiness import Stage

Task = Callable[[], Awaitable[None]]


def tasks_by_stage(parts: Parts) -> Mapping[Stage, tuple[Task, ...]]:
    """What starts just before the server enters a stage, in this order. All run until the server has stopped. Where a start
    leaves out `DELIVERING`, its tasks start with those of `READY`."""
    replay, load, outcomes, upkeep = parts.replay, parts.load, parts.outcomes, parts.upkeep
    receive, broker, dispatch, groups = parts.receive, parts.broker, parts.dispatch, parts.groups
    # A member keeps its directory in order while it follows.
    kept: tuple[Task, ...] = (
        upkeep.checkpointing.run,
        upkeep.retention.run,
        upkeep.log_retention.run,
        replay.tier.run,
        upkeep.segments_ahead.run,
        parts.figures.snapshots.run,
        broker.broker_commit.run_upkeep,
    )
    following: tuple[Task, ...] = ()
    if parts.cluster is not None:
        following = (
            partial(parts.cluster.proposing.end_with, partial(parts.cluster.follower.run, parts.cluster.log)),
            parts.cluster.watch.run,
            *(() if parts.front_probe is None else (parts.front_probe.run,)),
            *(() if parts.damage_telling is None else (parts.damage_telling.run,)),
            *kept,
        )
    of_broker: tuple[Task, ...] = (broker.local_broker.run, groups.redelivery.run, broker.publishing.run)
    ready: tuple[Task, ...] = (
        upkeep.checkpointing.run,
        upkeep.retention.run,
        upkeep.log_retention.run,
        upkeep.subject_counting.run,
        receive.warming.run,
        replay.tier.run,
        dispatch.complete_windows.run,
        upkeep.segments_ahead.run,
        parts.figures.snapshots.run,
    )
    return MappingProxyType(
        {
            Stage.REPLAYING: (
                receive.commit.run,
                replay.replayer.run,
                outcomes.recorder.run,
                parts.keys.upkeep.run,
                *((*of_broker, broker.broker_commit.run_upkeep) if parts.cluster is None else ()),
                dispatch.targets.run,
                dispatch.reload.run,
                groups.tokens.run,
                *(() if parts.cluster is None else (groups.tokens.follow,)),
            ),
            Stage.FOLLOWING: following,
            Stage.DELIVERING: (
                *(() if parts.cluster is None else of_broker),
                load.loader.run,
                load.refill.run,
                dispatch.dispatcher.run,
                dispatch.groups.run,
                parts.messages.timers.run,
                parts.messages.schedule_timers.run,
                upkeep.housekeeping.run,
            ),
            Stage.READY: (
                *[task for task in ready if task not in following],
                *(() if parts.cluster is None else (groups.tokens.bring, parts.cluster.barrier_raising.run)),
            ),
        }
    )
