"""The engines of a cluster: Kafka, as the file of the cluster describes it."""

from __future__ import annotations

from dataclasses import replace

from delayserver.config.cluster_file import ClusterFile
from delayserver.config.toml_file import ConfigError
from delayserver.members.founding import Engines


def engines_of(cluster: ClusterFile) -> Engines:
    """The engines of the shards' logs and of the map. Does no I/O. Raises ConfigError."""
    try:
        from delayserver.kafka.client_options import KafkaCluster
        from delayserver.kafka.kafka_log import KafkaEngine
    except ImportError:
        raise ConfigError("a cluster needs the client library of Kafka: pip install --use-pep517 '.[kafka]'") from None
    try:
        shards = KafkaCluster(cluster.kafka, cluster.topic, cluster.kafka_options, cluster.copies)
    except ValueError as error:
        raise ConfigError(f"cluster.{error}") from None
    return Engines(KafkaEngine(shards), KafkaEngine(replace(shards, topic=f"{cluster.topic}-members")))
