"""Which source's message is handled next: that with the fewest running handlers, and in turns among equals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayserver.client.listening.ready_line import ReadyLine


def test_entries_of_equal_rank_take_turns() -> None:
    line: ReadyLine[str] = ReadyLine()
    for name in "abc":
        line.put(name, 0)
    order = []
    for _ in range(6):
        first = line.first()
        assert first is not None
        order.append(first)
        line.remove(first)  # its handler begins and ends at once
        line.put(first, 0)
    assert order == [*"abcabc"]


def test_the_least_busy_goes_first_also_when_that_changes_while_it_stands_in_line() -> None:
    line: ReadyLine[str] = ReadyLine()
    line.put("slow", 3)
    line.put("fast", 1)
    assert line.first() == "fast"
    line.put("fast", 4)
    assert line.first() == "slow"
    line.put("slow", 4)
    assert line.first() == "fast"
    line.put("slow", 0)
    assert line.first() == "slow"
    line.remove("slow")
    line.remove("slow")
    line.remove("fast")
    assert line.first() is None and len(line) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 4))))
def test_the_first_always_has_the_least_running_handlers(steps: list[tuple[int, int]]) -> None:
    line: ReadyLine[int] = ReadyLine()
    model: dict[int, int] = {}
    for name, running in steps:
        if running < 0:
            line.remove(name)
            model.pop(name, None)
        else:
            line.put(name, running)
            model[name] = running
        line.check_invariants()
        first = line.first()
        assert (first is None) == (not model)
        if first is not None:
            assert model[first] == min(model.values())
        assert {name for name in range(6) if name in line} == model.keys()
