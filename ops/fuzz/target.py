"""What is fuzzed: a parser, inputs to start from, and how to mend the checksums of a changed input. No engine here.

A target says of any bytes whether they are accepted. It raises `Garbage` where something was accepted that is not what
was written, and lets every exception through that the parser's callers do not expect: both are findings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Garbage(AssertionError):
    """Accepted bytes that neither re-encode to the same nor carry a valid checksum, or that two readers read differently."""


def _as_it_is(data: bytes) -> bytes:
    return data


@dataclass(frozen=True, slots=True)
class Target:
    """`seeds` are valid inputs; `check` parses and says whether the input was accepted; `mend` makes the checksums of
    a changed input right again, so that the fuzzer gets behind them."""

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], bool]
    mend: Callable[[bytes], bytes] = _as_it_is


def ensure(condition: bool, text: str) -> None:
    """Raise Garbage unless the condition holds."""
    if not condition:
        raise Garbage(text)
