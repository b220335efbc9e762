"""The token for which a task acts. What it adds to shared tables counts as the token's.

The front says whose request it is before it calls a handler; tasks that the handler starts inherit that. Work of the server
itself, and of clients without a token, is nobody's.
"""

from __future__ import annotations

from contextvars import ContextVar

_acting: ContextVar[str] = ContextVar("_acting", default="")


def act_for(token_id: str) -> None:
    """What this task does from now on, it does for this token; empty: for the server, or for a client without a token."""
    _acting.set(token_id)


def acting() -> str:
    """The id of the token for which this task acts; empty: for none."""
    return _acting.get()
