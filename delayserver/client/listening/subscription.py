"""A subscription of a listener: subjects and patterns, a group, a handler, and its options. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Generic, Self, TypedDict, TypeVar

from delayserver.client.listening.handling import Hooks
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.logs.told import text_of
from delayserver.protocol.errors import InvalidArgument

H = TypeVar("H", bound=Callable[..., Any])

DEAD_PART: Final = ".dead."
"""Part of the names of dead-letter subjects. A pattern finds them only if it says so itself."""

SUBJECTS_MAX: Final = 16_384
"""Subjects that the patterns of one subscription may find. Each keeps a pull waiting at every node of its route."""


class Choices(TypedDict, total=False):
    """`Choice`, as keywords."""

    start: str | int | datetime | None
    tags: str | None
    where: str | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a new group starts, and its filter; see `AsyncClient.pull_columns`."""

    start: str | int | datetime | None = None
    tags: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Subscription(Generic[H]):
    """Subjects (or patterns of them) of which ``handler`` gets the messages, for ``group``."""

    subjects: tuple[str, ...]
    group: str
    handler: H
    settings: ListenerSettings
    choice: Choice

    @property
    def name(self) -> str:
        """Its name in the log."""
        called = getattr(self.handler, "__qualname__", type(self.handler).__qualname__)
        return f"{text_of(called)} ({', '.join(self.subjects)} for {self.group})"

    @property
    def plain(self) -> tuple[str, ...]:
        """The subjects that are no patterns."""
        return tuple(subject for subject in self.subjects if not is_pattern(subject))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns."""
        return tuple(subject for subject in self.subjects if is_pattern(subject))


def is_pattern(subject: str) -> bool:
    """Whether a name is a shell-style pattern."""
    return any(character in subject for character in "*?[")


def finds(pattern: str, subject: str) -> bool:
    """Whether a pattern finds a subject. It finds dead letters only if it names them."""
    return fnmatchcase(subject, pattern) and (DEAD_PART not in subject or DEAD_PART in pattern)


@dataclass(slots=True)
class Subscriptions(Generic[H]):
    """The subscriptions of a listener, as its decorators add them."""

    group: str | None
    settings: ListenerSettings
    hooks: Hooks
    items: list[Subscription[H]] = field(default_factory=list)

    @classmethod
    def of(
        cls, group: str | None, concurrency: int | None, settings: ListenerSettings | None, hooks: Hooks | None
    ) -> Self:
        """An empty list with these defaults."""
        settings = settings or ListenerSettings()
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency)
        return cls(group, settings, hooks or Hooks())

    def add(
        self, subjects: tuple[str, ...], group: str | None, concurrency: int | None, handler: H, choice: Choice
    ) -> None:
        """Add one. Raises `InvalidArgument`."""
        group = group if group is not None else self.group
        if group is None:
            raise InvalidArgument("name the consumer group, at the listener or at its handler")
        if not subjects or not all(isinstance(subject, str) and subject for subject in subjects):
            raise InvalidArgument("name at least one subject, or a pattern such as 'orders*'; each is a text")
        settings = self.settings if concurrency is None else replace(self.settings, concurrency=concurrency)
        self.items.append(Subscription(tuple(dict.fromkeys(subjects)), group, handler, settings, choice))
