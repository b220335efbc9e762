"""The certificate of HTTPS is renewed in place: the context of the listening socket serves new connections with it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from anyio import connect_tcp, create_task_group, create_tcp_listener
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSListener, TLSStream

from delayserver.config.settings import TlsSettings
from delayserver.web.secured import Secured

HOST = "127.0.0.1"


class Files:
    """An authority, and the files of the certificate that it gave out last."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key = directory / "cert.pem", directory / "key.pem"
        self.issue()

    def issue(self) -> None:
        """Replace certificate and key."""
        issued = self.authority.issue_cert(HOST)
        issued.private_key_pem.write_to_path(self.key)
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def secured(self) -> tuple[Secured, ssl.SSLContext]:
        """The contexts of a gateway, and that of its listening socket."""
        secured = Secured(TlsSettings(certificate=str(self.certificate), key=str(self.key)))
        assert secured.context is not None
        return secured, secured.context

    def served(self, in_use: ssl.SSLContext) -> str:
        """The serial number of the certificate that a browser gets, which trusts the authority."""
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority.configure_trust(client)
        return shaken(client, in_use, HOST)


def shaken(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> str:
    """A handshake without a network; the serial number of the server's certificate as the client saw it."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (asking, answering):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    certificate = asking.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_new_files_are_served_by_the_context_that_is_in_use(tmp_path: Path) -> None:
    files = Files(tmp_path)
    secured, in_use = files.secured()
    first = files.served(in_use)
    secured.renew()
    assert files.served(in_use) == first
    files.issue()
    secured.renew()
    assert files.served(in_use) != first


def test_wrong_files_leave_the_certificate_from_before_and_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    secured, in_use = files.secured()
    first = files.served(in_use)
    key = files.key.read_text()
    for wrong in ("no key", trustme.CA().issue_cert(HOST).private_key_pem.bytes().decode()):
        files.key.write_text(wrong)
        secured.renew()
        assert files.served(in_use) == first
    assert "the changed certificates are not used" in caplog.text
    # The next look takes the files when they are right again.
    files.key.write_text(key)
    files.issue()
    secured.renew()
    assert files.served(in_use) != first


def test_the_gateway_knows_the_server_by_its_renewed_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path)
    secured, in_use = files.secured()
    assert secured.to_server is not None
    files.issue()
    secured.renew()
    renewed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    renewed.load_cert_chain(files.certificate, files.key)
    assert shaken(secured.to_server, renewed, HOST) == files.served(in_use)
    (tmp_path / "stranger").mkdir()
    stranger = Files(tmp_path / "stranger")
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.load_cert_chain(stranger.certificate, stranger.key)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(secured.to_server, other, HOST)


async def test_a_connection_right_after_a_renewal_of_the_server_finds_its_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path)
    secured, _ = files.secured()
    assert secured.to_server is not None
    files.issue()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files.certificate, files.key)

    async def greet(stream: TLSStream) -> None:
        async with stream:
            await stream.send(b"hello")

    tcp = await create_tcp_listener(local_host=HOST)
    async with TLSListener(tcp, serving, standard_compatible=False) as listener, create_task_group() as tasks:
        tasks.start_soon(listener.serve, greet)
        # As the client library connects.
        port = tcp.extra(SocketAttribute.local_port)
        stream = await connect_tcp(HOST, port, ssl_context=secured.to_server, tls_standard_compatible=False)
        async with stream:
            assert await stream.receive() == b"hello"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("guarded", [True, False])
def test_an_authority_of_clients_counts_for_http_too(tmp_path: Path, guarded: bool) -> None:
    files, authority = Files(tmp_path), trustme.CA()
    clients = tmp_path / "clients.pem"
    authority.cert_pem.write_to_path(clients)
    settings = TlsSettings(
        certificate=str(files.certificate), key=str(files.key), client_ca=str(clients), http_client_ca=guarded
    )
    secured = Secured(settings)
    for _ in range(2):
        assert secured.context is not None
        assert (secured.context.verify_mode is ssl.CERT_REQUIRED) is guarded
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.maximum_version = ssl.TLSVersion.TLSv1_2  # its handshake fails at once
        files.authority.configure_trust(client)
        if guarded:
            with pytest.raises(ssl.SSLError):
                shaken(client, secured.context, HOST)
        authority.issue_cert("client.example").configure_cert(client)
        assert shaken(client, secured.context, HOST)
        files.issue()
        secured.renew()
