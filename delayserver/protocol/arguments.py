"""Single arguments of a request, checked by one rule. `columns.py` reads columns.

A missing argument and nil are the same: an optional argument gets its default. A missing argument that is not optional
is refused as `invalid_argument`. So is a value of another type, length or range. `true` and `false` are not integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delayserver.protocol.errors import InvalidArgument


def shown(value: object) -> str:
    """A value of a request in the words of the protocol, for an error: at most 80 characters."""
    if value is None:
        return "nil"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes or type(value) is memoryview:
        return f"{len(value)} bytes"
    if type(value) is list:
        return f"a list of {len(value)}"
    if type(value) is dict:
        return f"a map of {len(value)}"
    text = f'"{value}"' if type(value) is str else repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…"


def invalid(name: str, expected: str, value: object) -> InvalidArgument:
    """The error for a wrong argument. `expected` describes a right one, such as "an integer from 0 to 9"."""
    if value is None:
        return InvalidArgument(f"{name} is missing; it must be {expected}")
    return InvalidArgument(f"{name} must be {expected}, not {shown(value)}")


def integer(arguments: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None) -> int:
    """An integer argument from `low` to `high`. Without a `default` it is required. Raises InvalidArgument."""
    value = arguments.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise invalid(name, f"an integer from {low} to {high}", value)
    return value


def boolean(arguments: Mapping[str, Any], name: str) -> bool:
    """An optional boolean argument, false by default. Raises InvalidArgument."""
    value = arguments.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise invalid(name, "true or false", value)
    return value


def one_form(arguments: Mapping[str, Any], forms: Sequence[str]) -> str:
    """The one argument of `forms` that is given; it decides the form of the request. Raises InvalidArgument for none or
    several.
    """
    form = ""
    for name in forms:
        if arguments.get(name) is not None:
            if form:
                raise InvalidArgument(f"give exactly one of {', '.join(forms)}: {form} and {name} are given")
            form = name
    if not form:
        raise InvalidArgument(f"give exactly one of {', '.join(forms)}: none of them is given")
    return form


def server_number(server_id: object) -> int:
    """The number of a server id, given as text. Raises InvalidArgument."""
    try:
        if type(server_id) is str and len(server_id) == 12:
            return int(server_id, 16)
    except ValueError:
        pass
    raise invalid("server_id", "twelve hex digits", server_id)
