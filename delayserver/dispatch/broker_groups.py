"""All broker groups of this server, and their tasks. Groups come and go while the server runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import trio

from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.fail_over import FailOver
from delayserver.dispatch.node_probes import NodeProbes
from delayserver.runtime.marks import Bell


class BrokerGroups:
    """The groups of the settings in their order, and the internal groups."""

    def __init__(
        self, groups: list[BrokerGroup], internal: list[BrokerGroup], fail_over: FailOver, probes: NodeProbes
    ) -> None:
        self._groups = {group.rows.code: group for group in groups}
        self._internal = {group.rows.code: group for group in internal}
        self._fail_over = fail_over
        self._probes = probes
        # By the codes of the groups whose tasks run.
        self._running: dict[int, trio.CancelScope] = {}
        self._changed = Bell()
        # Grows with each change of a group or of its nodes.
        self.version = 0

    def __iter__(self) -> Iterator[BrokerGroup]:
        """The groups of the settings; a group that leaves is among them until it is gone."""
        return iter([*self._groups.values()])

    def __getitem__(self, code: int) -> BrokerGroup:
        """The group of a code, also an internal one."""
        return self._internal[code] if code in self._internal else self._groups[code]

    @property
    def first(self) -> BrokerGroup:
        """Gets what matches no route."""
        return next(iter(self._groups.values()))

    def stop(self) -> None:
        """Begin no further attempt."""
        for group in (*self._groups.values(), *self._internal.values()):
            group.stop()

    async def settle(self) -> None:
        """Begin no further attempt, and wait until each has a result."""
        self.stop()
        for group in (*self._groups.values(), *self._internal.values()):
            while group.rows.running:
                await group.rows.ended.reached(group.rows.begun)

    def change(self, groups: list[BrokerGroup]) -> None:
        """These are the groups from now on. Those that are missing must hold nothing: their tasks end."""
        kept = {group.rows.code: group for group in groups}
        for code in self._groups.keys() - kept.keys():
            assert not self._groups[code].rows.rows_held
        self._groups = kept
        self.version += 1
        self._changed.ring()

    async def run(self) -> None:
        """Run the tasks of all groups until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed.hush()
                wanted = {**self._groups, **self._internal}
                for code in self._running.keys() - wanted.keys():
                    self._running.pop(code).cancel()
                for code in wanted.keys() - self._running.keys():
                    self._running[code] = trio.CancelScope()
                    nursery.start_soon(partial(self._run, wanted[code], self._running[code]))
                await self._changed.rung()

    async def _run(self, group: BrokerGroup, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(group.run)
                nursery.start_soon(self._fail_over.run, group)
                if not group.rows.is_internal:
                    nursery.start_soon(self._probes.run, group)
