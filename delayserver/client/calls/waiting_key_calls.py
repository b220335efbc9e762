"""Calls about order keys of consumer groups that wait for a message that has failed. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from delayserver.client.calls.core import Call, described_call
from delayserver.client.calls.dead_letter_calls import chosen_positions
from delayserver.protocol.operation_names import WAITING_KEYS
from delayserver.protocol.schema.waiting_keys import (
    SKIP_MAX,
    ListWaitingKeys,
    RetryKeysResult,
    RetryWaitingKeys,
    SkipResult,
    SkipWaitingKeys,
    WaitingKeysPage,
)


def list_call(subject: str, group: str, *, after: int | None, keys_max: int) -> Call[WaitingKeysPage]:
    """A page of waiting keys."""
    asked = ListWaitingKeys(subject=subject, group=group, after=-1 if after is None else after, max=keys_max)
    return described_call(WAITING_KEYS, asked, WaitingKeysPage)


def skip_call(
    subject: str, group: str, *, keys_max: int, positions: Sequence[int] | None, reason: str
) -> Call[SkipResult]:
    """Skip the messages for which keys wait. Repeatable by position: those that were skipped are done."""
    chosen = chosen_positions(positions)
    count_max = min(keys_max, SKIP_MAX)
    asked = SkipWaitingKeys(subject=subject, group=group, positions=chosen, max=count_max, reason=reason)
    return described_call(WAITING_KEYS, asked, SkipResult, repeatable=positions is not None)


def retry_call(subject: str, group: str, *, positions: Sequence[int] | None) -> Call[RetryKeysResult]:
    """End the pauses of these messages. Repeatable: it ends nothing twice."""
    chosen = chosen_positions(positions)
    asked = RetryWaitingKeys(subject=subject, group=group, positions=chosen)
    return described_call(WAITING_KEYS, asked, RetryKeysResult)
