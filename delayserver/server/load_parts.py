"""Builds the stage that reads schedule_log into memory: `load/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.load.loader import Loader
from delayserver.load.refill import Refill
from delayserver.load.window_loads import WindowLoads
from delayserver.load.window_reader import WindowReader
from delayserver.server.ground import Ground
from delayserver.server.state_parts import StateParts


@dataclass(frozen=True, slots=True)
class LoadParts:
    """The stage of loading."""

    window_reader: WindowReader
    loader: Loader
    refill: Refill


def build_load(ground: Ground, state: StateParts) -> LoadParts:
    """The loader of windows that come near, and the refill of queues from windows that were spilled."""
    runtime, windows, residency, decided = ground.runtime, state.windows, state.residency, state.decided
    overflow, wheel = state.overflow, ground.settings.wheel
    reader = WindowReader(ground.files.schedule, windows.book, ground.opened.attempts.attempted, runtime)
    loads = WindowLoads(reader, windows, residency, overflow, decided, wheel.rows_max, runtime)
    return LoadParts(
        reader,
        Loader(loads, reader, windows, residency, overflow, wheel, runtime),
        Refill(reader, residency, state.read_back, windows.book, decided, state.positions, runtime),
    )
