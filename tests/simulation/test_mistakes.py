"""The simulation can fail: each mistake of the original, put back into the server, breaks a promise within some seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from delayserver.receive.intake import Intake
from tests.simulation import actors, damage, settings, world
from tests.simulation.many import SEEDS_OF_THE_TESTS
from tests.simulation.mistakes import (
    COUNTING_MISTAKES,
    MISTAKES,
    SCHEDULING_MISTAKES,
    SKIPPING_MISTAKES,
    Change,
    a_client_that_keeps_the_old_offset,
    broadcast_of_what_has_expired,
    let_go_without_a_word,
    lost_files_forgotten,
    made,
    policies_lost_in_silence,
)
from tests.simulation.run import run_seed

# The quickest of the seeds that every run of the tests has. They come first.
QUICK = (1, 5, 4, 2, 8, 7, 10, 6)
SEEDS = tuple(dict.fromkeys([*QUICK, *range(40)]))
# The seed that noticed a mistake last, where it is not the first of `SEEDS`. A change of the workload moves seeds: then the
# others are tried, and a new number here saves that time.
NOTICED_BY = {
    "a_batch_in_the_order_of_acceptance": 10,
    "a_gate_that_forgets_running_commits": 58,
    "a_gate_that_waits_for_nothing": 35,
    "a_read_that_ends_wakes_no_pull": 5,
    "ack_before_sync": 2,
    "back_to_a_group_that_is_gone": 141,
    "batches_of_one_key_at_once": 25,
    "cancelled_and_delivered": 4,
    "checkpoint_before_sync": 2,
    "cleanup_by_age": 5,
    "delay_cut_short": 5,
    "delay_silently_clamped": 6,
    "discarded_after_failures": 19,
    "empty_body_on_retry": 4,
    "ends_behind_a_checkpoint_forgotten": 5,
    "every_end_is_as_wanted": 4,
    "expiry_forgotten_by_the_broker": 5,
    "filter_forgotten_by_a_restart": 2,
    "forgotten_in_its_place": 3,
    "given_up_for_good": 3,
    "index_without_ids_of_clients": 2,
    "match_passed_over": 2,
    "next_segment_never_named": 5,
    "one_attempt_more": 18,
    "one_way_send_that_loses_its_last": 8,
    "one_way_send_told_before_its_sync": 14,
    "pages_of_subjects_that_skip_one": 2,
    "policy_decides_at_once": 0,
    "prepared_is_seen": 4,
    "published_answered_before_its_sync": 0,
    "queues_emptied_for_nobody": 2,
    "read_skips_one": 4,
    "recovery_looks_at_last_two_segments": 5,
    "refused_row_of_a_one_way_send_untold": 14,
    "removed_by_the_wall_clock": 27,
    "resent_and_kept": 6,
    "seek_keeps_acks": 4,
    "seek_leaves_leases": 30,
    "sequence_restarts": 2,
    "stored_behind_its_deadline": 2,
    "transaction_forgotten_behind_its_check_back": 4,
}

# Likewise, in worlds that all keep exact books.
COUNTED_BY = {
    "a_hand_out_that_is_not_recorded": 3,
    "a_lease_that_outlives_its_connection": 0,
    "a_start_that_forgets_leases": 3,
    "an_extend_of_an_ended_lease_that_works": 26,
}

# Likewise, in worlds in which an operator skips messages.
SKIPPED_BY = {"a_skip_answered_before_its_sync": 11}
SCHEDULED_BY = {"moments_of_a_downtime_are_forgotten": 13, "a_moment_is_decided_twice": 1}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_mistake_is_noticed(mistake: Callable[[], list[Change]]) -> None:
    seeds = dict.fromkeys([NOTICED_BY.get(mistake.__name__, SEEDS[0]), *SEEDS])
    assert any(_noticed(mistake, seed) for seed in seeds), f"{mistake.__doc__}: not noticed"


def _noticed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    """A promise is broken with the mistake, and kept without it: another test says so of some seeds."""
    return _failed(mistake, seed) and (seed in SEEDS_OF_THE_TESTS or _is_kept(seed))


def _failed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    with made(mistake):
        failure = run_seed(seed).failure
    # A mistake that only breaks the program would be noticed whatever the model says.
    assert not any(name in failure for name in ("TypeError", "AttributeError", "NameError")), failure
    return bool(failure)


@functools.cache
def _is_kept(seed: int) -> bool:
    """Mistakes share seeds, and a seed always ends in the same way."""
    return not run_seed(seed).failure


def _some_seed_notices(mistake: Callable[[], list[Change]], first: int) -> bool:
    """In the worlds of a test. `first` is the seed that noticed it last."""
    return any(_failed(mistake, seed) and not run_seed(seed).failure for seed in (first, *SEEDS))


@pytest.mark.parametrize("mistake", COUNTING_MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_books_of_attempts_notice_the_mistake(
    mistake: Callable[[], list[Change]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few seeds keep exact books, so here all of them do."""
    monkeypatch.setattr(world, "COUNTING_SHARE", 1.0)
    assert _some_seed_notices(mistake, first=COUNTED_BY.get(mistake.__name__, SEEDS[0]))


