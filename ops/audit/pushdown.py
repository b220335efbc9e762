"""Turns filters that Spark pushes down into a selection. Filters that a selection cannot express stay with Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import datasource

from ops.audit.selection import DUE_MAX, Selection


class pushed_without_being_asked:  # noqa: N801 - used like a function
    """A `pushFilters` that works with filter pushdown on and off.

    Spark refuses a reader that implements `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, the
    default. Code that makes readers has no session to read the setting. Spark detects an implementation by the function
    behind the method. This object shows the function of the base class and calls ours. So Spark pushes filters with the
    setting on, and does not call it with the setting off.
    """

    def __init__(self, push: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._push = push
        self.__func__ = datasource.DataSourceReader.pushFilters

    def __call__(self, filters: Sequence[Any]) -> list[Any]:
        return self._push(filters)


def push_filters(selection: Selection, filters: Sequence[Any]) -> tuple[Selection, list[Any]]:
    """The narrowed selection, and the filters that it does not cover."""
    rest = []
    for one in filters:
        narrowed = _narrowed(selection, one)
        if narrowed is None:
            rest.append(one)
        else:
            selection = narrowed
    return selection, rest


def _narrowed(selection: Selection, one: Any) -> Selection | None:
    """The selection narrowed by this filter, or None if a selection cannot express it."""
    column, value = getattr(one, "attribute", ()), getattr(one, "value", None)
    if column == ("subject",):
        if isinstance(one, datasource.EqualTo) and isinstance(value, str):
            return selection.only([value])
        if isinstance(one, datasource.In) and all(isinstance(text, str) for text in one.value):
            return selection.only(list(one.value))
    if column == ("due_ms",) and isinstance(value, int) and value < DUE_MAX:
        low, high = selection.from_ms, selection.to_ms
        if isinstance(one, datasource.EqualTo):
            return selection.between(value, value + 1)
        if isinstance(one, datasource.GreaterThanOrEqual):
            return selection.between(value, high)
        if isinstance(one, datasource.GreaterThan):
            return selection.between(value + 1, high)
        if isinstance(one, datasource.LessThan):
            return selection.between(low, value)
        if isinstance(one, datasource.LessThanOrEqual):
            return selection.between(low, value + 1)
    return None
