"""What this process says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver import __version__


@dataclass(frozen=True, slots=True)
class Identity:
    """The id of the data directory (12 hex digits), whether it is a server or a lone broker, and the version of the
    program."""

    server_id: str
    role: str
    version: str = __version__
