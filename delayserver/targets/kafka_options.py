"""Addresses and options of nodes of the kind `kafka`. Kafka's library is not needed to check them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from delayserver.kafka.client_options import CLOSED, OPEN
from delayserver.protocol.addresses import parse_address
from delayserver.targets.node_options import NodeOptions
from store.disk.filesystem import RealFileSystem

SCHEME: Final = "kafka"
SUBJECT: Final = "{subject}"
"""Stands in a topic for the subject of each message."""
TOPIC_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXAMPLE: Final = "kafka://HOST:PORT,HOST:PORT/TOPIC"
KEYS: Final = ("order_key", "message_id", "subject", "none")
PROPERTY: Final = "property:"
"""Before the name of a property, whose value is the key."""
PARTITIONERS: Final = (
    "murmur2_random",
    "murmur2",
    "consistent_random",
    "consistent",
    "fnv1a_random",
    "fnv1a",
    "random",
)
COMPRESSIONS: Final = ("none", "lz4", "zstd", "snappy", "gzip")
SECRET_BYTES_MAX: Final = 65_536


@dataclass(frozen=True)
class KafkaOptions(NodeOptions):
    """`key`: what becomes the key of a record: `order_key`, `message_id`, `subject`, `none`, or `property:NAME`.

    `partitioner` and `compression`: as librdkafka names them. `batch_bytes`: of one batch of records on its way.
    `connection`: options of librdkafka as "NAME=VALUE". `secrets`: those that nobody may read, as "NAME=file:PATH" or
    "NAME=env:VARIABLE".
    """

    key: str = "order_key"
    partitioner: str = "murmur2_random"
    """Where Java's client puts a key, this puts it too."""
    compression: str = "none"
    batch_bytes: int = 1_000_000
    connection: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.key not in KEYS and not self.key.removeprefix(PROPERTY) != self.key != PROPERTY:
            raise ValueError(f"key: {self.key[:64]!r} is none: write one of {', '.join(KEYS)}, or {PROPERTY}NAME")
        for name, choices in (("partitioner", PARTITIONERS), ("compression", COMPRESSIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: {getattr(self, name)[:64]!r} is none: write one of {', '.join(choices)}")
        for name, _value in _assignments("connection", self.connection):
            if any(word in name for word in ("password", "secret", "pem")):
                raise ValueError(f'connection: {name} is a secret: write secrets = ["{name}=file:PATH"]')
        self.read_secrets()

    @property
    def keeps_keys(self) -> bool:
        """Whether messages of an order key go to one partition."""
        return self.key in ("order_key", "subject")

    def read_connection(self) -> dict[str, str]:
        """The options of the connection, and the secrets as they are now. Raises ValueError."""
        return dict(_assignments("connection", self.connection)) | self.read_secrets()

    def read_secrets(self) -> dict[str, str]:
        """The secrets as they are now. Raises ValueError, which has none of them."""
        found = {}
        for name, place in _assignments("secrets", self.secrets):
            kind, _, rest = place.partition(":")
            if kind not in ("file", "env") or not rest:
                raise ValueError(f"secrets: write {name}=file:PATH or {name}=env:VARIABLE")
            value = os.environ.get(rest) if kind == "env" else _first_bytes(rest)
            if not value:
                raise ValueError(f"secrets: {name} has no value: {kind} {rest[:255]} is empty or cannot be read")
            found[name] = value
        return found


def _assignments(option: str, texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The names and values of "NAME=VALUE". Raises ValueError for an option that the service sets itself."""
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"{option}: expected NAME=VALUE in each text")
        if not name.startswith(OPEN) or name in CLOSED:
            raise ValueError(
                f"{option}: {name[:64]} may not be set here. Options of the connection begin with {', '.join(OPEN)}"
            )
        yield name, value


def _first_bytes(path: str) -> str:
    """The text of a small file without its last line break; empty if it cannot be read."""
    try:
        disk = RealFileSystem()
        file = disk.open(path, write=False)
        try:
            return file.pread(0, SECRET_BYTES_MAX).decode().rstrip("\r\n")
        finally:
            file.close()
    except (OSError, ValueError):
        return ""


def parts_of(address: str) -> tuple[str, str]:
    """The brokers, as `bootstrap.servers` takes them, and the topic or its template. Raises ValueError."""
    servers, separator, topic = address.removeprefix(f"{SCHEME}://").partition("/")
    if not separator:
        raise ValueError(f"{address[:64]!r} names no topic: write {_EXAMPLE}")
    for server in servers.split(","):
        if "@" in server:
            raise ValueError(f"an address has no credentials: write {_EXAMPLE}, and these into options")
        parse_address(server)
    shown = topic.replace(SUBJECT, "")
    if not topic or (shown and not _LEGAL.fullmatch(shown)) or topic in (".", "..") or len(shown) > TOPIC_LENGTH_MAX:
        raise ValueError(
            f"{topic[:64]!r} is no topic: write letters, digits, '.', '_' and '-', and {SUBJECT} for the subject"
        )
    return servers, topic


def is_topic(name: str) -> bool:
    """Whether a topic may have this name."""
    return len(name) <= TOPIC_LENGTH_MAX and name not in (".", "..") and _LEGAL.fullmatch(name) is not None
