"""TLS on every port: authorities, old certificates, certificates of clients, and renewal without a restart."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from delayserver.client import AsyncClient, Client
from delayserver.protocol.errors import ConnectionLost
from tests.delayserver.cli.conftest import Server, run
from tests.delayserver.web import web_server

StartServer = Callable[..., Server]
BODY = b"b" * 300_000


class Files:
    """An authority, and the files of certificates that it gives out."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        self.certificate, self.key = directory / "cert.pem", directory / "key.pem"
        self.issue()

    def issue(self, name: str = "127.0.0.1", **rest: Any) -> None:
        """Replaces certificate and key."""
        issued = self.authority.issue_cert(name, **rest)
        issued.private_key_pem.write_to_path(self.key)
        pem = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        self.certificate.write_bytes(pem)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def flags(self, **more: object) -> list[str]:
        keys = {"certificate": self.certificate, "key": self.key, **more}
        return [part for name, value in keys.items() for part in ("--set", f"tls.{name}={value}")]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "tls")


def fails_for(address: str, context: ssl.SSLContext | None) -> str:
    with pytest.raises(ConnectionLost) as lost, Client(address, tls=context, retries=0, timeout_s=60) as client:
        client.ping()
    return lost.value.message


def test_both_clients_send_and_pull_over_tls_and_large_frames_pass(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server(tmp_path / "data", *files.flags())
    with Client(server.address, tls=files.context()) as client:
        batch = [client.send("s", BODY, delay_ms=0) for _ in range(10)]
        assert len(batch) == 10
        pulled: list[bytes] = []
        while len(pulled) < 10:
            pulled += [message.body for message in client.pull("s", "g", 10, wait_s=20)]
        assert pulled == [BODY] * 10

    async def asynchronous() -> list[bytes]:
        got: list[bytes] = []
        async with AsyncClient(server.address, tls=files.context()) as client, anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(lambda: client.send("a", BODY, delay_ms=0))
            while len(got) < 20:
                got += [message.body for message in await client.pull("a", "g", 20, wait_s=20)]
        return got

    assert anyio.run(asynchronous, backend="trio") == [BODY] * 20
    assert server.run("status", "--tls-ca", str(files.ca)).code == 0


def test_only_a_client_with_another_authority_or_none_is_refused(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server(tmp_path / "data", *files.flags())
    other = Files(tmp_path / "other")
    assert "certificate verify failed" in fails_for(server.address, other.context())
    fails_for(server.address, None)
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as half:  # a handshake that never ends
        half.sendall(b"\x16\x03\x01")
        with Client(server.address, tls=files.context()) as client:
            assert client.ping()
    assert server.stop().code == 0


@pytest.mark.parametrize("wrong", ["expired", "name"])
def test_an_expired_certificate_and_one_of_another_host_are_refused(
    files: Files, tmp_path: Path, start_server: StartServer, wrong: str
) -> None:
    if wrong == "expired":
        files.issue(not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    else:
        files.issue("other.example")
    server = start_server(tmp_path / "data", *files.flags(), "--http-port", "0")
    assert "certificate verify failed" in fails_for(server.address, files.context())


def test_with_an_authority_of_clients_only_its_certificates_are_let_in(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server(tmp_path / "data", *files.flags(client_ca=files.ca), "--http-port", "0")
    fails_for(server.address, files.context())
    foreign = files.context()
    trustme.CA().issue_cert("client").configure_cert(foreign)
    fails_for(server.address, foreign)
    known = files.context()
    files.authority.issue_cert("client").configure_cert(known)
    with Client(server.address, tls=known) as client:
        assert client.ping()


def test_a_server_delivers_to_a_node_over_mutual_tls(files: Files, tmp_path: Path, start_server: StartServer) -> None:
    flags = [*files.flags(client_ca=files.ca, node_ca=files.ca), "--http-port", "0"]
    node = start_server(tmp_path / "node", *flags)
    config = tmp_path / "server.toml"
    config.write_text(f'[[groups]]\nname = "default"\nnodes = ["{node.address}"]\n')
    server = start_server(tmp_path / "data", *flags, "--config", str(config))
    known = files.context()
    files.authority.issue_cert("client").configure_cert(known)
    with Client(server.address, tls=known) as client, Client(node.address, tls=known) as other:
        client.send("s", b"over", delay_ms=0)
        assert [message.body for message in other.pull("s", "g", wait_s=30)] == [b"over"]


def served(address: str, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a new connection gets."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        certificate = secured.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)


def test_a_renewed_certificate_is_used_after_a_reload_and_a_broken_one_never(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    config = tmp_path / "server.toml"
    config.write_text("")
    server = start_server(tmp_path / "data", *files.flags(), "--http-port", "0", "--config", str(config))
    first = served(server.address, files.context())
    with Client(server.address, tls=files.context()) as client:
        client.ping()
        files.issue()
        client.reload()
        second = served(server.address, files.context())
        assert second != first
        files.key.write_text("no key")
        client.reload()
        assert served(server.address, files.context()) == second
        assert client.ping()
    server.process.send_signal(signal.SIGTERM)
    _, errors = server.process.communicate(timeout=60)
    assert b"the changed certificates are not used" in errors


@pytest.fixture
def web(files: Files, tmp_path: Path) -> Iterator[web_server.Web]:
    running = web_server.serve("--data-dir", str(tmp_path / "data"), *files.flags())
    yield running
    running.process.kill()
    running.process.communicate()


def test_http_is_encrypted_with_the_same_certificate(files: Files, tmp_path: Path, web: web_server.Web) -> None:
    port = web.port
    url = f"https://127.0.0.1:{port}"
    with urllib.request.urlopen(f"{url}/healthz", context=files.context(), timeout=60) as reply:
        assert json.loads(reply.read())["status"] == "ok"
    with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
        urllib.request.urlopen(f"{url}/healthz", context=Files(tmp_path / "other").context(), timeout=60)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["tls.certificate=a.pem"], "give both"),
        (["tls.client_ca=a.pem"], "only an encrypted port"),
        (["tls.certificate=nowhere.pem", "tls.key=nowhere.pem"], "nowhere.pem: No such file"),
    ],
)
def test_settings_of_tls_that_make_no_sense_stop_the_start(tmp_path: Path, settings: list[str], said: str) -> None:
    flags = [part for each in settings for part in ("--set", each)]
    refused = run("serve", "--data-dir", str(tmp_path / "data"), "--port", "0", *flags)
    assert refused.code == 2 and said in refused.err


def test_a_forked_process_that_closes_the_client_leaves_the_connection_of_its_parent(
    files: Files, tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server(tmp_path / "data", *files.flags(), "--http-port", "0")
    with Client(server.address, tls=files.context(), retries=0) as client:
        child = os.fork()
        if not child:
            client.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert client.ping() > 0
