"""Memory is given back when a process is quiet after a burst, once, and never beside work."""

from __future__ import annotations

from delayserver.runtime.free_memory import QuietAfterWork


def looks(*used_s: float) -> list[bool]:
    """The answers of looks every 5 s, in which the process used so much CPU time each."""
    moments = QuietAfterWork(100.0, 7.0)
    total_s = 7.0
    answers = []
    for number, used in enumerate(used_s, 1):
        total_s += used
        answers.append(moments.look(100.0 + 5 * number, total_s))
    return answers


def test_a_burst_that_is_over_is_found_once() -> None:
    assert looks(4.0, 5.0, 0.1, 0.1, 0.1) == [False, False, True, False, False]


def test_no_moment_is_found_while_there_is_work() -> None:
    assert not any(looks(*[0.6] * 50))


def test_a_process_that_is_always_quiet_gives_nothing_back() -> None:
    assert not any(looks(*[0.4] * 200))


def test_work_is_added_up_until_it_is_a_burst() -> None:
    assert looks(0.6, 0.1, 0.6, 0.1, 0.1) == [False, False, False, True, False]
