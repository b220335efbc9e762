"""Compiles filters in a worker thread, and keeps them in a bounded cache."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from delayserver.broker.filters.fault import FilterError
from delayserver.broker.filters.filter import Filter, FilterText, parse_filter
from delayserver.names.name_desk import TAG_BYTES_MAX, NameDesk
from delayserver.protocol.errors import FilterInvalid
from delayserver.runtime.runtime import Runtime
from store.tables.names import TAG

# Compiled filters that stay for the next pull of any group. One takes at most about 50 kB, usually 1 kB.
_COMPILED_MAX: Final = 1024
# The texts of all of them. Each has a bound of 20,000 characters, and any client may send a thousand of these.
CHARACTERS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Compiled:
    """A filter, and its text in a form that is the same for the same filter. None: every message."""

    text: FilterText
    filter: Filter | None


EVERYTHING: Final = Compiled(FilterText(), None)


class FilterCompiler:
    """Compiles filters."""

    def __init__(self, names: NameDesk, runtime: Runtime) -> None:
        self._names = names
        self._workers = runtime.workers
        self._compiled: OrderedDict[FilterText, Compiled] = OrderedDict()
        self.characters = 0
        # One at a time: the event loop waits for the GIL behind every thread that compiles.
        self._compiles = trio.Lock()

    async def compile(self, text: FilterText) -> Compiled:
        """The compiled filter. A new tag gets its code now.

        Raises FilterInvalid with the place of the fault, TagsFull, DiskFull, StorageFailed."""
        if not text:
            return EVERYTHING
        found = self._compiled.get(text)
        if found is None:
            async with self._compiles:
                found = self._compiled.get(text) or await self._compile(text)
            self._remember(text, found)
        self._remember(found.text, found)
        return found

    def _remember(self, text: FilterText, compiled: Compiled) -> None:
        if text not in self._compiled:
            self.characters += text.characters
        self._compiled[text] = compiled
        self._compiled.move_to_end(text)
        while len(self._compiled) > _COMPILED_MAX or self.characters > CHARACTERS_MAX:
            oldest, _ = self._compiled.popitem(last=False)
            self.characters -= oldest.characters

    async def _compile(self, text: FilterText) -> Compiled:
        try:
            parsed = await self._workers.run(partial(parse_filter, text, TAG_BYTES_MAX))
        except FilterError as error:
            place = error.place
            raise FilterInvalid(
                str(error), details={"offset": place.offset, "line": place.line, "column": place.column}
            ) from None
        codes = self._names.intern(TAG, list(parsed.tags)).tolist() if parsed.tags else []
        if not codes and parsed.where is None:
            return EVERYTHING
        return Compiled(parsed.text, Filter(codes, parsed.where))

    def check_invariants(self) -> None:
        """The sum of characters is that of the texts. For tests."""
        assert self.characters == sum([text.characters for text in self._compiled])