@pytest.mark.parametrize("mistake", SKIPPING_MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_books_of_skips_notice_the_mistake(
    mistake: Callable[[], list[Change]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few seeds skip messages, so here all of them do."""
    monkeypatch.setattr(world, "ORDERING_SHARE", 1.0)
    monkeypatch.setattr(world, "SKIPPING_SHARE", 1.0)
    assert _some_seed_notices(mistake, first=SKIPPED_BY.get(mistake.__name__, SEEDS[0]))


@pytest.mark.parametrize("mistake", SCHEDULING_MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_books_of_schedules_notice_the_mistake(
    mistake: Callable[[], list[Change]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few seeds have schedules, so here all of them do."""
    monkeypatch.setattr(world, "SCHEDULING_SHARE", 1.0)
    assert _some_seed_notices(mistake, first=SCHEDULED_BY[mistake.__name__])


def test_files_that_are_forgotten_when_they_are_cut_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few seeds cut files, so here all of them do."""
    monkeypatch.setattr(world, "CUTTING_SHARE", 1.0)
    assert _some_seed_notices(lost_files_forgotten, first=5)


def test_a_loss_to_the_lag_bound_that_nobody_is_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few seeds bound what a group may hold, so here all of them do, closely. Messages with keys show what was let go."""
    monkeypatch.setattr(world, "LAG_BOUND_SHARE", 1.0)
    monkeypatch.setattr(world, "KEYED_SHARE", 1.0)
    monkeypatch.setattr(settings, "LAG_BOUNDS", settings.LAG_BOUNDS[:1])
    assert _some_seed_notices(let_go_without_a_word, first=0)


def test_a_broadcast_of_what_has_expired_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few messages expire, so here half of them do, and all seeds have the broadcast group."""
    monkeypatch.setattr(actors, "EXPIRING_SHARE", 0.5)
    monkeypatch.setattr(world, "MOVING_SHARE", 1.0)
    assert _some_seed_notices(broadcast_of_what_has_expired, first=11)


def test_a_client_that_keeps_the_old_offset_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few seeds send with delays by the client of the library, so here all of them do."""
    monkeypatch.setattr(world, "DELAYING_SHARE", 1.0)
    assert _some_seed_notices(a_client_that_keeps_the_old_offset, first=7)


def test_policies_that_are_lost_in_silence_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few flipped bits hit the table of policies, so here many do."""
    monkeypatch.setattr(world, "FLIPPING_SHARE", 1.0)
    monkeypatch.setattr(damage, "BROKER", (damage.POLICIES,))
    assert _some_seed_notices(policies_lost_in_silence, first=9)


def test_a_bug_that_a_handler_answers_as_an_internal_error_fails_its_seed() -> None:
    def broken() -> list[Change]:
        def mistaken(_right: Any) -> Any:
            def due(_self: Any, _due_ms: Any, _delay_ms: Any, _now_us: int) -> int:
                raise TypeError("nobody expects this")

            return due

        return [(Intake, "_due", mistaken)]

    with made(broken):
        assert any("bug while answering send" in run_seed(seed).failure for seed in SEEDS)
