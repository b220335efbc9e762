"""TLS of the gateway: its own certificate towards browsers, and the pinned one of the server that it is a client of."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Self

import anyio

from delayserver.config.settings import TlsSettings
from delayserver.logs.events import EventLogger
from delayserver.net.certificates import CHECK_S, CertificateError, Certificates, of_server, pin, pinned

events = EventLogger()


class _LookingFirst(ssl.SSLContext):
    """A context of a client. It calls `look` before each connection: the server may just have renewed its certificate."""

    def __new__(cls, look: Callable[[], None]) -> Self:
        """A context that pins nothing yet."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As in `ssl.SSLContext`."""
        self._look()
        return super().wrap_bio(*arguments, **named)


class Secured:
    """The TLS contexts of the gateway, from `[tls]`. It changes contexts in place, since the libraries keep theirs."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises CertificateError."""
        self._files = settings.certificate, settings.key
        self._http: Certificates | None = None
        self._server: Certificates | None = None
        self.to_server: ssl.SSLContext | None = None
        if settings.certificate:
            self._server = pinned(*self._files)
            self._http = of_server(*self._files, "") if settings.http else None
            self.to_server = _LookingFirst(self.renew)
            pin(self.to_server, *self._files)
        self._in_use: ssl.SSLContext | None = None

    def of_uvicorn(self) -> dict[str, Any]:
        """Arguments of `uvicorn.Config`."""
        return {} if self._http is None else {"ssl_certfile": self._files[0], "ssl_keyfile": self._files[1]}

    def serve_with(self, in_use: ssl.SSLContext | None) -> None:
        """Renew this context too: the one that uvicorn has made."""
        self._in_use = in_use

    async def run(self) -> None:
        """Looks at the files now and then, until cancelled. Connections to the server look by themselves."""
        while self._server is not None:
            await anyio.sleep(CHECK_S)
            self.renew()

    def renew(self) -> None:
        """Takes changed files for new connections. The log names a wrong file, and those from before stay in use."""
        assert self._server is not None and self.to_server is not None
        try:
            if self._server.renew():
                pin(self.to_server, *self._files)
                if self._in_use is not None:
                    self._in_use.load_cert_chain(*self._files)
        except (CertificateError, OSError) as error:
            events.error("certificates_refused", "the changed certificates are not used: {reason}", reason=str(error))
