"""Which filter a pull uses. A filter belongs to its group, and all consumers of the group share it.

A pull that names a filter sets it for its group, durably, as part of the group's policy. It never changes it under another
consumer: not while a pull of the group waits, and not while the group has messages leased. A pull that names none uses that
of the group.
"""

from __future__ import annotations

from functools import partial

from delayserver.broker.filters.filter import FilterText
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.operations.groups.filtering import Compiled, FilterCompiler
from delayserver.operations.groups.policies import GroupPolicies
from delayserver.protocol.errors import FilterInUse


class GroupFilters:
    """Brings the filters of groups in place before their pulls."""

    def __init__(self, broker: LocalBroker, filters: FilterCompiler, policies: GroupPolicies) -> None:
        self._table = broker.core.state.policies
        self._groups = broker.core.state.groups
        self._consuming = broker.core.consuming
        self._pulls = broker.pulls
        self._filters = filters
        self._policies = policies

    async def compile(self, text: FilterText) -> Compiled:
        """The compiled filter of a pull. Raises as `FilterCompiler.compile`."""
        return await self._filters.compile(text)

    async def for_pull(self, subject: int, group: int, given: Compiled | None) -> None:
        """Called before each pull: `given` is the filter of the group from then on; None: the one that it has.

        Raises FilterInUse, GroupsFull, DiskFull, StorageFailed, and as `compile`."""
        key = (subject, group)
        await self._policies.wait_for_filter(subject, group)
        if given is not None and given.text != self._table.filter_text(key):
            await self._policies.set_filter(subject, group, given, partial(self._require_unused, subject, group))
        while self._consuming.lacks_filter(key):  # the first pull since the start
            text = self._table.filter_text(key)
            compiled = await self._filters.compile(text)
            if self._table.filter_text(key) == text:
                self._consuming.use_filter(key, compiled.filter)

    def _require_unused(self, subject: int, group: int) -> None:
        if self._pulls.waits(subject, group) or self._groups.leased((subject, group)):
            present = self._table.filter_text((subject, group))
            words = [f"{name} {text!r}" for name, text in (("tags", present.tags), ("where", present.where)) if text]
            raise FilterInUse(
                f"consumers of this group pull with {' and '.join(words) or 'no filter'}, and wait or have messages; all "
                "consumers of a group share one filter",
                retry_after_ms=1000,
            )
