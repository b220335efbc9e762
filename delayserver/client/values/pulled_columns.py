"""The result of a pull: the columns as they came, and rows made of them on demand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat, starmap
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.client.values.messages import Delivery
from delayserver.protocol.columns import I64, U32, Ragged, unpack_column, unpack_count, unpack_ragged
from delayserver.protocol.receipts import derived_message_ids


@dataclass(frozen=True, slots=True)
class PulledColumns:
    """Deliveries of one subject as columns of ``count`` rows.

    i64: ``sequence``, ``due_ms``, ``accepted_us``, ``dispatched_us``, ``delivery``, ``expires_ms`` (0: never),
    ``position`` (in the subject's queue; -1: a redelivery through the delay pipeline, or an older server). u32:
    ``server_index`` (into ``server_ids``), ``attempt``. Ragged: ``message_ids`` (empty = derived), ``properties`` (a
    msgpack map, or empty), ``bodies``. ``tag_index`` u32 points into ``tags`` from 1 on, 0 for messages without a tag;
    ``order_keys`` are ragged and empty for messages without one. Both are None where no message has one.
    """

    count: int
    subject: str
    server_ids: list[str]
    server_index: NDArray[np.uint32]
    sequence: NDArray[np.int64]
    due_ms: NDArray[np.int64]
    accepted_us: NDArray[np.int64]
    dispatched_us: NDArray[np.int64]
    attempt: NDArray[np.uint32]
    message_ids: Ragged
    properties: Ragged
    bodies: Ragged
    delivery: NDArray[np.int64]
    expires_ms: NDArray[np.int64]
    position: NDArray[np.int64]
    tags: list[str] = field(default_factory=list)
    tag_index: NDArray[np.uint32] | None = None
    order_keys: Ragged | None = None

    @property
    def lateness_us(self) -> NDArray[np.int64]:
        """i64[count]: microseconds from the first moment when each message could be delivered to its hand-off."""
        late: NDArray[np.int64] = self.dispatched_us - np.maximum(self.due_ms * 1000, self.accepted_us)
        return late

    def message_id_texts(self) -> list[str]:
        """The message ids as text, derived ones included."""
        texts = [message_id.decode() for message_id in self.message_ids.rows()]
        derived = np.flatnonzero(self.message_ids.lengths == 0)
        for server in np.unique(self.server_index[derived]).tolist():
            rows = derived[self.server_index[derived] == server]
            names = derived_message_ids(self.server_ids[server], self.sequence[rows])
            for row, name in zip(rows.tolist(), names, strict=True):
                texts[row] = name
        return texts

    def tag_texts(self) -> Iterable[str | None]:
        """The tag of each message."""
        if self.tag_index is None:
            return repeat(None)
        names = [None, *self.tags]
        return [names[index] for index in self.tag_index.tolist()]

    def order_key_texts(self) -> Iterable[str | None]:
        """The order key of each message."""
        if self.order_keys is None:
            return repeat(None)
        return [key.decode() or None for key in self.order_keys.rows()]

    def deliveries(self) -> list[Delivery]:
        """The rows as objects: about 2 µs each. If that matters, work on the columns."""
        columns = zip(
            self.message_id_texts(),
            repeat(self.subject),
            self.sequence.tolist(),
            [self.server_ids[index] for index in self.server_index.tolist()],
            self.due_ms.tolist(),
            self.accepted_us.tolist(),
            self.dispatched_us.tolist(),
            self.attempt.tolist(),
            self.bodies.rows(),
            [msgpack.unpackb(packed) if packed else {} for packed in self.properties.rows()],
            self.delivery.tolist(),
            self.expires_ms.tolist(),
            self.tag_texts(),
            self.order_key_texts(),
            [None if position < 0 else position for position in self.position.tolist()],
            strict=False,  # The subject repeats for ever.
        )
        return list(starmap(Delivery, columns))


def read_pulled(result: dict[str, Any], count_max: int) -> PulledColumns:
    """Read the columnar result of a pull. Raises `InvalidArgument` or KeyError if the server's columns are wrong."""
    count = unpack_count(result["count"], count_max)

    def numbers(name: str, dtype: np.dtype[Any] = I64) -> NDArray[Any]:
        return unpack_column(result[name], count, dtype, name)

    def ragged(name: str, lengths_name: str) -> Ragged:
        return unpack_ragged(result[name], result[lengths_name], count, name, lengths_name)

    return PulledColumns(
        count=count,
        subject=result["subject"],
        server_ids=result["server_ids"],
        server_index=numbers("server_index", U32),
        sequence=numbers("sequence"),
        due_ms=numbers("due_ms"),
        accepted_us=numbers("accepted_us"),
        dispatched_us=numbers("dispatched_us"),
        attempt=numbers("attempt", U32),
        message_ids=ragged("message_ids", "message_id_length"),
        properties=ragged("properties", "properties_length"),
        bodies=ragged("bodies", "body_length"),
        delivery=numbers("delivery"),
        # An older server does not send this column.
        expires_ms=numbers("expires_ms") if "expires_ms" in result else np.zeros(count, I64),
        tags=result.get("tags", []),
        tag_index=numbers("tag_index", U32) if "tags" in result else None,
        order_keys=ragged("order_keys", "order_key_length") if "order_keys" in result else None,
        position=numbers("position") if "position" in result else np.full(count, -1, I64),
    )
