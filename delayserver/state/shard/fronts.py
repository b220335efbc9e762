"""Which fronts of a shard answer, and whether a primary that clients cannot reach is to hand over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from delayserver.runtime.marks import Bell

UNREACHED_US = 10_000_000
"""A front that has not answered for so long is unreached: shorter faults are over before a hand-over would help."""
SAID_US = 60_000_000
"""A member whose front does not answer counts as living for so long after it said something else than before."""
AGAIN_US = 60_000_000
"""A process hands over once in this time. So fronts that come and go do not make the leadership jump."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The members whose fronts a member reaches, and those whose fronts it has not reached for 10 s. A member that it has
    asked for a shorter time is in neither."""

    reaches: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberFront:
    """A member, where clients reach it, and what it says of the others. It is `unfit` if it can never lead as it is: it has
    diverged, or knows of damage in its directory."""

    member: str
    address: str
    reach: Reach = field(default_factory=Reach)
    unfit: bool = False


class Fronts:
    """The fronts of a shard as this process sees them and as others say, for all its lives. Writers: `MapReading`, of what
    others say; `DamageTelling`, of damage; `FrontProbe`, of all else. Times are microseconds of a clock that never steps.

    Invariant: no member is both reached and unreached."""

    def __init__(self, member: str) -> None:
        """`member` is the name of this one."""
        self._me = member
        self.others: tuple[MemberFront, ...] = ()
        self.own = Reach()
        # Whether damage of the own directory is known.
        self.damaged = False
        # Rung when one of the two has changed.
        self.changed = Bell()
        # The living members that do not reach this front.
        self.unreached_by: tuple[str, ...] = ()
        # The member to which a primary hands over now; empty: it stays.
        self.heir = ""
        # How often this process has handed over for its front.
        self.hand_overs = 0
        # The members that answered since they last failed to, and since when the others do not.
        self._answering: set[str] = set()
        self._silent_us: dict[str, int] = {}
        self._said: dict[str, tuple[MemberFront, int]] | None = None
        self._handed_over_us: int | None = None
        self._handed_over_to = ""

    # -- what comes in

    def take(self, fronts: Sequence[MemberFront]) -> None:
        """What the members of the shard say now, in the order in which they are preferred."""
        self.others = tuple(each for each in fronts if each.member != self._me)

    def note(self, member: str, now_us: int, *, answered: bool) -> None:
        """The front of a member was asked."""
        if answered:
            self._silent_us.pop(member, None)
            self._answering.add(member)
        elif now_us - self._silent_us.setdefault(member, now_us) >= UNREACHED_US:
            self._answering.discard(member)

    def note_damage(self, *, damaged: bool) -> None:
        """Whether the present life knows of damage in its directory."""
        if damaged != self.damaged:
            self.damaged = damaged
            self.changed.ring()

    def note_hand_over(self, now_us: int) -> None:
        """This process hands over to `heir`."""
        self._handed_over_us, self._handed_over_to = now_us, self.heir
        self.hand_overs += 1

    def look(self, now_us: int) -> None:
        """Judge all that is known."""
        names = [each.member for each in self.others]
        own = Reach(
            tuple(name for name in names if name in self._answering),
            tuple(
                name
                for name in names
                if name not in self._answering and now_us - self._silent_us.get(name, now_us) >= UNREACHED_US
            ),
        )
        if own != self.own:
            self.own = own
            self.changed.ring()
        living = self._living(now_us)
        self.unreached_by = tuple(each.member for each in living if self._me in each.reach.unreached)
        self.heir = self._heir(living, now_us)

    def _living(self, now_us: int) -> list[MemberFront]:
        """The others that live: their front answers, or they have said something new of late."""
        # What a process finds when it begins may be as old as the cluster.
        said = {} if self._said is None else self._said
        old_us = now_us - SAID_US if self._said is None else now_us
        self._said = {
            each.member: found if (found := said.get(each.member)) and found[0] == each else (each, old_us)
            for each in self.others
        }
        return [
            each
            for each in self.others
            if each.member in self.own.reaches or now_us - self._said[each.member][1] < SAID_US
        ]

    def _heir(self, living: list[MemberFront], now_us: int) -> str:
        if not living or len(self.unreached_by) < len(living):
            return ""
        if self._handed_over_us is not None and now_us - self._handed_over_us < AGAIN_US:
            return ""
        # Where no front is reached by anybody, the fault is not that of this one.
        reached = {
            each.member: sum([each.member in other.reach.reaches for other in living], int(self._reaches(each.member)))
            for each in living
        }
        fit = [each for each in living if not each.unfit]
        best = max(fit, key=lambda each: reached[each.member], default=None)
        return "" if best is None or not reached[best.member] else best.member

    def _reaches(self, member: str) -> bool:
        return member in self.own.reaches

    # -- what is told

    @property
    def unfit(self) -> tuple[str, ...]:
        """The other members that can never lead as they are, by what they said last."""
        return tuple(each.member for each in self.others if each.unfit)

    def problem(self, *, leads: bool) -> str:
        """What is wrong with the fronts, for people; empty where nothing is. `leads`: this member is the primary."""
        found = []
        if self.unreached_by:
            found.append(f"not reached by {', '.join(self.unreached_by)}")
            if leads:
                found.append(f"hands over to {self.heir}" if self.heir else "stays the primary")
            elif self._handed_over_to:
                found.append(f"has handed over to {self._handed_over_to} for that")
        if self.own.unreached:
            found.append(f"does not reach {', '.join(self.own.unreached)}")
        return ", ".join(found)

    def check_invariants(self) -> None:
        """No member is both reached and unreached, and this one is neither."""
        assert not {*self.own.reaches} & {*self.own.unreached}
        assert self._me not in (*self.own.reaches, *self.own.unreached, self.heir)
