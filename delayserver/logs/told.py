"""Texts of objects that are not ours. Their methods may raise anything, or return what is no text.

The failure of a handler must not become a failure of what reports it.
"""

from __future__ import annotations


def text_of(value: object) -> str:
    """The text of an object, as a plain `str`. If it has none, its type stands for it."""
    try:
        return str.encode(str(value), "utf-8", "replace").decode()
    except BaseException:  # noqa: BLE001 - whatever it raises, there is no text
        return f"({type_of(value)} without a text)"


def type_of(value: object) -> str:
    """The name of an object's type, as a plain `str`."""
    try:
        return str.encode(type(value).__qualname__, "utf-8", "replace").decode()
    except BaseException:  # noqa: BLE001 - a metaclass may have a name of its own
        return "object"
