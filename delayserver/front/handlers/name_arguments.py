"""Reads the names of a subject and a consumer group from a request."""

from __future__ import annotations

from typing import Any

from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import SubjectInvalid


def read_name(arguments: dict[str, Any], what: str) -> str:
    """The name in the argument `what`. Raises SubjectInvalid."""
    name = arguments.get(what)
    if type(name) is not str:
        raise SubjectInvalid(f"a {what} is a text of at least one character, not {shown(name)}")
    return name


def read_names(arguments: dict[str, Any]) -> tuple[str, str]:
    """The subject and the group of a request. Raises SubjectInvalid."""
    return read_name(arguments, "subject"), read_name(arguments, "group")
