"""Single arguments of a request, checked. Columns of them are in columns.py."""

from __future__ import annotations

from typing import Any

from delayserver.protocol.errors import InvalidArgument


def bounded(arguments: dict[str, Any], name: str, low: int, high: int, default: int | None) -> int:
    """An integer argument. Raises InvalidArgument."""
    value = arguments.get(name, default)
    if type(value) is not int or value < low:
        raise InvalidArgument(f"{name} must be an integer from {low} to {high}, not {value!r:.64}")
    if value > high:
        raise InvalidArgument(f"{name} is {value}; at most {high}")
    return value


def server_number(server_id: object) -> int:
    """The server id of a text. Raises InvalidArgument."""
    try:
        if type(server_id) is str and len(server_id) == 12:
            return int(server_id, 16)
    except ValueError:
        pass
    raise InvalidArgument("server_id is twelve hex digits")
