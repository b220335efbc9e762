"""The simulation can fail: each mistake of the original, put back into the server, breaks a promise within some seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delayserver.receive.intake import Intake
from tests.simulation import world
from tests.simulation.mistakes import MISTAKES, Change, lost_files_forgotten, made
from tests.simulation.run import run_seed

SEEDS_MAX = 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_mistake_is_noticed(mistake: Callable[[], list[Change]]) -> None:
    assert any(_noticed(mistake, seed) for seed in range(SEEDS_MAX)), f"{mistake.__doc__}: not noticed"


def _noticed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    """A promise is broken with the mistake, and kept without it."""
    with made(mistake):
        failure = run_seed(seed).failure
    # A mistake that only breaks the program would be noticed whatever the model says.
    assert not any(name in failure for name in ("TypeError", "AttributeError", "NameError")), failure
    return bool(failure) and not run_seed(seed).failure


def test_files_that_are_forgotten_when_they_are_cut_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few seeds cut files, so here all of them do."""
    monkeypatch.setattr(world, "CUTTING_SHARE", 1.0)
    assert any(_noticed(lost_files_forgotten, seed) for seed in range(SEEDS_MAX))


def test_a_bug_that_a_handler_answers_as_an_internal_error_fails_its_seed() -> None:
    def broken() -> list[Change]:
        def mistaken(_right: Any) -> Any:
            def due(_self: Any, _due_ms: Any, _delay_ms: Any, _now_us: int) -> int:
                raise TypeError("nobody expects this")

            return due

        return [(Intake, "_due", mistaken)]

    with made(broken):
        assert any("bug while answering send" in run_seed(seed).failure for seed in range(SEEDS_MAX))
