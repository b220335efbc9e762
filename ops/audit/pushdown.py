"""Filters that Spark pushes down, turned into a selection. What a selection cannot say stays with Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import datasource

from ops.audit.selection import DUE_MAX, Selection


class pushed_without_being_asked:  # noqa: N801 - used like a function
    """A `pushFilters` that works both ways.

    Spark refuses a reader that implements `pushFilters` while `spark.sql.python.filterPushdown.enabled` is off, which is
    the default, and there is no session to ask where readers are made. It tells "implemented" by the function behind the
    method; this one shows the base class's function and calls ours. So with the setting on filters are pushed, and with
    it off nobody calls it.
    """

    def __init__(self, push: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._push = push
        self.__func__ = datasource.DataSourceReader.pushFilters

    def __call__(self, filters: Sequence[Any]) -> list[Any]:
        return self._push(filters)


def push_filters(selection: Selection, filters: Sequence[Any]) -> tuple[Selection, list[Any]]:
    """The narrower selection, and the filters it does not cover."""
    rest = []
    for one in filters:
        narrowed = _narrowed(selection, one)
        if narrowed is None:
            rest.append(one)
        else:
            selection = narrowed
    return selection, rest


def _narrowed(selection: Selection, one: Any) -> Selection | None:
    """The selection with this filter in it, or None where it cannot say that."""
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
