"""When a primary whose front no member reaches hands over, and when it stays."""

from __future__ import annotations

from delayserver.state.shard.fronts import AGAIN_US, SAID_US, UNREACHED_US, Fronts, MemberFront, Reach

LONG_US = UNREACHED_US
TO_C, TO_B = MemberFront("c", "c:1"), MemberFront("b", "b:1")
START_US = 1_000_000_000


class Times:
    """Member a with fronts that answer, or do not, from a moment on."""

    def __init__(self, *others: MemberFront) -> None:
        self.fronts = Fronts("a")
        self.now_us = START_US
        self.fronts.take([MemberFront("a", "a:1"), *others])

    def ask(self, after_us: int = 0, **answered: bool) -> str:
        """Ask fronts some time later; the member to which it hands over."""
        self.now_us += after_us
        for name, answer in answered.items():
            self.fronts.note(name, self.now_us, answered=answer)
        self.fronts.look(self.now_us)
        self.fronts.check_invariants()
        return self.fronts.heir

    def says(self, *others: MemberFront) -> None:
        self.fronts.take([MemberFront("a", "a:1"), *others])


def says(name: str, reaches: str = "", unreached: str = "") -> MemberFront:
    return MemberFront(name, f"{name}:1", Reach(tuple(reaches), tuple(unreached)))


def test_a_front_counts_as_unreached_when_it_has_not_answered_for_ten_seconds() -> None:
    times = Times(TO_B)
    times.ask(b=True)
    assert times.fronts.own == Reach(("b",))
    times.ask(1_000_000, b=False)
    times.ask(LONG_US - 1, b=False)
    assert times.fronts.own == Reach(("b",))
    times.ask(1, b=False)
    assert times.fronts.own == Reach((), ("b",))
    times.ask(1, b=True)
    assert times.fronts.own == Reach(("b",))


def test_a_front_that_never_answered_is_unknown_for_ten_seconds() -> None:
    times = Times(TO_B)
    times.ask(b=False)
    times.ask(LONG_US - 1, b=False)
    assert times.fronts.own == Reach()
    times.ask(1, b=False)
    assert times.fronts.own == Reach((), ("b",))


def test_each_change_of_what_it_reaches_rings_once() -> None:
    times = Times(TO_B)
    for answered, rings in ((True, True), (True, False), (False, False)):
        times.fronts.changed.hush()
        times.ask(1, b=answered)
        assert times.fronts.changed.is_rung == rings


def test_a_primary_that_no_member_reaches_hands_over_to_one_that_it_reaches() -> None:
    times = Times(TO_B)
    assert not times.ask(b=True)
    times.says(says("b", unreached="a"))
    assert times.ask(b=True) == "b"
    assert times.fronts.problem(leads=True) == "not reached by b, hands over to b"


def test_a_primary_that_one_living_member_reaches_stays() -> None:
    times = Times(says("b", unreached="a", reaches="c"), says("c", reaches="ab"))
    assert not times.ask(b=True, c=True)
    assert times.fronts.unreached_by == ("b",)
    assert times.fronts.problem(leads=True) == "not reached by b, stays the primary"


def test_a_member_that_has_just_started_and_said_nothing_is_waited_for() -> None:
    times = Times(says("b", unreached="a", reaches="c"), TO_C)
    assert not times.ask(b=True, c=True)


def test_a_member_that_is_dead_is_not_waited_for() -> None:
    """It reached the primary, when it said so last."""
    times = Times(says("b", unreached="a"), says("c", reaches="ab"))
    times.ask(b=True, c=False)
    assert times.ask(LONG_US, b=True, c=False) == "b"


def test_a_primary_stays_where_no_front_is_reached_by_anybody() -> None:
    """A network that fails for all: another primary would be reached as little."""
    times = Times(TO_B, TO_C)
    times.ask(b=False, c=False)
    times.says(says("b", unreached="ac"), says("c", unreached="ab"))
    assert not times.ask(LONG_US, b=False, c=False)
    assert times.fronts.unreached_by == ("b", "c")
    assert times.fronts.problem(leads=True) == "not reached by b, c, stays the primary, does not reach b, c"


def test_a_primary_that_is_cut_off_both_ways_hands_over_to_one_that_others_reach() -> None:
    times = Times(TO_B, TO_C)
    times.ask(b=False, c=False)
    times.says(says("b", unreached="a", reaches="c"), says("c", unreached="ab"))
    assert times.ask(LONG_US, b=False, c=False) == "c"


def test_the_heir_is_the_one_that_most_members_reach() -> None:
    times = Times(says("b", unreached="a", reaches="c"), says("c", unreached="ab"))
    assert times.ask(b=True, c=True) == "c"


def test_what_was_said_before_this_process_began_proves_no_life() -> None:
    times = Times(says("b", unreached="a", reaches="c"), says("c", unreached="a", reaches="b"))
    times.ask(b=False, c=False)
    assert not times.ask(LONG_US, b=False, c=False)
    assert times.fronts.unreached_by == ()


def test_what_was_said_is_forgotten_where_its_member_does_not_answer() -> None:
    times = Times(TO_B, TO_C)
    times.ask(b=False, c=False)
    times.says(says("b", unreached="a", reaches="c"), says("c", unreached="a", reaches="b"))
    assert times.ask(LONG_US, b=False, c=False) == "b"
    assert times.ask(SAID_US - 1) == "b"
    assert not times.ask(1)


def test_a_process_hands_over_once_a_minute() -> None:
    times = Times(says("b", unreached="a"))
    assert times.ask(b=True) == "b"
    times.fronts.note_hand_over(times.now_us)
    assert not times.ask(AGAIN_US - 1, b=True)
    assert times.fronts.problem(leads=False) == "not reached by b, has handed over to b for that"
    assert times.ask(1, b=True) == "b"
    assert times.fronts.hand_overs == 1


def test_a_member_without_others_has_nobody_to_hand_over_to() -> None:
    times = Times()
    assert not times.ask()
    assert times.fronts.problem(leads=True) == ""


def test_a_primary_hands_over_to_no_member_that_never_leads() -> None:
    unfit = MemberFront("b", "b:1", Reach(("c",), ("a",)), unfit=True)
    times = Times(unfit)
    assert not times.ask(b=True), "it stays where no other one may lead"
    times.says(unfit, says("c", unreached="a"))
    assert times.ask(b=True, c=True) == "c"
    assert times.fronts.unfit == ("b",)


def test_each_change_of_what_is_known_of_damage_rings_once() -> None:
    fronts = Fronts("a")
    for damaged, rings in ((False, False), (True, True), (True, False), (False, True)):
        fronts.changed.hush()
        fronts.note_damage(damaged=damaged)
        assert (fronts.damaged, fronts.changed.is_rung) == (damaged, rings)
