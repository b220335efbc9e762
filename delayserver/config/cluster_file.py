"""The file of a cluster: where its shared log is, and which member this is. All keys stand in the table `[cluster]`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delayserver.config.toml_file import ConfigError, parse_text, read_table, text_of
from delayserver.protocol.addresses import parse_address

PASSWORD = "sasl.password"
NAME_CHARACTERS_MAX = 64


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """One member's view of its cluster. Files of the members of a cluster differ in `member` and `shard`."""

    kafka: str
    """Brokers of Kafka, as "HOST:PORT,HOST:PORT". One that answers is enough to find the others."""
    member: str
    """The name of this member. No other member of the cluster has it."""
    topic: str = "delayserver"
    """The topic of the shards' logs, a partition each. The topic TOPIC-members says who the members are."""
    shard: int = 0
    """The shard that this member is of, counted from 0."""
    copies: int = 3
    """How many brokers have a copy of each record. Fewer than three are for tests: a broker that is lost may take
    acknowledged messages with it."""
    front_probe: bool = True
    """Members ask each other's addresses. A primary whose address no member reaches for 10 s hands over: clients do not
    reach it either."""
    password_file: str = ""
    """A file with the password for Kafka (`sasl.password`)."""
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of the connection by their names in librdkafka, such as "security.protocol"."""

    def __post_init__(self) -> None:
        for address in self.kafka.split(","):
            try:
                parse_address(address.strip())
            except ValueError as error:
                raise ValueError(f"kafka: {error}") from None
        if len(self.member) > NAME_CHARACTERS_MAX or not all(map(_of_a_name, self.member)):
            raise ValueError(
                f"member: expected at most {NAME_CHARACTERS_MAX} letters, digits, '.', '-' and '_', not {self.member!r}"
            )


def _of_a_name(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in ".-_")


@dataclass(frozen=True, slots=True)
class _Document:
    cluster: ClusterFile


def load_cluster(path: str) -> ClusterFile:
    """The cluster of a TOML file, with the password that its file has. Raises `ConfigError`, which names the file."""
    tree = parse_text(path, text_of(path))
    try:
        document: _Document = read_table(_Document, tree, "")
        return _with_password(document.cluster)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _with_password(cluster: ClusterFile) -> ClusterFile:
    if not cluster.password_file:
        return cluster
    if PASSWORD in cluster.kafka_options:
        raise ConfigError(f'cluster.password_file: cluster.kafka_options has "{PASSWORD}" too, give one of them')
    options = {**cluster.kafka_options, PASSWORD: text_of(cluster.password_file).strip()}
    return dataclasses.replace(cluster, kafka_options=options)
