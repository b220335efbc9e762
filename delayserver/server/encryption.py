"""The certificates of a server, for its own port and for its connections to nodes, and their renewal while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from delayserver.config.settings import TlsSettings
from delayserver.config.toml_file import ConfigError
from delayserver.logs.events import EventLogger
from delayserver.net.certificates import CHECK_S, CertificateError, Certificates, of_client, of_server
from delayserver.net.tls_transport import TlsListener, connect_tls
from delayserver.net.transport import Connect, StreamListener, connect_socket

events = EventLogger()


@contextmanager
def _naming(settings: TlsSettings, *names: str) -> Iterator[None]:
    """Raises ConfigError, with those of the settings that are given, for a file that cannot be used."""
    try:
        yield
    except CertificateError as error:
        given = " and ".join([f"tls.{name}" for name in names if getattr(settings, name)])
        raise ConfigError(f"{given}: {error}") from error


class Encryption:
    """The contexts that `[tls]` asks for. Without a certificate nothing is encrypted."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files. Raises ConfigError."""
        certificate, key = settings.certificate, settings.key
        with _naming(settings, "certificate", "key", "client_ca"):
            self._server = of_server(certificate, key, settings.client_ca) if certificate else None
        with _naming(settings, "node_ca", "certificate", "key"):
            self._nodes = of_client(settings.node_ca, certificate, key) if settings.node_ca else None

    def around(self, listener: StreamListener) -> StreamListener:
        """The listener, encrypted if there is a certificate."""
        return listener if self._server is None else TlsListener(listener, self._server)

    @property
    def connect(self) -> Connect:
        """How this server connects to nodes."""
        return connect_socket if self._nodes is None else connect_tls(self._nodes)

    def renew(self) -> None:
        """Takes changed files for new connections. The log names a wrong file, and those from before stay in use."""
        for certificates in (self._server, self._nodes):
            self._renew(certificates)

    def _renew(self, certificates: Certificates | None) -> None:
        try:
            if certificates is not None and certificates.renew():
                events.warning("certificates_renewed", "new connections use the changed certificates")
        except CertificateError as error:
            events.error("certificates_refused", "the changed certificates are not used: {reason}", reason=str(error))

    async def run(self) -> None:
        """Looks at the files now and then, until cancelled."""
        while self._server is not None or self._nodes is not None:
            await trio.sleep(CHECK_S)
            self.renew()
