"""The policy of a consumer group: the pauses that follow from it, and what makes no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from delayserver.broker.broker_limits import DELAY_LEVELS_MS
from delayserver.broker.policy import DEFAULT_POLICY, ConsumerPolicy, PolicyFault, policy_from
from delayserver.broker.redelivery_policy import RedeliveryPolicy
from delayserver.config.settings import MessageSettings
from delayserver.config.units import parse_delay_levels

NODE = RedeliveryPolicy(1_000, 300_000)


def pauses(policy: ConsumerPolicy, count: int) -> list[int]:
    found: list[int] = policy.redelivery(NODE, DELAY_LEVELS_MS).pauses_ms(np.arange(1, count + 1)).tolist()
    return found


def test_without_a_policy_the_pauses_are_those_of_the_node() -> None:
    assert pauses(DEFAULT_POLICY, 4) == NODE.pauses_ms(np.arange(1, 5)).tolist() == [1_000, 2_000, 4_000, 8_000]


def test_a_policy_replaces_only_the_values_that_it_sets() -> None:
    assert pauses(ConsumerPolicy(first_ms=500), 3) == [500, 1_000, 2_000]
    assert pauses(ConsumerPolicy(factor=3.0, cap_ms=5_000), 4) == [1_000, 3_000, 5_000, 5_000]
    assert pauses(ConsumerPolicy(first_ms=0), 3) == [0, 0, 0]
    assert pauses(ConsumerPolicy(factor=1.0), 3) == [1_000] * 3
    assert pauses(ConsumerPolicy(first_ms=600_000), 3) == [600_000] * 3, (
        "a first pause beyond the node's cap is the cap"
    )


def test_levels_are_taken_one_after_the_other_and_the_last_one_again() -> None:
    assert pauses(ConsumerPolicy(first_level=3), 3) == [10_000, 30_000, 60_000]
    assert pauses(ConsumerPolicy(first_level=17), 4) == [3_600_000, 7_200_000, 7_200_000, 7_200_000]
    assert pauses(ConsumerPolicy(first_level=99), 2) == [7_200_000, 7_200_000], "levels may have become fewer"


def test_no_pause_overflows() -> None:
    huge = ConsumerPolicy(first_ms=1_000, factor=100.0, cap_ms=2_592_000_000).redelivery(NODE, ())
    assert huge.pauses_ms(np.array([1, 10_000, 1 << 40])).tolist() == [1_000, 2_592_000_000, 2_592_000_000]


def test_the_levels_of_the_settings_are_those_of_the_broker() -> None:
    assert parse_delay_levels(MessageSettings().delay_levels) == DELAY_LEVELS_MS


@pytest.mark.parametrize("text", ["", "1s nonsense", "5s 1s", "0ms 1s", "31d", " ".join(["1s"] * 101)])
def test_a_list_of_levels_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_delay_levels(text)


REFUSED: dict[str, dict[str, Any]] = {
    "attempts": {"attempts": -1},
    "attempts must": {"attempts": 10_001},
    "attempts must be an integer": {"attempts": True},
    "first_ms": {"first_ms": 1.5},
    "cap_ms": {"cap_ms": 0},
    "cap_ms must be": {"cap_ms": 2_592_000_001},
    "factor": {"factor": 0.5},
    "factor must": {"factor": float("nan")},
    "factor must be a number": {"factor": "2"},
    "factor must be": {"factor": True},
    "first_level": {"first_level": 0},
    "no field 'atempts'": {"atempts": 3},
    "first_ms is 2000 and above cap_ms": {"first_ms": 2_000, "cap_ms": 1_000},
    "either first_level, or": {"first_level": 1, "factor": 2},
}


@pytest.mark.parametrize(("text", "values"), REFUSED.items(), ids=REFUSED.keys())
def test_a_policy_that_makes_no_sense_is_refused_by_its_field(text: str, values: dict[str, Any]) -> None:
    with pytest.raises(PolicyFault, match=text):
        policy_from(values)


def test_a_policy_is_made_again_of_its_map() -> None:
    policy = policy_from({"attempts": 5, "first_ms": 0, "factor": 1, "cap_ms": None})
    assert policy == ConsumerPolicy(attempts=5, first_ms=0, factor=1.0)
    assert policy_from(policy.to_map()) == policy_from(policy.to_full_map()) == policy
