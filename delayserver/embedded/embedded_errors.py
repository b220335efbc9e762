"""Errors of an embedded server as a part of the program. Answers of a server have the errors of `Client`."""

from __future__ import annotations


class EmbeddedError(Exception):
    """The program cannot use its embedded server. The kinds below say why."""


class EmbeddedClosed(EmbeddedError):
    """The program called a server whose block is over. Open it again."""


class EmbeddedFailed(EmbeddedError):
    """The server crashed, or its disk failed for good; `__cause__` is the error. Opening it again recovers."""


class EmbeddedForked(EmbeddedError):
    """The program called, in a forked process, the server of the process that it was forked from. Only that one has it."""


class EmbeddedNotReady(EmbeddedError):
    """The server did not begin to serve in time, as with a full disk. It was stopped; the text has its own reason."""
