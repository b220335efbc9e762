"""The operation `status`: the balance of rule 3, lateness, and the health of every part. Changes nothing."""

from __future__ import annotations

from delayserver.operations.figures.member_reader import MemberReader
from delayserver.operations.figures.status_sections import (
    DAMAGES_TOLD_MAX,
    BalanceReader,
    BrokerReader,
    DeliveryReader,
    DiskReader,
    ProcessReader,
    ProgressReader,
    WindowsReader,
)
from delayserver.protocol.figures import ConnectionsStatus, MemoryFigures, ServerStatus, TroubleStatus
from delayserver.state.connections.connections import Connections


class StorageReader:
    """The readers of the sections about the disk, and about the shared log of a cluster's member."""

    def __init__(
        self, disk: DiskReader, progress: ProgressReader, windows: WindowsReader, member: MemberReader | None
    ) -> None:
        self.disk = disk
        self.progress = progress
        self.windows = windows
        self.member = member


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
        memory = connections.memory
        return ServerStatus(
            process=self._process.process(),
            balance=self._balance.read(),
            clock=self._process.clock(),
            event_loop=self._process.event_loop(),
            connections=ConnectionsStatus(
                connections.open,
                connections.one_way_refused,
                MemoryFigures(memory.used_bytes, memory.bytes_max, memory.frames_waiting),
            ),
            troubles=TroubleStatus(
                errors=dict(sorted(connections.errors.items())),
                corruption=damage.corruption[:DAMAGES_TOLD_MAX],
                unreadable=damage.unreadable[:DAMAGES_TOLD_MAX],
                duplicate_server_ids=self._delivery.duplicates() + self._broker.duplicates(),
            ),
            disk=storage.disk.read(),
            progress=storage.progress.read(),
            windows=storage.windows.read(),
            wheel=self._delivery.wheel(),
            groups=self._delivery.groups(),
            broker=self._broker.read(),
            cluster=[] if storage.member is None else [storage.member.read()],
        )
