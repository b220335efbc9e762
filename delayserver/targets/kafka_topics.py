"""Topics of Apache Kafka as a target: each message is a record, and the report of its delivery is the answer.

Kafka does not know a message again, so a message whose report did not come may be there twice. Each record has headers by
which a consumer recognises that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, repeat
from typing import Any, Final

import msgspec
import numpy as np
import trio
from confluent_kafka import KafkaError, KafkaException
from numpy.typing import NDArray

from delayserver.logs.events import EventLogger
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.targets.answer import Answer, RowAnswer
from delayserver.targets.kafka_options import PROPERTY, SUBJECT, KafkaOptions, is_topic, parts_of
from delayserver.targets.kafka_producer import KafkaProducer, RecordReports
from delayserver.targets.kinds import Surroundings
from delayserver.targets.target import LEASE_ENDED, DeliveryError, Target
from store.records.batches import StoredBatch
from store.records.column_batch import has_any, ragged_rows
from store.records.shared_column import REDELIVERY, attempts_before

events = EventLogger()

ID_HEADER: Final = "delayserver-id"
"""SERVER_ID:SEQUENCE:REDELIVERY. Records with the same value are repetitions of one delivery."""
DUE_HEADER: Final = "delayserver-due-ms"
SUBJECT_HEADER: Final = "delayserver-subject"
MESSAGE_ID_HEADER: Final = "delayserver-message-id"
ATTEMPT_HEADER: Final = "delayserver-attempt"

LARGE_BYTES: Final = 65_536
"""Behind a message of an order key that is longer than this, the next one waits for its report: Kafka may refuse it."""
BEFORE_DEADLINE_S: Final = 0.01
# The library looks once a second whose time is over, and a delivery should hear it in its own time.
TIMEOUT_SPARE_MS: Final = 1_500
TIMEOUT_MS_MIN: Final = 500
LOOK_S_MAX: Final = 4.0
QUEUE_KIB_MAX: Final = 256 << 10
"""Records on their way. It is more than eight deliveries of the default size; beyond it a delivery has failed."""
PROBLEM_S: Final = 60.0
"""A refusal counts as a problem for so long. What Kafka refused is tried again at least every 30 s."""

TOO_LARGE: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.RECORD_LIST_TOO_LARGE}
NOT_TAKEN: Final = {KafkaError.INVALID_RECORD, KafkaError.INVALID_MSG, KafkaError.INVALID_TIMESTAMP}
NO_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
}
NOT_ALLOWED: Final = {KafkaError.TOPIC_AUTHORIZATION_FAILED}
REFUSED_NOW: Final = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError._QUEUE_FULL,
}
"""Kafka or the library took the record not, and says so."""

_properties = msgspec.msgpack.Decoder(dict[str, str])
_STORED = int(RowAnswer.STORED)
_Row = tuple[str, bytes | None, bytes, list[tuple[str, bytes]]]


class KafkaTopics(Target):
    """The topics that one address names. `run` keeps the producer; several deliveries may run at once."""

    def __init__(self, address: str, options: KafkaOptions, around: Surroundings) -> None:
        self.address = address
        self._servers, self._template = parts_of(address)
        self._options = options
        self._server_id = around.identity.server_id.encode()
        self._names = around.names
        self._workers = around.runtime.workers
        self._may_send = around.may_send
        self._timeout_ms = max(around.deliver_timeout_ms - TIMEOUT_SPARE_MS, TIMEOUT_MS_MIN)
        self._producer = KafkaProducer(self._producer_options)
        self._problem, self._problem_until_s = "", 0.0

    def _producer_options(self) -> dict[str, Any]:
        options = self._options
        return {
            "client.id": "delayserver",
            "log_level": 0,
            **options.read_connection(),
            "bootstrap.servers": self._servers,
            "acks": "all",
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,
            "partitioner": options.partitioner,
            "compression.type": options.compression,
            "batch.size": options.batch_bytes,
            # A longer record is Kafka's to refuse.
            "message.max.bytes": 1_000_000_000,
            "message.timeout.ms": self._timeout_ms,
            # A broker that hangs is asked again in this time, and knows what it has.
            "request.timeout.ms": max(self._timeout_ms // 2, TIMEOUT_MS_MIN),
            "retry.backoff.ms": 50,
            "linger.ms": 0,
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": QUEUE_KIB_MAX,
            "reconnect.backoff.ms": 50,
            # By default 10 s: that long a broker that is back could be unknown.
            "reconnect.backoff.max.ms": 500,
            # A topic that is missing is refused soon, and one that was made is found soon.
            "topic.metadata.propagation.max.ms": 1_000,
            "topic.metadata.refresh.interval.ms": 10_000,
        }

    async def run(self) -> None:
        await self._producer.run()

    @property
    def problem(self) -> str:
        """`topic_missing`, `topic_not_allowed`, `message_too_large` or `record_refused`, for a minute after the last one."""
        return self._problem if trio.current_time() < self._problem_until_s else ""

    def _has_problem(self, name: str, reason: str) -> None:
        if name != self.problem:
            events.error(
                "node_problem", "broker node {node}: {reason}", node=self.address, reason=reason, error_name=name
            )
        self._problem, self._problem_until_s = name, trio.current_time() + PROBLEM_S

    async def probe(self) -> None:
        """Asks a broker. Raises DeliveryError."""
        await self._look(None if SUBJECT in self._template else self._template)

    async def _look(self, topic: str | None) -> None:
        """Raises DeliveryError (known) if no broker answers, or the one topic of this node is missing."""
        # Half of the time is for the records.
        wait_s = min(LOOK_S_MAX, (trio.current_effective_deadline() - trio.current_time()) / 2)
        with trio.move_on_after(wait_s):
            await self._producer.ready()
        error = await self._workers.run(partial(self._producer.look, topic, max(wait_s, 0.1)), abandon_on_cancel=True)
        if error is not None and SUBJECT not in self._template:
            reason = f"topic {topic}: {error.str()}"
            self._has_problem(_problem_of(error), reason)
            raise DeliveryError(reason, known=True)

    async def deliver(self, batch: StoredBatch, *, uncertain: bool) -> Answer:
        """Hand records over and wait for the reports. Raises DeliveryError."""
        topics = self._topics(batch)
        if self._producer.doubtful:
            await self._look(next((topic for topic in topics.values() if topic), None))
        produce = self._producer.get().produce
        reports = RecordReports(len(batch), self._code_of)
        rows, sent, stop = self._rows(batch, topics), 0, 0
        # Keys of which a message was not taken: no later one of them goes before it.
        held: set[int] = set()
        with trio.move_on_at(trio.current_effective_deadline() - BEFORE_DEADLINE_S):
            for start, end in pairwise(_cuts(batch)):
                if self._may_send is not None and not self._may_send():
                    if not sent:
                        raise DeliveryError(LEASE_ENDED, known=True)
                    break
                stop = end
                keys = batch.order_hash[start:stop]
                skip = np.flatnonzero(np.isin(keys, np.array([*held], np.uint64))) + start
                work = partial(_send, produce, reports, range(start, stop), rows, {*skip.tolist()})
                sent += await self._workers.run(work) if stop - start > LARGE_ROWS else work()
                await reports.wait(sent)
                held.update(keys[reports.codes[start:stop] != _STORED].tolist())
        return self._answer(reports, stop)

    def _answer(self, reports: RecordReports, stop: int) -> Answer:
        """Rows from `stop` on were not handed over."""
        codes = reports.codes
        if (codes == _STORED).all():
            return Answer(codes)
        unknown = bool((codes[:stop] == int(RowAnswer.UNKNOWN)).any())
        if unknown:
            self._producer.doubt()
        codes[stop:] = int(RowAnswer.FAILED)
        error = reports.error
        if error is None:
            return Answer(codes, self._producer.told or "no answer in time")
        name, reason = _problem_of(error), f"Kafka says: {error.str()}"
        if name == "message_too_large":
            reason += ". Raise max.message.bytes of the topic, or lower batch_bytes if smaller ones are refused too"
        if name:
            self._has_problem(name, reason)
        return Answer(codes, reason)

    def _code_of(self, error: KafkaError) -> int:
        """Of a record that was not acknowledged. A topic that one subject names is not the whole node."""
        code = error.code()
        if code in TOO_LARGE or code in NOT_TAKEN:
            return int(RowAnswer.REFUSED)
        if code in NO_TOPIC or code in NOT_ALLOWED:
            return int(RowAnswer.REFUSED if SUBJECT in self._template else RowAnswer.FAILED)
        return int(RowAnswer.FAILED if code in REFUSED_NOW else RowAnswer.UNKNOWN)

    def _topics(self, batch: StoredBatch) -> dict[int, str]:
        """The topic of each subject in a batch; empty where the subject makes no name of a topic."""
        codes = batch.subject[:1] if batch.subject.strides == (0,) else np.unique(batch.subject)
        topics = {code: self._template.replace(SUBJECT, self._names(code)) for code in codes.tolist()}
        return {code: topic if is_topic(topic) else "" for code, topic in topics.items()}

    def _rows(self, batch: StoredBatch, topics: dict[int, str]) -> Iterator[_Row]:
        """Each message as a record. The library takes them one by one, as Python objects."""
        subjects = {code: self._names(code).encode() for code in topics}
        properties = _each(batch.properties, batch.properties_length)
        decoded = None if properties is None else [_properties.decode(row) if row else {} for row in properties]
        keys = self._keys(batch, subjects, decoded)
        more = _more_headers(batch, decoded)
        for place, (subject, sequence, number, due_ms, message_id, body) in enumerate(
            zip(
                batch.subject.tolist(),
                batch.sequence.tolist(),
                REDELIVERY.number(batch.redelivery).tolist(),
                batch.due_ms.tolist(),
                _each(batch.ids, batch.ids_length) or repeat(b""),
                ragged_rows(batch.bodies, batch.bodies_length),
                strict=False,
            )
        ):
            headers = [
                (ID_HEADER, b"%b:%d:%d" % (self._server_id, sequence, number)),
                (DUE_HEADER, b"%d" % due_ms),
                (SUBJECT_HEADER, subjects[subject]),
            ]
            if message_id:
                headers.append((MESSAGE_ID_HEADER, message_id))
            if more is not None:
                headers += more[place]
            yield topics[subject], keys[place] if keys is not None else None, body, headers

    def _keys(
        self, batch: StoredBatch, subjects: dict[int, bytes], properties: list[dict[str, str]] | None
    ) -> list[bytes | None] | None:
        """The keys of the records; None if none has one."""
        key = self._options.key
        if key == "subject":
            return [subjects[code] for code in batch.subject.tolist()]
        if key.startswith(PROPERTY):
            name = key.removeprefix(PROPERTY)
            found = [row.get(name) for row in properties or ()]
            return [None if value is None else value.encode() for value in found] or None
        blob, lengths = {
            "order_key": (batch.order_keys, batch.order_keys_length),
            "message_id": (batch.ids, batch.ids_length),
            "none": (memoryview(b""), batch.ids_length),
        }[key]
        rows = _each(blob, lengths)
        return None if rows is None else [row or None for row in rows]


def _send(
    produce: Callable[..., None], reports: RecordReports, places: range, rows: Iterator[_Row], skip: set[int]
) -> int:
    """Any thread: give the library the records of these places but for some. Returns for how many reports come."""
    sent = 0
    for place, (topic, key, body, headers) in zip(places, rows, strict=False):
        if place in skip:
            reports.set_code(place, RowAnswer.FAILED)
        elif not topic:
            reports.set_error(place, KafkaError(KafkaError.TOPIC_EXCEPTION, "the subject makes no name of a topic"))
        else:
            try:
                produce(topic, body, key, on_delivery=partial(reports.reported, place), headers=headers)
                sent += 1
            except KafkaException as error:
                reports.set_error(place, error.args[0])
            except BufferError:
                reports.set_error(place, KafkaError(KafkaError._QUEUE_FULL))
    return sent


def _cuts(batch: StoredBatch) -> list[int]:
    """Where the parts of a batch begin and end that are handed over one after the other; one part without order keys."""
    if not has_any(batch.order_keys_length):
        return [0, len(batch)]
    large = np.flatnonzero(batch.bodies_length[:-1] > LARGE_BYTES) + 1
    return [0, *large.tolist(), len(batch)]


def _each(blob: memoryview, lengths: NDArray[np.uint32]) -> list[bytes] | None:
    """The bytes of each row; None if all are empty."""
    return ragged_rows(blob, lengths) if len(blob) else None


def _more_headers(batch: StoredBatch, properties: list[dict[str, str]] | None) -> list[list[tuple[str, bytes]]] | None:
    """What only some messages have: properties and earlier hand-overs. None if no message has any."""
    before = attempts_before(batch.redelivery)
    if properties is None and not before.any():
        return None
    rows: list[list[tuple[str, bytes]]] = [
        [(name, value.encode()) for name, value in row.items()] for row in properties or ({},) * len(batch)
    ]
    if before.any():
        for row, count in zip(rows, np.broadcast_to(before, len(batch)).tolist(), strict=True):
            if count:
                row.append((ATTEMPT_HEADER, b"%d" % (count + 1)))
    return rows


def _problem_of(error: KafkaError) -> str:
    """The name of what an operator must mend; empty if it mends itself."""
    code = error.code()
    if code in TOO_LARGE:
        return "message_too_large"
    if code in NOT_TAKEN:
        return "record_refused"
    if code in NO_TOPIC:
        return "topic_missing"
    return "topic_not_allowed" if code in NOT_ALLOWED else ""
