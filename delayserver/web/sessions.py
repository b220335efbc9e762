"""Sessions of the console: a cookie stands for the token, so that no script of a page can read the token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

COOKIE: Final = "delayserver_session"
LASTS: Final = "delayserver.session_lasts"
"""The entry of an ASGI scope by which a stream asks whether its session has not ended. Without a session there is none."""
SESSIONS_MAX: Final = 1_000
"""A session is some 300 bytes. The one that was used least recently ends beyond it."""
SESSIONS_OF_TOKEN_MAX: Final = 50
"""Beyond it the one of this token that was used least recently ends, so that no token signs out the others."""
IDLE_S: Final = 3_600.0
"""A session without a request or an open stream for this long has ended. A page that is looked at has a stream."""
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

    def lasts(self, session_id: str) -> bool:
        """Whether the session has not ended. A stream that asks this uses it."""
        return self.token_of(session_id) is not None

    def end(self, session_id: str) -> None:
        """End a session; idempotent."""
        self._sessions.pop(session_id, None)

    def __len__(self) -> int:
        return len(self._sessions)


def cookie_name(host: str) -> str:
    """The name of the cookie for a `Host` header. Browsers send cookies of a host to all its ports, so that servers on two
    ports of one machine would end each other's sessions. With the port in its name each has its own."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE


def session_id_of(cookies: str, host: str) -> str:
    """The id of the session in a `Cookie` header of a request with this `Host`; empty if it has none."""
    wanted = cookie_name(host)
    for part in cookies.split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""
