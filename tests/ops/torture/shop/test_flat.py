"""The verdict of a day in a shop: what counts as growing, and what is noise."""

from __future__ import annotations

import pytest

from ops.torture.shop.day import judge_growth
from ops.torture.shop.figures import Sample
from ops.torture.shop.flat import SAMPLES_MIN, Bound, growth

BOUND = Bound(1.1, 10.0)


def sample(second: int, **changes: float) -> Sample:
    figures = {"server_mb": 100.0, "gateway_mb": 60.0, "files": 80, "disk_mb": 40.0, "p99_ms": 20.0} | changes
    return Sample(second, **figures)  # type: ignore[arg-type]


def test_a_figure_that_doubles_is_found() -> None:
    found = growth([100.0 + 5.0 * second for second in range(60)], BOUND)
    assert found is not None
    assert found[0] < found[1]


def test_a_start_that_fills_caches_is_no_growth() -> None:
    assert growth([10.0] * 5 + [100.0] * 40, BOUND) is None


def test_a_sawtooth_is_no_growth() -> None:
    assert growth([100.0 + second % 7 * 5 for second in range(60)], BOUND) is None


def test_a_single_spike_is_no_growth() -> None:
    assert growth([100.0] * 50 + [900.0] + [100.0] * 9, BOUND) is None


def test_few_samples_prove_nothing() -> None:
    with pytest.raises(ValueError, match="samples"):
        growth([1.0] * (SAMPLES_MIN - 1), BOUND)
    assert "samples" in judge_growth([sample(1)], 60.0)[0]


@pytest.mark.parametrize("name", ["server_mb", "gateway_mb", "files", "disk_mb"])
def test_each_figure_is_judged(name: str) -> None:
    flat = [sample(second) for second in range(60)]
    assert judge_growth(flat, 120.0) == []
    growing = [sample(second, **{name: 100.0 + 10 * second}) for second in range(60)]
    assert [sentence.split()[0] for sentence in judge_growth(growing, 120.0)] == [name]


def test_round_trips_are_judged_in_long_runs_only() -> None:
    slower = [sample(second, p99_ms=20.0 * 1.1**second) for second in range(60)]
    assert judge_growth(slower, 120.0) == []
    assert [sentence.split()[0] for sentence in judge_growth(slower, 1800.0)] == ["p99_ms"]
