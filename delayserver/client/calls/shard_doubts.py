"""Shards that failed lately, so that what may go to any shard goes to others. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

DOUBT_S: Final = 2.0
"""A shard that has just failed, or did not answer a look, comes behind the others for so long."""
AVOIDED_S_MAX: Final = 60.0
"""Messages that any shard may take avoid one that fails again and again for so long at most."""

TRIAL_S: Final = 20.0
"""An attempt that nobody ends lasts no longer: a client looks for a primary for 15 s."""


class _Doubt(NamedTuple):
    """The last failures in a row. ``failures`` counts those that followed an attempt after the one before."""

    failures: int = 0
    doubted_until_s: float = 0.0
    avoided_until_s: float = 0.0
    trial_until_s: float = 0.0


_NONE: Final = _Doubt()


class ShardDoubts:
    """What is known of each shard's failures. ``now_s`` is a clock that only grows, in seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._of: dict[int, _Doubt] = {}

    def doubted(self, shard: int) -> bool:
        """Whether it failed within `DOUBT_S`."""
        return self._of.get(shard, _NONE).doubted_until_s > self._now_s()

    def avoided(self, shard: int) -> bool:
        """Whether a message that any shard may take goes elsewhere. Each failure of an attempt doubles the time."""
        doubt = self._of.get(shard, _NONE)
        return max(doubt.avoided_until_s, doubt.trial_until_s) > self._now_s()

    def begin(self, shard: int) -> int:
        """An attempt begins. Returns what `fail` needs. After a failure it is a trial: others keep away until it ends, by
        `fail`, `trust` or `abandon`.
        """
        doubt = self._of.get(shard, _NONE)
        if doubt.failures:
            self._of[shard] = doubt._replace(trial_until_s=self._now_s() + TRIAL_S)
        return doubt.failures

    def fail(self, shard: int, begun: int) -> None:
        """An attempt failed, that began when `begin` returned ``begun``. Those that began together count once."""
        now_s = self._now_s()
        doubt = self._of.get(shard, _NONE)._replace(doubted_until_s=now_s + DOUBT_S, trial_until_s=0.0)
        if begun == doubt.failures:
            avoided_s = min(DOUBT_S * 2.0 ** min(begun, 10), AVOIDED_S_MAX)
            doubt = doubt._replace(failures=begun + 1, avoided_until_s=now_s + avoided_s)
        self._of[shard] = doubt

    def suspect(self, shard: int) -> None:
        """A look had no answer in time."""
        doubt, until_s = self._of.get(shard, _NONE), self._now_s() + DOUBT_S
        avoided_until_s = max(doubt.avoided_until_s, until_s)
        self._of[shard] = doubt._replace(doubted_until_s=until_s, avoided_until_s=avoided_until_s)

    def abandon(self, shard: int) -> None:
        """The caller of an attempt has gone before it ended: it says nothing of the shard."""
        if shard in self._of:
            self._of[shard] = self._of[shard]._replace(trial_until_s=0.0)

    def trust(self, shard: int) -> None:
        """An attempt was answered, be it with an error that is none of the shard's."""
        self._of.pop(shard, None)
