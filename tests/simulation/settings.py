"""Settings of simulated servers: all bounds small, so that a few hundred messages meet every one of them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import combinations
from random import Random

from delayserver.config.settings import (
    BrokerSettings,
    DispatchSettings,
    GroupSettings,
    ListenSettings,
    MessageSettings,
    NodeSettings,
    RouteSettings,
    Settings,
    StorageSettings,
    WheelSettings,
)

HOUR_MS = 3_600_000
DELAY_MS_MAX = 30 * 24 * HOUR_MS
ACK_TIMEOUT_MS = 20_000
REDELIVERY_FIRST_MS = 1_000
# The bytes and the time that a broker keeps for a group that lags; 0 is no bound.
LAG_BOUNDS = ((20_000, 0), (100_000, 0), (0, 5 * 60_000), (0, 24 * HOUR_MS))


def server_settings(chance: Random, groups: tuple[GroupSettings, ...], routes: tuple[RouteSettings, ...]) -> Settings:
    """Drawn anew for every seed."""
    # A queue holds at least what its workers have in flight: what comes back from an attempt is not to be dropped.
    queue_rows_max, batch_messages_max = chance.choice([(16, 3), (1_000_000, 3), (1_000_000, 8192)])
    window_ms = chance.choice([1_000, 10_000, 60_000, 60_000, 60_000, 600_000])
    return Settings(
        listen=listen_settings(chance),
        message=MessageSettings(delay_ms_max=DELAY_MS_MAX),
        storage=StorageSettings(
            data_dir="/data",
            durability="sync" if chance.random() < 0.9 else "os",
            window_ms=window_ms,
            fine_horizon_ms=chance.choice([2, 8, 26]) * HOUR_MS,
            message_log_segment_bytes=chance.choice([8, 32, 256]) * 1024,
            message_log_retention_ms=chance.choice([1_000, HOUR_MS]),
            retention_ms=chance.choice([600_000, 2 * HOUR_MS, 24 * HOUR_MS]),
            clock_hold_ms=chance.choice([1_000, 120_000, 1_800_000]),
            open_files_max=chance.choice([16, 256]),
            inline_sync_bytes_max=chance.choice([0, 64 * 1024]),
            warm_ahead_bytes=chance.choice([0, 4096, 16384]),
            checkpoint_interval_ms=chance.choice([100, 1_000, 5_000]),
            checkpoint_bytes=chance.choice([4, 1024]) * 1024,
            free_bytes_min=128 * 1024,
            dispatch_reserve_bytes=64 * 1024,
        ),
        wheel=WheelSettings(
            tick_ms=chance.choice([1, 10, 100]),
            slots=chance.choice([64, 512]),
            load_ahead_ms=chance.choice([2_000, 90_000, 90_000]),
            rows_max=chance.choice([24, 1_000_000]),
            slice_rows=chance.choice([4, 8192]),
        ),
        dispatch=DispatchSettings(
            batch_messages_max=batch_messages_max,
            queue_rows_max=queue_rows_max,
            deliver_timeout_ms=chance.choice([500, 10_000]),
            backoff_ms_max=chance.choice([1_000, 30_000]),
            outcome_flush_ms=chance.choice([1, 5, 200]),
            outcome_rows_max=chance.choice([8, 1_000_000]),
        ),
        broker=BrokerSettings(
            segment_bytes=chance.choice([32, 256]) * 1024,
            ack_timeout_ms=ACK_TIMEOUT_MS,
            cache_bytes_max=chance.choice([4, 1024]) * 1024,
            redelivery_first_ms=REDELIVERY_FIRST_MS,
            redelivery_cap_ms=chance.choice([1_000, 30_000]),
            # None, some or all of them have room on disk; the others are redelivered from their place.
            redelivery_bytes_max=chance.choice([0, 2_000, 1 << 30]),
        ),
        groups=groups,
        routes=routes,
        shutdown_timeout_ms=10_000,
    )


def with_lag_bound(chance: Random, settings: Settings) -> Settings:
    """The broker lets go what is more than some segments, or some time, behind its end."""
    bytes_max, ms_max = chance.choice(LAG_BOUNDS)
    return replace(settings, broker=replace(settings.broker, lag_bytes_max=bytes_max, lag_ms_max=ms_max))


def listen_settings(chance: Random) -> ListenSettings:
    """What connections may hold: in half of the seeds less than one large request or reply."""
    if chance.random() < 0.5:
        return ListenSettings()
    return ListenSettings(
        memory_bytes_max=chance.choice([8, 64, 1024]) * 1024,
        memory_bytes_each=chance.choice([1, 64]) * 1024,
        unsent_bytes_max=chance.choice([1, 4096]),
        unsent_timeout_ms=chance.choice([1_000, 2_000]),
        idle_frame_timeout_ms=chance.choice([3_000, 30_000]),
    )


Topology = tuple[tuple[GroupSettings, ...], tuple[RouteSettings, ...]]


def embedded_only(chance: Random) -> Topology:
    """The broker of the server itself, as one group or as two that share it."""
    default = GroupSettings("default", (NodeSettings(),))
    if chance.random() < 0.7:
        return (default,), (RouteSettings(),)
    return (default, GroupSettings("bills", (NodeSettings(),))), _routes(chance)


def _routes(chance: Random) -> tuple[RouteSettings, ...]:
    return RouteSettings("bills.*", chance.choice([("bills",), ("bills", "default")])), RouteSettings("*", ("default",))


def with_nodes(chance: Random, addresses: list[str]) -> Topology:
    """`remote.*` goes to nodes of their own, and in half of the seeds to the embedded broker when all of them fail."""
    remote = GroupSettings("remote", tuple(NodeSettings(address, chance.choice([1, 3])) for address in addresses))
    ways = ("remote", "default") if chance.random() < 0.5 else ("remote",)
    groups, routes = embedded_only(chance)
    if chance.random() < 0.3:  # two groups with the same nodes: each fails for itself
        again = GroupSettings("again", remote.nodes)
        return (*groups, remote, again), (RouteSettings("remote.*", ("remote", "again", *ways[1:])), *routes)
    return (*groups, remote), (RouteSettings("remote.*", ways), *routes)


def shares_nodes(settings: Settings, subject: str) -> bool:
    """Whether two groups of the route of a subject have a node that both hand messages to."""
    return any(one & other for one, other in combinations(nodes_of_route(settings, subject), 2))


def nodes_of_route(settings: Settings, subject: str) -> list[set[str]]:
    """The addresses of the nodes of each group of the route of a subject."""
    nodes = {group.name: {node.address for node in group.nodes} for group in settings.groups}
    ways = next((route.groups for route in settings.routes if fnmatchcase(subject, route.pattern)), ())
    return [nodes[name] for name in ways]


def node_settings(chance: Random) -> Settings:
    """Of a lone broker."""
    return server_settings(chance, *embedded_only(chance))
