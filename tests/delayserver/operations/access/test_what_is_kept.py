"""What clients choose is kept within a bound of bytes: subjects of a token, and filters."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

from delayserver.broker.filters.filter import FilterText
from delayserver.operations.access.access import SEND, SUBJECTS_KNOWN_MAX, Access
from delayserver.operations.groups.filtering import CHARACTERS_MAX, FilterCompiler
from tests.fakes.host import Boot

MIB = 1 << 20


def kept_bytes(act: Callable[[], None]) -> int:
    """The memory that is still there when `act` has returned."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_token_keeps_no_text_that_is_too_long_for_a_subject() -> None:
    access = Access("t", frozenset({SEND}), ("mine*",))

    def ask() -> None:
        for number in range(20):
            assert not access.may(f"{number}" + "x" * MIB)
            assert not access.may(f"mine{number}" + "x" * MIB), "no message can have such a subject"

    assert kept_bytes(ask) < MIB


def test_a_token_keeps_some_megabytes_of_refused_subjects() -> None:
    access = Access("t", frozenset({SEND}), ("mine*",))

    def ask() -> None:
        for number in range(3 * SUBJECTS_KNOWN_MAX):
            assert not access.may(f"{number:0255d}")

    assert kept_bytes(ask) < 4 * MIB


async def test_filters_are_kept_up_to_a_bound_of_their_characters(boot: Boot) -> None:
    host = boot()
    server = await host.start()
    compiler = FilterCompiler(server.parts.receive.names, server.runtime)
    for number in range(300):
        where = f"n = {number}".ljust(4096)
        assert (await compiler.compile(FilterText(None, where))).filter is not None
        compiler.check_invariants()
    assert 0 < compiler.characters <= CHARACTERS_MAX < 300 * 4096
