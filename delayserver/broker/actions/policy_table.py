"""The policies of consumer groups, and what the sync must know of dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.policies_file import PolicyRow, PolicyWrite, decode_policies
from delayserver.broker.filters.filter import FilterText
from delayserver.broker.policy import DEFAULT_POLICY, ConsumerPolicy
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.redelivery_policy import RedeliveryPolicy
from store.disk.filesystem import FileSystem


@dataclass(slots=True)
class PolicyTable:
    """The table of policies. `damaged`: it could not be read, and the file is still there."""

    fs: FileSystem
    directory: str
    server_id: int
    limits: BrokerLimits
    rows: Mapping[GroupKey, PolicyRow]
    damaged: bool

    def of(self, key: GroupKey) -> ConsumerPolicy:
        """The policy of a group; the default one if none is set."""
        row = self.rows.get(key)
        return DEFAULT_POLICY if row is None else row.policy

    def pauses(self, key: GroupKey) -> RedeliveryPolicy:
        """The pauses before a group's redeliveries."""
        row = self.rows.get(key)
        default = self.limits.redelivery
        return default if row is None else row.policy.redelivery(default, self.limits.delay_levels_ms)

    def dead_subject(self, key: GroupKey) -> int:
        """The code of the group's dead-letter subject; 0 if it has none yet."""
        row = self.rows.get(key)
        return 0 if row is None else row.dead_subject

    def filter_text(self, key: GroupKey) -> FilterText:
        """The filter of a group's policy."""
        policy = self.of(key)
        return FilterText(policy.tags, policy.where)

    def filter_characters(self) -> int:
        """How long the filters of all policies are together. O(policies)."""
        policies = [row.policy for row in self.rows.values()]
        return sum([len(policy.tags or "") + len(policy.where or "") for policy in policies])

    def takes(self, key: GroupKey) -> bool:
        """Whether there is room for a policy of this group: it has one, or there is room for one more."""
        return key in self.rows or len(self.rows) < self.limits.groups_max

    def attempts_max(self, key: GroupKey) -> int:
        """After how many attempts a group's message becomes a dead letter; 0: never."""
        row = self.rows.get(key)
        return 0 if row is None or not row.dead_subject else row.policy.attempts or 0

    def owner_of_dead(self, dead_subject: int) -> GroupKey | None:
        """The group whose dead letters go to a subject; None if the subject is no group's. O(policies)."""
        return next((key for key, row in self.rows.items() if row.dead_subject == dead_subject), None)

    def letter_groups(self) -> set[GroupKey]:
        """The groups of dead-letter subjects that gave the letters there up. O(policies)."""
        return {(row.dead_subject, key[1]) for key, row in self.rows.items() if row.dead_subject}

    def write(self, key: GroupKey, policy: ConsumerPolicy, dead_subject: int) -> PolicyWrite:
        """Capture a change of the table. Call its `run`, then `apply`, before the next change. An empty row goes."""
        rows = {**self.rows, key: PolicyRow(policy, dead_subject)}
        if rows[key] == PolicyRow(DEFAULT_POLICY):
            del rows[key]
        return PolicyWrite(self.fs, self.directory, rows, self.server_id, self.damaged)

    def keep(self, content: bytes) -> None:
        """A member of a cluster has read a whole table in the log: write the file. Raises what `PolicyWrite.run` does, and
        ValueError for a table that this program cannot read."""
        rows = decode_policies(content, self.server_id)
        PolicyWrite(self.fs, self.directory, rows, self.server_id, self.damaged).run()

    def adopt(self, content: bytes) -> None:
        """The table that was kept applies."""
        self.rows = decode_policies(content, self.server_id)
        self.damaged = False

    def apply(self, table: PolicyWrite) -> None:
        """Applies a policy whose table is durable, also to messages that are being retried."""
        self.rows = table.rows
        self.damaged = False


@dataclass(slots=True)
class LettersToSync:
    """Dead letters that matter to the next sync. `behind`: the store offset of the first one since the last sync was
    planned; the acks of their messages wait for the next one. `retired` counts letters that retention removed before they
    were sent again or dropped."""

    behind: int | None = None
    retired: int = 0

    def retire(self, count: int) -> None:
        """Retention removed so many letters."""
        self.retired += count

    def ack_is_behind(self, store_offset: int | None) -> None:
        """Note that dead letters from this offset on are stored, and the acks of their messages are not durable."""
        if store_offset is not None:
            self.behind = store_offset if self.behind is None else min(self.behind, store_offset)

    def take_behind(self) -> int | None:
        """Take the offset, for a sync that covers all of it."""
        taken, self.behind = self.behind, None
        return taken
