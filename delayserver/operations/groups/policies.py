"""The operation `policy`: shows and sets how a consumer group of this node is served. See `ConsumerPolicy`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import trio

from delayserver.broker.actions.dead_letter_burial import DeadLetters
from delayserver.broker.filters.filter import FilterText
from delayserver.broker.policy import DEFAULT_POLICY, ConsumerPolicy, PolicyFault, policy_from
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.broker import Broker
from delayserver.broker.service.pulls import TOO_MANY_GROUPS
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.filtering import Compiled, FilterCompiler
from delayserver.protocol.errors import DiskFull, GroupsFull, PolicyInvalid, StorageFailed, SubjectInvalid
from delayserver.protocol.schema.policies import AppliedPolicy, PolicyFields, PolicyOfGroup, ShowPolicy
from delayserver.runtime.runtime import Runtime
from store.errors import DiskFullError, StoreError
from store.tables.names import CONSUMER_GROUP, SUBJECT


def dead_letter_subject(subject: str, group: str) -> str:
    """The subject to which the dead letters of a consumer group go."""
    return f"{subject}.dead.{group}"


def waiting_letters(letters: DeadLetters, code_of: Callable[[int, str], int], subject: str, group: str) -> int:
    """How many dead letters of a consumer group were neither sent again nor dropped. `code_of`: `NameDesk.code`."""
    dead_subject = code_of(SUBJECT, dead_letter_subject(subject, group))
    return letters.waiting((dead_subject, code_of(CONSUMER_GROUP, group)))


class GroupPolicies:
    """Shows and sets policies."""

    def __init__(
        self,
        broker: Broker,
        filters: FilterCompiler,
        names: NameDesk,
        runtime: Runtime,
        propose: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """`propose`, in a member of a cluster: makes a changed table that of all members, and returns when it came to
        `adopt`."""
        self._table = broker.state.policies
        self._limits = broker.state.limits
        self._consuming = broker.consuming
        self._filters = filters
        self._names = names
        self._workers = runtime.workers
        self._propose = propose
        self._changing = trio.Lock()
        self._filter_changes: set[GroupKey] = set()
        # The filter of the change which is on its way.
        self._proposed: tuple[GroupKey, Compiled] | None = None

    async def policy(self, asked: ShowPolicy) -> PolicyOfGroup:
        """The policy of a group, which need not have pulled yet. Changes it first if the request says so, durably.

        Raises SubjectInvalid, PolicyInvalid, FilterInvalid, TagsFull, GroupsFull, SubjectsFull, DiskFull, StorageFailed;
        nothing changed then."""
        if asked.set is not None or asked.reset:
            await self._set(asked.subject, asked.group, asked.set or {}, reset=asked.reset)
        codes = self._names.known(asked.subject, asked.group)
        policy, pauses = self._table.of(codes), self._table.pauses(codes)
        applies = AppliedPolicy(policy.attempts or 0, list(pauses.levels_ms))
        if not pauses.levels_ms:
            applies = AppliedPolicy(policy.attempts or 0, [], pauses.first_ms, pauses.factor, pauses.cap_ms)
        return PolicyOfGroup(asked.subject, asked.group, PolicyFields(**policy.to_full_map()), applies)

    async def _set(self, subject: str, group: str, changes: Mapping[str, Any], *, reset: bool) -> None:
        async with self._changing:
            before = DEFAULT_POLICY if reset else self._table.of(self._names.known(subject, group))
            try:
                policy = policy_from(before.to_full_map() | dict(changes))
            except PolicyFault as fault:
                raise PolicyInvalid(str(fault)) from None
            self._check_names(subject, group, policy)
            compiled = await self._filters.compile(FilterText(policy.tags, policy.where))
            policy = replace(policy, tags=compiled.text.tags, where=compiled.text.where)
            codes = self._names.subject(subject), self._names.group(group)
            await self._write(codes, policy, self._dead_subject(codes, subject, group, policy), compiled)

    async def set_filter(self, subject: int, group: int, compiled: Compiled, check: Callable[[], None]) -> None:
        """Set the filter of a group by its codes, durably. `check` raises an error if it may not change.

        Raises GroupsFull, DiskFull, StorageFailed."""
        key = (subject, group)
        async with self._changing:
            if self._table.filter_text(key) == compiled.text:
                return
            check()
            policy = replace(self._table.of(key), tags=compiled.text.tags, where=compiled.text.where)
            self._filter_changes.add(key)
            try:
                await self._write(key, policy, self._table.dead_subject(key), compiled)
            finally:
                self._filter_changes.discard(key)

    async def wait_for_filter(self, subject: int, group: int) -> None:
        """Waits while the filter of a group changes."""
        while (subject, group) in self._filter_changes:
            async with self._changing:
                pass

    def _check_names(self, subject: str, group: str, policy: ConsumerPolicy) -> None:
        """Raises SubjectInvalid for the names, PolicyInvalid if the dead-letter subject would have no valid name."""
        self._names.known(subject, group)
        if policy.attempts:
            try:
                self._names.check_subject(dead_letter_subject(subject, group))
            except SubjectInvalid as error:
                raise PolicyInvalid(f"its dead-letter subject cannot be made: {error.message}") from None

    def _dead_subject(self, codes: tuple[int, int], subject: str, group: str, policy: ConsumerPolicy) -> int:
        """The code of the group's dead-letter subject, a new one if it needs one. Raises PolicyInvalid, SubjectsFull."""
        known = self._table.dead_subject(codes)
        if known or not policy.attempts:
            return known
        name = dead_letter_subject(subject, group)
        code = self._names.subject(name)
        owner = self._table.owner_of_dead(code)
        if owner is not None and owner != codes:
            of = f"group {self._names.name(owner[1])!r} of {self._names.name(owner[0])!r}"
            raise PolicyInvalid(f"its dead-letter subject {name!r} is that of {of}: name the group differently")
        return code

    async def _write(self, codes: GroupKey, policy: ConsumerPolicy, dead_subject: int, compiled: Compiled) -> None:
        """Make a policy durable; from then on it applies, with its filter."""
        if not self._table.takes(codes):
            raise GroupsFull(TOO_MANY_GROUPS)
        text = compiled.text
        grows = len(text.tags or "") + len(text.where or "")
        if text and self._table.filter_characters() + grows > self._limits.filters_characters_max:
            raise GroupsFull(
                "the filters of this node's groups are too long together; use fewer groups, or shorter filters"
            )
        plan = self._table.write(codes, policy, dead_subject)
        if self._propose is not None:
            self._proposed = codes, compiled
            try:
                await self._propose(plan.content)
            finally:
                self._proposed = None
            return
        try:
            with trio.CancelScope(shield=True):  # what is written is also what applies
                await self._workers.run(plan.run)
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            raise StorageFailed(str(error)) from error
        self._table.apply(plan)
        self._consuming.use_filter(codes, compiled.filter)

    def adopt(self, content: bytes) -> None:
        """In a member of a cluster: a table that was kept applies, with the filter of the change that this process made. One
        of a former primary is set before its group's first pull."""
        self._table.adopt(content)
        if self._proposed is not None:
            codes, compiled = self._proposed
            self._consuming.use_filter(codes, compiled.filter)
