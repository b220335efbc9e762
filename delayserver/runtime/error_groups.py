"""The errors inside exception groups, which trio makes of all that leaves a nursery."""

from __future__ import annotations


def first_of(error: BaseException) -> BaseException:
    """The failure inside nested groups; of a group with several, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
