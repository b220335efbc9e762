"""Tables of the protocol that are made from names and from the words beside them: errors, outcomes, limits, settings."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from delayserver.config.settings import Settings
from delayserver.protocol.errors import ERRORS, DelayServerError
from delayserver.protocol.limits import Limits
from delayserver.protocol.outcomes import Outcome

MADE_BY_CLIENTS: Final = frozenset({"connection_lost", "timed_out", "unknown_error"})
"""Errors that no server sends."""
_SETTINGS: Final = (
    *(f"listen.connections{of}_max" for of in ("", "_of_client", "_new")),
    *(
        f"listen.{name}"
        for name in ("hello_timeout_ms", "unsent_bytes_max", "unsent_timeout_ms", "idle_frame_timeout_ms")
    ),
    *(f"listen.memory_bytes_{of}" for of in ("max", "of_client_max", "each")),
    *(f"storage.{name}" for name in ("gather_bytes_max", "window_ms")),
    *(f"broker.{name}" for name in ("waiting_pulls_max", "mailbox_pulls_max", "ack_timeout_ms")),
    *(f"broker.redelivery_{name}" for name in ("first_ms", "cap_ms", "bytes_max")),
)
"""Settings that a client meets, beside those of `Limits`."""


def error_table() -> str:
    """A row for each error that a server sends: whose fault it is, what it means, whether to try again."""
    rows = [
        (f"`{name}`", kind.fault, words_of(kind), again(kind))
        for name, kind in ERRORS.items()
        if name not in MADE_BY_CLIENTS
    ]
    return table_of(("name", "fault", "what it means, what to do", "again"), rows)


def again(kind: type[DelayServerError]) -> str:
    """Whether the same request can succeed later, in words that begin with yes if a client may just try."""
    return kind.again or ("yes" if kind.retriable else "no")


def words_of(kind: type) -> str:
    """The docstring of a class as markdown."""
    return plain(inspect.cleandoc(kind.__doc__ or ""))


def outcome_table() -> str:
    """A row for each outcome, with its code and its meaning."""
    meanings = words_beside(Outcome)
    rows = [(f"`{one.label}`", str(one.value), plain(meanings[one.name])) for one in Outcome]
    return table_of(("outcome", "code", "meaning"), rows)


def limit_table() -> str:
    """A row for each limit of `hello`: its default, the setting of its name, its meaning."""
    meanings = words_beside(Limits)
    rows = [
        (f"`{name}`", f"{value:,}", f"`{_setting_named(name)}`", plain(meanings[name]))
        for name, value in Limits().to_map().items()
    ]
    return table_of(("name", "default", "setting", "meaning"), rows)


def setting_table() -> str:
    """A row for each other setting that a client meets: its default, its meaning."""
    rows = []
    for path in _SETTINGS:
        group, name = path.split(".")
        settings = getattr(Settings(), group)
        rows.append((f"`{path}`", f"{getattr(settings, name):,}", plain(words_beside(type(settings))[name])))
    return table_of(("setting", "default", "meaning"), rows)


def _setting_named(name: str) -> str:
    [group] = [group for group in ("listen", "message", "broker") if hasattr(getattr(Settings(), group), name)]
    return f"{group}.{name}"


def words_beside(kind: type) -> dict[str, str]:
    """The text below each field of a class that has one. No object keeps it, so it is read in the source."""
    found = {}
    for field, text in pairwise(getattr(ast.parse(inspect.getsource(kind)).body[0], "body", ())):
        if isinstance(field, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr):
            target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            found[ast.unparse(target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def plain(text: str) -> str:
    """Text of a help or a docstring as markdown: doubled backticks are single ones, and brackets are no links."""
    text = text.replace("\b\n", "").replace("``", "`")
    return re.sub(r"(`[^`]*`)|([\[<*])", lambda found: found[1] or f"\\{found[2]}", text)


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of markdown. A cell is one line; without rows there is no table."""
    if not rows:
        return ""
    lines = [f"| {' | '.join([_cell(text) for text in row])} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
