"""The place between two pages of a list of pending messages. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.errors import InvalidArgument
from store.records.batches import I64

SEQUENCE_MAX: Final = (1 << 48) - 1
_NUMBERS: Final = 10
_TEXT: Final = re.compile(rf"([0-9a-f]{{8}})((?:\.\d{{1,16}}){{{_NUMBERS}}})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listed:
    """The messages of a unit that were listed: those up to the sequence `behind`, and of the part up to the sequence `upto`
    those up to a key. No part has begun where both sequences are the same."""

    behind: int = 0
    upto: int = 0
    due_ms: int = 0
    sequence: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether some messages of a part were listed."""
        return self.upto > self.behind

    def mask(self, due_ms: I64, sequence: I64, latest: bool) -> NDArray[np.bool_]:
        """True for listed messages, bool[n]."""
        listed: NDArray[np.bool_] = sequence <= self.behind
        if self.has_begun:
            same = due_ms == self.due_ms
            if latest:
                passed = (due_ms > self.due_ms) | (same & (sequence >= self.sequence))
            else:
                passed = (due_ms < self.due_ms) | (same & (sequence <= self.sequence))
            listed |= (sequence <= self.upto) & passed
        return listed

    def numbers(self) -> tuple[int, ...]:
        """The fields."""
        return self.behind, self.upto, self.due_ms, self.sequence


NOTHING: Final = Listed()


@dataclass(frozen=True, slots=True)
class ListPlace:
    """The unit where the next page begins: the file of a day (`start_ms` is -1) or a window of it. A day's own file comes
    before its windows, in both orders.

    `listed`: of this unit. `of_day`: of the day's own file, whose rows may have moved to the windows since."""

    day_ms: int
    start_ms: int = -1
    listed: Listed = NOTHING
    of_day: Listed = NOTHING

    def with_listed(self, listed: Listed) -> ListPlace:
        """The place in the same unit, where more was listed."""
        return replace(self, listed=listed)

    def text(self, selection: int) -> str:
        """The place as a text. `selection` is a sum over the request, so that no other one goes on here."""
        numbers = self.day_ms, self.start_ms + 1, *self.listed.numbers(), *self.of_day.numbers()
        return f"{selection:08x}{''.join([f'.{number}' for number in numbers])}"

    @classmethod
    def parse(cls, text: str, selection: int) -> ListPlace:
        """Reads what `text` wrote. Raises InvalidArgument."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidArgument("after must be the `next` of a reply")
        if int(match[1], 16) != selection:
            raise InvalidArgument(
                "after is of another list: its subject, times, tag, where and order must stay the same"
            )
        day_ms, start, *numbers = map(int, match[2].split(".")[1:])
        return cls(day_ms, start - 1, Listed(*numbers[:4]), Listed(*numbers[4:]))
