"""The operator may set options of the connection, and none on which a promise rests."""

from __future__ import annotations

import pytest

from delayserver.kafka.client_options import KafkaCluster, asker_options, reader_options, writer_options


@pytest.mark.parametrize(
    "name",
    [
        "acks", "request.required.acks", "enable.idempotence", "message.timeout.ms", "delivery.timeout.ms", "retries",
        "transactional.id", "auto.offset.reset", "isolation.level", "group.id", "bootstrap.servers", "plugin.library.paths",
        "client.rack", "ssl.engine.location", "error_cb", "debug",
    ],
)  # fmt: skip
def test_an_option_that_the_service_sets_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        KafkaCluster("127.0.0.1:9092", "shards", {name: 1})


def test_options_of_the_connection_reach_each_client() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.password": "secret", "ssl.ca.location": "/ca.pem"}
    cluster = KafkaCluster("127.0.0.1:9092", "shards", options)
    for made in (reader_options(cluster, patient=True), writer_options(cluster), asker_options(cluster)):
        assert options.items() < made.items()
    assert "secret" not in repr(cluster)


def test_what_must_be_in_sync_is_a_majority_of_the_copies() -> None:
    assert [KafkaCluster("", "", copies_min=copies).in_sync_min for copies in (1, 3, 5)] == [1, 2, 3]
