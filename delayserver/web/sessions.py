"""Sessions of the console: a cookie stands for the token, so that no script of a page can read the token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "delayserver_session"
SESSIONS_MAX: Final = 1_000
"""A session is some 300 bytes. The one that was used least recently ends beyond it."""
SESSIONS_OF_TOKEN_MAX: Final = 50
"""Beyond it the one of this token that was used least recently ends, so that no token signs out the others."""
IDLE_S: Final = 3_600.0
"""A session without a request for this long has ended. The page itself asks every second while it is open."""
AGE_S_MAX: Final = 12 * 3_600.0
"""A working day. Then the person signs in again."""
ID_BYTES: Final = 32


@dataclass(slots=True)
class _Session:
    token: str
    began_s: float
    used_s: float

    def use(self, now_s: float) -> None:
        """Note that it was used."""
        self.used_s = now_s


class Sessions:
    """The tokens of those who are signed in, by the id in their cookie."""

    def __init__(self, monotonic_s: Callable[[], float], random_bytes: Callable[[int], bytes]) -> None:
        """`random_bytes` are those of the operating system."""
        self._now_s = monotonic_s
        self._random = random_bytes
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, token: str) -> str:
        """A new session; its id."""
        now_s = self._now_s()
        session_id = self._random(ID_BYTES).hex()
        of_token = [each for each, session in self._sessions.items() if session.token == token]
        if len(of_token) >= SESSIONS_OF_TOKEN_MAX:
            self.end(of_token[0])
        self._sessions[session_id] = _Session(token, now_s, now_s)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def token_of(self, session_id: str) -> str | None:
        """The token of a session, or None if it has ended or never was."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now_s = self._now_s()
        if now_s - session.used_s > IDLE_S or now_s - session.began_s > AGE_S_MAX:
            del self._sessions[session_id]
            return None
        session.use(now_s)
        self._sessions.move_to_end(session_id)
        return session.token

    def has(self, session_id: str) -> bool:
        """Whether the session is there. This is no use of it."""
        return session_id in self._sessions

    def end(self, session_id: str) -> None:
        """End a session; idempotent."""
        self._sessions.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions)


def session_id_of(cookies: str) -> str:
    """The id of the session in a `Cookie` header; empty if it has none."""
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""
