"""TLS of the gateway: its own certificate towards browsers, and the pinned one of the server that it is a client of."""

from __future__ import annotations

import ssl

import anyio

from delayserver.config.settings import TlsSettings
from delayserver.logs.events import EventLogger
from delayserver.net.certificates import CHECK_S, CertificateError, Certificates, of_server, pinned

events = EventLogger()


class Secured:
    """The TLS contexts of the gateway, from `[tls]`. It changes contexts in place, since others keep them. `context` is that
    of the listening socket; None: HTTP without TLS."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises CertificateError."""
        self._files = settings.certificate, settings.key
        self._client_ca = settings.client_ca if settings.http_client_ca else ""
        self.context: ssl.SSLContext | None = None
        self._server: Certificates | None = None
        if settings.certificate:
            self._server = pinned(*self._files, self.renew)
            self.context = of_server(*self._files, self._client_ca).context if settings.http else None
        self.to_server: ssl.SSLContext | None = None if self._server is None else self._server.context

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
                self.to_server.load_verify_locations(self._files[0])
                self.to_server.load_cert_chain(*self._files)
                if self.context is not None:
                    self.context.load_cert_chain(*self._files)
                    if self._client_ca:
                        self.context.load_verify_locations(self._client_ca)
        except (CertificateError, OSError) as error:
            events.error("certificates_refused", "the changed certificates are not used: {reason}", reason=str(error))
