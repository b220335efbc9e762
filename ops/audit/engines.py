"""Where the tasks of a report run: in processes of Spark, or in this process for small directories.

A report says what a task does and how results come together. It does not know where that happens, so both places give the
same answers. The tasks run on numpy and Arrow, and blobs of bytes travel between them. So Spark compiles no query: the
first one costs half a minute before the first row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext

Task = TypeVar("Task")
Result = TypeVar("Result")

Blobs = Mapping[int, bytes]
"""What a task hands on, by place: all blobs of one place come together in one `join`."""


class Engine(Protocol):
    """Runs tasks. All functions and tasks can be pickled, and the functions are pure."""

    def folded(
        self, tasks: Sequence[Task], work: Callable[[Task], Result], fold: Callable[[Result, Result], Result]
    ) -> Result | None:
        """The results of all tasks, made one by `fold`, which is associative and commutative. None without tasks."""

    def exchanged(
        self, tasks: Sequence[Task], work: Callable[[Task], Blobs], join: Callable[[list[bytes]], Result], places: int
    ) -> list[Result]:
        """The results of `join` for each place below `places` that got a blob, in any order."""


class InProcess:
    """Runs one task after the other here."""

    def folded(
        self, tasks: Sequence[Task], work: Callable[[Task], Result], fold: Callable[[Result, Result], Result]
    ) -> Result | None:
        """See `Engine`."""
        results = [work(task) for task in tasks]
        return reduce(fold, results) if results else None

    def exchanged(
        self, tasks: Sequence[Task], work: Callable[[Task], Blobs], join: Callable[[list[bytes]], Result], places: int
    ) -> list[Result]:
        """See `Engine`."""
        found: dict[int, list[bytes]] = {}
        for task in tasks:
            for place, blob in work(task).items():
                found.setdefault(place, []).append(blob)
        return [join(found.pop(place)) for place in sorted(found)]


class OnSpark:
    """Runs each task as one of Spark's."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def folded(
        self, tasks: Sequence[Task], work: Callable[[Task], Result], fold: Callable[[Result, Result], Result]
    ) -> Result | None:
        """See `Engine`. Spark folds within its processes, and then in a tree."""
        if not tasks:
            return None
        found: Result = self._spread(tasks).map(work).treeReduce(fold)
        return found

    def exchanged(
        self, tasks: Sequence[Task], work: Callable[[Task], Blobs], join: Callable[[list[bytes]], Result], places: int
    ) -> list[Result]:
        """See `Engine`."""
        if not tasks:
            return []
        blobs = self._spread(tasks).flatMap(partial(_items, work)).groupByKey(places, int)
        found: list[Result] = blobs.map(partial(_joined, join)).collect()
        return found

    def _spread(self, tasks: Sequence[Task]) -> Any:
        return self._context.parallelize(tasks, len(tasks))


def _items(work: Callable[[Task], Blobs], task: Task) -> Iterator[tuple[int, bytes]]:
    yield from work(task).items()


def _joined(join: Callable[[list[bytes]], Result], place: tuple[int, Any]) -> Result:
    return join(list(place[1]))
