"""The policy of a consumer group: how its messages are redelivered, and after how many attempts they are given up.

Pure data. `files/policies.py` keeps the policies on disk. A field that is None is not set: the broker's default applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from delayserver.broker.broker_limits import NACK_DELAY_MS_MAX
from delayserver.broker.redelivery_policy import RedeliveryPolicy

# The redelivery number of a stored message has 16 bits. Ten thousand attempts at the longest default pause take a month.
ATTEMPTS_MAX: Final = 10_000
FACTOR_MAX: Final = 100.0
# More than the longest filter has; the parsers of filters have bounds of their own.
FILTER_CHARACTERS_MAX: Final = 32_768

SKIP: Final = "skip"
WAIT: Final = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPolicy:
    """The settings of one consumer group.

    `attempts`: how often a message is handed out before it becomes a dead letter; 0 or None: without end.
    `first_ms`, `factor`, `cap_ms`: the first pause before a redelivery, its growth, and the longest pause.
    `first_level`: pauses are the named delay levels instead, from this one on (they count from 1); behind the last
    level it is repeated. `tags`, `where`: the group's filter, see `broker/filters`; None: all messages.
    `failed_key`: what a message with an order key does after its last attempt. SKIP or None: it becomes a dead letter, and
    its key goes on. WAIT: it comes again with the group's pauses, without end, and its key waits.
    """

    attempts: int | None = None
    first_ms: int | None = None
    factor: float | None = None
    cap_ms: int | None = None
    first_level: int | None = None
    tags: str | None = None
    where: str | None = None
    failed_key: str | None = None

    def redelivery(self, default: RedeliveryPolicy, levels_ms: tuple[int, ...]) -> RedeliveryPolicy:
        """The pauses of this group. `default` fills what is not set; `levels_ms` are the named delay levels."""
        if self.first_level is not None and levels_ms:
            return RedeliveryPolicy(0, 0, levels_ms=levels_ms[min(self.first_level, len(levels_ms)) - 1 :])
        first_ms = default.first_ms if self.first_ms is None else self.first_ms
        cap_ms = default.cap_ms if self.cap_ms is None else self.cap_ms
        return RedeliveryPolicy(first_ms, max(first_ms, cap_ms), default.factor if self.factor is None else self.factor)

    def to_map(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def to_full_map(self) -> dict[str, Any]:
        """All fields by name, None where nothing is set."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


FIELDS: Final = tuple([each.name for each in fields(ConsumerPolicy)])
DEFAULT_POLICY: Final = ConsumerPolicy()

_BOUNDS: Final = {
    "attempts": (0, ATTEMPTS_MAX),
    "first_ms": (0, NACK_DELAY_MS_MAX),
    "cap_ms": (1, NACK_DELAY_MS_MAX),
    "first_level": (1, 1000),
}


class PolicyFault(ValueError):
    """A policy that makes no sense. The text names the field and its valid values."""


def policy_from(values: Mapping[str, Any]) -> ConsumerPolicy:
    """The policy of fields by name; a field that is missing or None is not set. Raises PolicyFault."""
    for name in values:
        if name not in FIELDS:
            raise PolicyFault(f"a policy has no field {str(name)[:64]!r}; it has {', '.join(FIELDS)}")
    for name, (low, high) in _BOUNDS.items():
        value = values.get(name)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise PolicyFault(f"{name} must be an integer from {low} to {high}, not {str(value)[:64]!r}")
    for name in ("tags", "where"):
        text = values.get(name)
        if text is not None and (type(text) is not str or not 0 < len(text) <= FILTER_CHARACTERS_MAX):
            raise PolicyFault(f"{name} must be a text of 1 to {FILTER_CHARACTERS_MAX} characters")
    if values.get("failed_key") not in (None, SKIP, WAIT):
        raise PolicyFault(f"failed_key must be {SKIP} or {WAIT}, not {str(values['failed_key'])[:64]!r}")
    policy = ConsumerPolicy(**dict(values) | {"factor": _factor(values.get("factor"))})
    if policy.first_level is not None and (policy.first_ms, policy.factor, policy.cap_ms) != (None, None, None):
        raise PolicyFault("give either first_level, or first_ms, factor and cap_ms: pauses come from one of the two")
    if policy.first_ms is not None and policy.cap_ms is not None and policy.first_ms > policy.cap_ms:
        raise PolicyFault(f"first_ms is {policy.first_ms} and above cap_ms, which is {policy.cap_ms}")
    return policy


def _factor(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or type(value) is bool or not 1 <= value <= FACTOR_MAX:  # also not a NaN
        raise PolicyFault(f"factor must be a number from 1 to {FACTOR_MAX:g}, not {str(value)[:64]!r}")
    return float(value)
