"""The kind `kafka`: topics of Apache Kafka. A server without such a node does not need Kafka's library."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from delayserver.targets.kafka_options import SCHEME, KafkaOptions, parts_of
from delayserver.targets.kinds import Capabilities, Surroundings, TargetKind
from delayserver.targets.target import Target


def _read_address(text: str) -> str:
    parts_of(text)
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ValueError(f"{text[:64]!r} needs the extra kafka: pip install 'delayserver[kafka]'")
    return text


def _make(address: str, options: Any, around: Surroundings) -> Target:
    from delayserver.targets.kafka_topics import KafkaTopics

    return KafkaTopics(address, options, around)


KAFKA: Final = TargetKind(
    SCHEME,
    lambda _address, options: Capabilities(keeps_keys=options.keeps_keys, probes=True),
    _make,
    _read_address,
    KafkaOptions,
)
