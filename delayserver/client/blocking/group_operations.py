# Made by `python -m ops.blocking_client` from asynchronous/group_operations.py. Change that file.
"""The operations of the blocking client on consumer groups: their policies, their dead letters, and order
keys that wait for a message that has failed.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar, Unpack

from delayserver.client.calls import dead_letter_calls, policy_calls, waiting_key_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.policy_calls import GroupPolicy, PolicyChanges
from delayserver.protocol.schema import dead_letters as dead
from delayserver.protocol.schema import waiting_keys as waiting
from delayserver.protocol.schema.dead_letters import DeadLetter, DropResult, ResendResult
from delayserver.protocol.schema.waiting_keys import RetryKeysResult, SkipResult, WaitingKey

T = TypeVar("T")


class BlockingGroupOperations(ABC):
    """Requests about consumer groups."""

    @abstractmethod
    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    def policy(self, subject: str, group: str) -> GroupPolicy:
        """How a consumer group of this node is served. A group without a policy has the defaults of the node."""
        return self._run(policy_calls.policy_call(subject, group, None, reset=False))

    def set_policy(
        self, subject: str, group: str, *, reset: bool = False, **changes: Unpack[PolicyChanges]
    ) -> GroupPolicy:
        """Change fields of a group's policy, durably; see `PolicyChanges`. None sets a field back to the default;
        ``reset`` sets back all others.

        The policy is that of one node: set it at every node of the subject's route. It applies from then on, also to
        messages that are being retried. The group need not have pulled before.
        """
        return self._run(policy_calls.policy_call(subject, group, changes, reset=reset))

    def dead_letters(
        self, subject: str, group: str, letters_max: int = 1000, *, after: int | None = None, bodies: bool = False
    ) -> list[DeadLetter]:
        """The messages that a consumer group of this node gave up, oldest first, behind the position ``after``."""
        letters: list[DeadLetter] = []
        while len(letters) < letters_max:
            count = min(letters_max - len(letters), dead.LIST_MAX)
            call = dead_letter_calls.list_call(subject, group, after=after, letters_max=count, bodies=bodies)
            page = self._run(call)
            letters += page.letters
            after = page.next
            if after is None:
                break
        return letters

    def resend_dead_letters(
        self,
        subject: str,
        group: str,
        letters_max: int | None = None,
        *,
        positions: Sequence[int] | None = None,
        rate: float | None = None,
    ) -> ResendResult:
        """Send dead letters to their group again: the oldest ones, or those at ``positions``. Their attempts begin anew.

        With a ``rate`` they become due so many a second. Letters are moved in parts: when a part fails, the parts before
        it are done, and the rest stays. After a lost reply or a crash of the node, at most one part may come twice.
        """
        resent = left = unreadable = first_ms = 0
        for count, chosen in dead_letter_calls.parts_of(letters_max, positions):
            while count > 0:
                call = dead_letter_calls.resend_call(
                    subject, group, letters_max=count, positions=chosen, rate=rate, first_ms=first_ms
                )
                part = self._run(call)
                resent, left, first_ms = resent + part.resent, part.left, part.next_ms
                unreadable = max(unreadable, part.unreadable)
                if not part.resent:
                    break
                count -= part.resent  # noqa: PLW2901 - the rest of this part
        return ResendResult(resent, left, first_ms, unreadable)

    def drop_dead_letters(
        self, subject: str, group: str, letters_max: int | None = None, *, positions: Sequence[int] | None = None
    ) -> DropResult:
        """Remove dead letters for good: the oldest ones, or those at ``positions``."""
        dropped = left = 0
        for count, chosen in dead_letter_calls.parts_of(letters_max, positions):
            while count > 0:
                call = dead_letter_calls.drop_call(subject, group, letters_max=count, positions=chosen)
                part = self._run(call)
                dropped, left = dropped + part.dropped, part.left
                if not part.dropped:
                    break
                count -= part.dropped  # noqa: PLW2901 - the rest of this part
        return DropResult(dropped, left)

    def waiting_keys(
        self, subject: str, group: str, keys_max: int = 1000, *, after: int | None = None
    ) -> list[WaitingKey]:
        """The order keys of a consumer group of this node that wait for a message that has failed, behind the position
        ``after``. With the policy ``failed_key="wait"`` such a key waits until the message is acked or skipped."""
        keys: list[WaitingKey] = []
        while len(keys) < keys_max:
            count = min(keys_max - len(keys), waiting.LIST_MAX)
            page = self._run(waiting_key_calls.list_call(subject, group, after=after, keys_max=count))
            keys += page.keys
            after = page.next
            if after is None:
                break
        return keys

    def skip_waiting_keys(
        self,
        subject: str,
        group: str,
        keys_max: int | None = None,
        *,
        positions: Sequence[int] | None = None,
        reason: str = "",
    ) -> SkipResult:
        """Make dead letters of the messages for which keys wait, so that the keys go on: of the first ones, or of those at
        ``positions``. Each letter keeps the ``reason``. Durable on return.

        A consumer that has such a message loses its lease. Raises PolicyInvalid if the group keeps no dead letters: its
        policy then never had ``attempts``."""
        skipped = left = 0
        for count, chosen in dead_letter_calls.parts_of(keys_max, positions):
            while count > 0:
                call = waiting_key_calls.skip_call(subject, group, keys_max=count, positions=chosen, reason=reason)
                part = self._run(call)
                skipped, left = skipped + part.skipped, part.left
                if not part.skipped:
                    break
                count -= part.skipped  # noqa: PLW2901 - the rest of this part
        return SkipResult(skipped, left)

    def retry_waiting_keys(
        self, subject: str, group: str, *, positions: Sequence[int] | None = None
    ) -> RetryKeysResult:
        """End the pauses of the messages for which keys wait, of all or of those at ``positions``: a pull brings them at
        once."""
        retried = left = 0
        for _, chosen in dead_letter_calls.parts_of(None, positions):
            part = self._run(waiting_key_calls.retry_call(subject, group, positions=chosen))
            retried, left = retried + part.retried, part.left
        return RetryKeysResult(retried, left)
