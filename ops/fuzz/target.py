"""A target of the fuzzer: a parser, seeds, and a function that corrects the checksums of a changed input. No engine.

A target returns whether any bytes are accepted. It raises `Garbage` if the parser accepted data that was never written,
and lets exceptions pass that the parser's callers do not expect. Both are findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Garbage(AssertionError):
    """Accepted bytes that encode differently, have a wrong checksum, or that two readers read differently."""


def _as_it_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are valid inputs. `check` parses an input and returns whether it was accepted. `mend` corrects the
    checksums of a changed input, so that the fuzzer gets past them."""

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], bool]
    mend: Callable[[bytes], bytes] = _as_it_is


def ensure(condition: bool, text: str) -> None:
    """Raises Garbage unless the condition holds."""
    if not condition:
        raise Garbage(text)
