"""Certificates in files, and the TLS contexts made of them. A changed file makes a new context for new connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, Self

CHECK_S: Final = 10.0
"""How often the files are compared. A renewed certificate replaces one that is valid for days more."""


class CertificateError(OSError):
    """A file of the configuration cannot be read, or is no certificate, key or authority."""


def _no_passphrase() -> str:
    """Raises ValueError. Without this, OpenSSL asks for a passphrase on the terminal, and the server waits for it."""
    raise ValueError("the key has a passphrase; give a key without one, in a file that only the server's user can read")


class Contexts(Protocol):
    """A source of the context of the next connection."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the next connection."""


class Certificates:
    """The context that the present content of some files makes."""

    def __init__(self, files: tuple[str, ...], make: Callable[[], ssl.SSLContext]) -> None:
        """Raises CertificateError."""
        self._files = tuple(file for file in files if file)
        self._make = make
        self._seen = self._marks()
        self.context = self._made()

    def renew(self) -> bool:
        """Makes a new context if a file has changed; returns whether one has. Raises CertificateError: the old one stays,
        and the next call tries again."""
        marks = self._marks()
        if marks == self._seen:
            return False
        self.context = self._made()
        self._seen = marks
        return True

    def _made(self) -> ssl.SSLContext:
        try:
            return self._make()
        except (OSError, ValueError) as error:
            raise CertificateError(f"{' and '.join(self._files)}: {error}") from error

    def _marks(self) -> list[tuple[int, int, int]]:
        try:
            stats = [Path(file).stat() for file in self._files]
        except (OSError, ValueError) as error:  # a ValueError: a zero byte in the path
            named = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise CertificateError(named) from error
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def of_server(certificate: str, key: str, client_ca: str) -> Certificates:
    """For those who accept connections. With `client_ca` every client must show a certificate of that authority. Raises
    CertificateError."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key, _no_passphrase)
        if client_ca:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return Certificates((certificate, key, client_ca), make)


def of_client(authority: str, certificate: str, key: str) -> Certificates:
    """For those who connect: the other end must show a certificate of the authority for its host. This end shows its own, if
    it has one. Raises CertificateError."""

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key, _no_passphrase)
        return context

    return Certificates((authority, certificate, key), make)


class LookingFirst(ssl.SSLContext):
    """A context of a client. It calls `look` before each connection: the server may just have renewed its certificate."""

    def __new__(cls, look: Callable[[], None]) -> Self:
        """A context without certificates."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """As in `ssl.SSLContext`."""
        self._look()
        return super().wrap_bio(*arguments, **named)


def pinned(certificate: str, key: str, look: Callable[[], None]) -> Certificates:
    """For a process that connects to the server beside it: the other end must show this very certificate. Each connection
    first calls `look`. Raises CertificateError."""

    def make() -> ssl.SSLContext:
        context = LookingFirst(look)
        context.check_hostname = False
        context.load_verify_locations(certificate)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_cert_chain(certificate, key, _no_passphrase)
        return context

    return Certificates((certificate, key), make)
