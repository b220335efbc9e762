"""The operation `status`: the balance of rule 3, lateness, and the health of every part. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delayserver.operations.figures.status_sections import (
    DAMAGES_TOLD_MAX,
    BalanceReader,
    BalanceStatus,
    BrokerReader,
    ClockStatus,
    DeliveryReader,
    DiskReader,
    DiskStatus,
    EventLoopStatus,
    GroupStatus,
    ProcessReader,
    ProcessStatus,
    ProgressReader,
    ProgressStatus,
    WheelStatus,
    WindowsReader,
    WindowsStatus,
)
from delayserver.state.connections.connections import Connections


@dataclass(frozen=True, slots=True)
class ConnectionsStatus:
    """The connections of all fronts. The bytes exclude the allowances of the connections."""

    open: int
    one_way_refused: int
    used_bytes: int
    bytes_max: int
    frames_waiting: int


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """All sections of `status`."""

    process: ProcessStatus
    balance: BalanceStatus
    clock: ClockStatus
    event_loop: EventLoopStatus
    connections: ConnectionsStatus
    errors: dict[str, int]
    corruption: list[str]
    unreadable: list[str]
    duplicate_server_ids: list[str]
    disk: DiskStatus
    progress: ProgressStatus
    windows: WindowsStatus
    wheel: WheelStatus
    groups: dict[str, GroupStatus]
    broker: dict[str, Any]


class StorageReader:
    """The readers of the sections about the disk."""

    def __init__(self, disk: DiskReader, progress: ProgressReader, windows: WindowsReader) -> None:
        self.disk = disk
        self.progress = progress
        self.windows = windows


class Status:
    """Reads all sections in one step."""

    def __init__(
        self,
        process: ProcessReader,
        balance: BalanceReader,
        storage: StorageReader,
        delivery: DeliveryReader,
        broker: BrokerReader,
        connections: Connections,
    ) -> None:
        self._process = process
        self._balance = balance
        self._storage = storage
        self._delivery = delivery
        self._broker = broker
        self._connections = connections

    def now(self) -> ServerStatus:
        """The state of this moment."""
        storage, damage, connections = self._storage, self._storage.disk.damage, self._connections
        return ServerStatus(
            process=self._process.process(),
            balance=self._balance.read(),
            clock=self._process.clock(),
            event_loop=self._process.event_loop(),
            connections=ConnectionsStatus(
                open=connections.open,
                one_way_refused=connections.one_way_refused,
                used_bytes=connections.memory.used_bytes,
                bytes_max=connections.memory.bytes_max,
                frames_waiting=connections.memory.frames_waiting,
            ),
            errors=dict(sorted(connections.errors.items())),
            corruption=damage.corruption[:DAMAGES_TOLD_MAX],
            unreadable=damage.unreadable[:DAMAGES_TOLD_MAX],
            duplicate_server_ids=self._delivery.duplicates() + self._broker.duplicates(),
            disk=storage.disk.read(),
            progress=storage.progress.read(),
            windows=storage.windows.read(),
            wheel=self._delivery.wheel(),
            groups=self._delivery.groups(),
            broker=self._broker.read(),
        )
